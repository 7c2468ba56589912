"""Who gets in, forged forms, headers, and addresses that lead elsewhere."""

from __future__ import annotations

import logging

import pytest
from flask import Flask
from flask_babel import Babel
from flask_wtf import CSRFProtect
from werkzeug.exceptions import NotFound

from pgbus.dashboard import allow_anyone, create_blueprint

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
RUN = "01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58"
VALUES = {
    "workflow_id": RUN,
    "workflow_class": "shop.OrderWorkflow",
    "batch_id": RUN,
    "number": "1",
    "queue": "pgbus_mail",
    "verb": "cancel",
    "version": "x",
    "name": "console.css",
    "anything": "else",
}


def addresses(site):
    """Returns the address of every rule of the dashboard."""
    adapter = site.url_map.bind("localhost")
    rules = [rule for rule in site.url_map.iter_rules() if rule.endpoint.startswith("pgbus.")]
    assert len(rules) > 12
    return [
        adapter.build(rule.endpoint, {name: VALUES[name] for name in rule.arguments})
        for rule in rules
    ]


def test_nobody_gets_in_by_any_address_and_method_without_auth(make_site):
    site = make_site(auth=None)
    for address in addresses(site):
        for method in METHODS:
            answer = site.test_client().open(address, method=method)
            assert answer.status_code == 403, (method, address)
            assert "pgbus_" not in answer.headers.get("Set-Cookie", "")


def test_the_refusal_says_how_auth_is_set(make_site):
    text = make_site(auth=None).test_client().get("/pgbus/").text
    assert "create_blueprint(bus, auth=" in text


def test_whom_auth_refuses_is_told_nothing_of_the_dashboard(make_site):
    text = make_site(auth=lambda _request: False).test_client().get("/pgbus/workflows").text
    assert "create_blueprint" not in text
    assert "workflows" not in text.replace("operate its workflows", "")


def test_auth_is_asked_with_the_request(make_site):
    site = make_site(auth=lambda request: request.headers.get("X-Staff") == "yes")
    client = site.test_client()
    assert client.get("/pgbus/workflows").status_code == 403
    assert client.get("/pgbus/workflows", headers={"X-Staff": "yes"}).status_code == 200


def test_an_open_door_is_logged(bus, caplog):
    caplog.set_level(logging.WARNING, "pgbus.dashboard")
    create_blueprint(bus, name="console", auth=allow_anyone)
    assert "console lets anybody in" in caplog.text


def test_every_address_answers_only_the_methods_it_is_made_for(site, client):
    for address in addresses(site):
        for method in ("PUT", "PATCH", "DELETE", "OPTIONS"):
            assert client.open(address, method=method).status_code in (404, 405), (method, address)


def test_an_address_that_is_none_is_our_own_not_found_page(make_site):
    site = make_site()
    site.register_error_handler(NotFound, lambda _error: ("the host's page", 404))
    answer = site.test_client().get("/pgbus/no/such/page")
    assert (answer.status_code, "No such page" in answer.text) == (404, True)


def test_every_answer_has_a_strict_policy(client):
    for path in ("/pgbus/workflows", "/pgbus/nothing", "/pgbus/workflows?created_from=x"):
        headers = client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "Cookie" in headers["Vary"]


def test_no_page_has_a_style_or_script_of_its_own_inside(client):
    text = client.get("/pgbus/workflows").text
    assert " style=" not in text
    assert "<style" not in text
    assert " onclick=" not in text
    assert text.count("<script") == text.count('<script src="/pgbus/assets/')


def test_a_form_without_our_token_does_nothing(client):
    client.get("/pgbus/workflows")
    answer = client.post("/pgbus/preferences", data={"theme": "dark"})
    assert (answer.status_code, "Nothing was done" in answer.text) == (400, True)
    assert "pgbus_theme" not in answer.headers.get("Set-Cookie", "")


def test_a_form_with_anothers_token_does_nothing(site, client):
    text = site.test_client().get("/pgbus/workflows").text
    token = text.split('name="csrf_token" value="')[1].split('"')[0]
    client.get("/pgbus/workflows")
    answer = client.post("/pgbus/preferences", data={"theme": "dark", "csrf_token": token})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"WTF_CSRF_ENABLED": False},
        {"WTF_CSRF_CHECK_DEFAULT": False},
        {"WTF_CSRF_FIELD_NAME": "host_token"},
    ],
    ids=str,
)
@pytest.mark.parametrize("exempt", [False, True])
def test_forms_are_checked_beside_any_protection_of_the_host(make_site, config, exempt):
    site = make_site()
    site.config.update(config)
    protection = CSRFProtect(site)
    if exempt:
        protection.exempt(site.blueprints["pgbus"])
    client = site.test_client()
    field = config.get("WTF_CSRF_FIELD_NAME", "csrf_token")
    text = client.get("/pgbus/workflows").text
    token = text.split(f'name="{field}" value="')[1].split('"')[0]
    assert client.post("/pgbus/preferences", data={"theme": "dark"}).status_code == 400
    good = client.post("/pgbus/preferences", data={"theme": "dark", field: token})
    assert good.status_code == 303


def test_without_a_secret_key_pages_are_read_and_nothing_is_done(make_site):
    client = make_site(secret_key=None).test_client()
    assert client.get("/pgbus/workflows").status_code == 200
    answer = client.post("/pgbus/preferences", data={"theme": "dark"})
    assert (answer.status_code, "SECRET_KEY" in answer.text) == (503, True)


@pytest.mark.parametrize(
    "back",
    [
        *("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"),
        *("/elsewhere", "", "\r\nX: y", "/pgbus", "/pgbusx"),
    ],
)
def test_a_choice_leads_back_into_the_dashboard_only(press, back):
    answer = press("/pgbus/preferences", theme="dark", back=back)
    assert (answer.status_code, answer.location) == (303, "/pgbus/")


def test_a_choice_leads_back_to_where_it_was_made(press):
    answer = press("/pgbus/preferences", theme="dark", back="/pgbus/workflows?status=paused")
    assert answer.location == "/pgbus/workflows?status=paused"


def test_more_than_a_form_may_hold_is_refused(press):
    answer = press("/pgbus/preferences", theme="x" * 1_000_000)
    assert answer.status_code == 413


def test_an_asset_is_kept_only_under_the_address_of_its_content(client):
    text = client.get("/pgbus/workflows").text
    address = text.split('rel="stylesheet" href="')[1].split('"')[0]
    assert "immutable" in client.get(address).headers["Cache-Control"]
    old = client.get("/pgbus/assets/old/console.css")
    assert (old.status_code, old.headers["Cache-Control"]) == (200, "no-store")
    assert client.get("/pgbus/assets/old/../blueprint.py").status_code == 404


def test_scripts_go_out_compressed(client):
    answer = client.get("/pgbus/assets/x/plotly.js", headers={"Accept-Encoding": "gzip, br"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(answer.data) < 2_000_000


@pytest.fixture
def crowded(bus):
    """An application with everything of its own: two dashboards, Babel, CSRF, pages of our names."""
    site = Flask("crowded")
    site.secret_key = "k"
    Babel(site, locale_selector=lambda: "de")
    CSRFProtect(site)
    site.jinja_env.globals["url"] = site.jinja_env.globals["m"] = "the host's"
    site.context_processor(lambda: {"page": "the host's", "_": None})
    site.register_error_handler(Exception, lambda _error: ("the host's", 500))
    for name in ("pgbus", "second"):
        blueprint = create_blueprint(bus, name=name, auth=allow_anyone)
        site.register_blueprint(blueprint, url_prefix=f"/admin/{name}")
    return site


def test_two_dashboards_stand_in_one_application_at_any_prefix(crowded):
    client = crowded.test_client()
    for name in ("pgbus", "second"):
        text = client.get(f"/admin/{name}/workflows").text
        assert f'href="/admin/{name}/workflows' in text
        other = "second" if name == "pgbus" else "pgbus"
        assert f"/admin/{other}/" not in text


def test_the_hosts_own_language_choice_is_followed(crowded):
    text = crowded.test_client().get("/admin/pgbus/workflows").text
    assert '<html lang="de"' in text


def test_behind_a_proxy_that_strips_a_prefix_all_links_carry_it(client):
    text = client.get("/pgbus/workflows", environ_overrides={"SCRIPT_NAME": "/inner"}).text
    assert 'href="/inner/pgbus/workflows' in text
    assert 'href="/pgbus/' not in text
