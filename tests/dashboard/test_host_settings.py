"""What the host decides, also when its callables raise."""

from __future__ import annotations

import logging
from zoneinfo import ZoneInfo

import pytest
from flask import Flask, Response, redirect, request
from flask_login import LoginManager, UserMixin, login_user
from werkzeug.local import LocalProxy

from pgbus.dashboard.host import HIDDEN, PARTIAL, Host, is_safe_link, logged_in


def raising(*_args):
    raise RuntimeError("the host's own fault")


@pytest.fixture
def logged(caplog):
    """Tells which settings the log says raised."""
    caplog.set_level(logging.WARNING, "pgbus.dashboard")
    return lambda: [record.args[0] for record in caplog.records if record.exc_info]


class Unsure:
    def __bool__(self):
        raise RuntimeError("no truth value")


async def promising(*_args):
    return True


@pytest.mark.parametrize(
    "auth",
    [
        *(None, raising, lambda _request: Unsure(), lambda _request: ""),
        # True to Python: what a coroutine would say is not known, and a redirect leads to a login.
        *(promising, lambda _request: redirect("/login"), lambda _request: Response("", 401)),
    ],
)
def test_who_cannot_be_let_in_for_sure_is_not(auth):
    assert not Host(auth=auth).lets_in(object())


def test_an_auth_that_raises_is_logged(logged):
    Host(auth=raising).lets_in(object())
    assert logged() == ["auth"]


def test_a_truth_value_lets_in():
    assert Host(auth=lambda given: given == "a request").lets_in("a request") is True


@pytest.mark.parametrize("staff", [True, False])
def test_what_stands_for_something_else_is_taken_for_that(staff):
    answer = LocalProxy(lambda: staff)
    assert Host(auth=lambda _request: answer).lets_in(object()) is staff


def test_everything_is_allowed_unless_can_says_no(logged):
    only_pause = Host(can=lambda _request, action: action == "pause")
    assert Host().allows(object(), "cancel")
    assert only_pause.allows(object(), "pause")
    assert not only_pause.allows(object(), "cancel")
    assert not Host(can=raising).allows(object(), "pause")
    assert not Host(can=promising).allows(object(), "pause")
    assert logged() == ["can", "can"]


@pytest.mark.parametrize(
    ("web_actor", "actor"),
    [
        (None, "dashboard"),
        (lambda _request: " alice ", "dashboard:alice"),
        (lambda _request: "佐藤 葵", "dashboard:佐藤 葵"),
        (lambda _request: None, "dashboard"),
        (lambda _request: "  ", "dashboard"),
        (lambda _request: 7, "dashboard"),
        (raising, "dashboard"),
        (lambda _request: "x" * 900, "dashboard:" + "x" * 200),
    ],
)
def test_the_trail_names_the_operator_as_far_as_known(web_actor, actor):
    assert Host(web_actor=web_actor).actor(object()) == actor


def test_an_operator_without_a_name_is_logged(caplog):
    Host(web_actor=lambda _request: "").actor(object())
    assert "web_actor gave no name" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "https://shop.example/orders/7",
        "http://[::1]:8000/x",
        "/orders/7",
        "/",
    ],
)
def test_a_safe_address_is_linked(url):
    assert Host(subject_url=lambda _type, _id: url).url_of_subject("Order", "7") == url


@pytest.mark.parametrize(
    "url",
    [
        *("javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:alert(1)", "data:text/html,x"),
        *(
            "//evil.example/x",
            "/\\evil.example",
            "\\\\evil.example",
            "https:evil.example",
            "https://",
        ),
        *("https:///x", "http://[::1", "ftp://x/y", "orders/7", "", "/x\n/y", "/\t/evil.example"),
        *("https://shop.example/\x00", None, 7, b"/x"),
    ],
)
def test_any_other_address_stays_text(url):
    assert Host(subject_url=lambda _type, _id: url).url_of_subject("Order", "7") is None


def test_a_subject_url_that_raises_is_logged_and_not_linked(logged):
    assert Host(subject_url=raising).url_of_subject("Order", "7") is None
    assert logged() == ["subject_url"]


@pytest.mark.parametrize("back", ["//x", "/\\x", "https://x", "x", "/\r\nx"])
def test_the_way_back_stays_on_this_site(back):
    assert not is_safe_link(back) or back.startswith("https://")


def test_redact_decides_what_is_shown_and_hides_when_it_raises(logged):
    assert Host().shown("output", {"a": 1}) == {"a": 1}
    assert Host(redact=lambda kind, value: (kind, value)).shown("error", "x") == ("error", "x")
    assert Host(redact=raising).shown("output", "secret") == HIDDEN
    assert logged() == ["redact"]


def test_a_text_whose_end_is_missing_is_shown_only_where_nothing_is_redacted():
    assert Host().shown("error", "token abc", whole=False) == "token abc"
    hiding = Host(redact=lambda _kind, value: value)
    assert hiding.shown("error", "token abc", whole=False) == PARTIAL


@pytest.mark.parametrize(
    ("wish", "zone"),
    [
        (None, "UTC"),
        ("Europe/Berlin", "Europe/Berlin"),
        (lambda _request: "Asia/Tokyo", "Asia/Tokyo"),
        (lambda _request: None, "UTC"),
        (raising, "UTC"),
        ("Nowhere/Land", "UTC"),
        ("../../etc/passwd", "UTC"),
    ],
)
def test_the_zone_falls_back_to_the_configured_one(wish, zone):
    assert Host(time_zone=wish).zone(object(), "UTC") == ZoneInfo(zone)


@pytest.mark.parametrize(
    ("wish", "language"),
    [(None, None), ("de", "de"), (lambda _request: "fr", "fr"), (raising, None)],
)
def test_the_language_is_the_hosts_or_the_viewers(wish, language):
    assert Host(locale=wish).language(object()) == language


def test_flask_login_says_who_is_let_in():
    site = Flask("host")
    site.secret_key = "k"
    manager = LoginManager(site)
    user = UserMixin()
    user.id = "alice"
    manager.user_loader(lambda _id: user)
    with site.test_request_context():
        assert not logged_in(request)
        login_user(user)
        assert logged_in(request)
