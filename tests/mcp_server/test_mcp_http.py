"""Who gets in over HTTP, by which names, and where the application can be mounted."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from a2wsgi import WSGIMiddleware
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route
from support.assistants import Assistant, listening
from support.sites import site_of

from pgbus.mcp_server.http import create_app

PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def asked(url, method="POST", **headers):
    """The status of a ping, and what is said besides."""
    request = Request(url, PING if method == "POST" else None, HEADERS | headers, method=method)
    try:
        with urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers)
    except HTTPError as refusal:
        return refusal.code, dict(refusal.headers)


def test_who_may_call_must_be_said_and_only_once(bus):
    for nothing in ({}, {"token": ""}, {"token": None, "auth": None}):
        with pytest.raises(ValueError, match="Say who may call the tools"):
            create_app(bus, **nothing)
    with pytest.raises(ValueError, match="not both"):
        create_app(bus, token="x", auth=lambda _request: True)


@pytest.mark.parametrize(
    ("bus_options", "can"),
    [({}, "read what runs do"), ({"mcp_write_tools": True}, "read and change runs")],
)
def test_the_open_door_warns_what_anybody_can_do(bus, caplog, can):
    create_app(bus, allow_unauthenticated=True)
    assert f"whoever can reach it can {can}." in caplog.text


def test_only_who_has_the_token_gets_in(url):
    for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic a long secret"},
                  {"Authorization": "Bearer a long secret\xe9"}):  # fmt: skip
        status, headers = asked(url, **wrong)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert asked(url, Authorization="bearer a long secret")[0] == 200
    assert asked(url, method="GET")[0] == 401


def test_it_is_only_posted_to(url):
    for method in ("GET", "DELETE", "PUT"):
        assert asked(url, method, Authorization="Bearer a long secret")[0] == 405


def staff(request):
    return request.headers.get("X-Staff") == "yes"


async def staff_later(request):
    return staff(request)


def broken(request):
    return staff(request) and 1 / 0


def to_login(_request):
    return RedirectResponse("/login")


@pytest.mark.parametrize(
    ("auth", "lets_in"), [(staff, True), (staff_later, True), (broken, False), (to_login, False)]
)
def test_auth_decides_and_what_only_looks_like_a_yes_is_none(bus, auth, lets_in):
    with listening(create_app(bus, auth=auth)) as url:
        assert asked(url)[0] == 403
        assert asked(url, **{"X-Staff": "yes"})[0] == (200 if lets_in else 403)


def test_it_answers_to_this_machines_names_and_to_those_that_it_is_given(bus):
    app = create_app(bus, allow_unauthenticated=True, allowed_hosts=["tools.example"])
    with listening(app) as url:
        for name in (
            "localhost",
            "localhost:8000",
            "[::1]:8000",
            "tools.example",
            "tools.example:8",
        ):
            assert asked(url, Host=name)[0] == 200, name
        assert asked(url, Host="evil.example")[0] == 421
        assert asked(url, Origin="https://tools.example")[0] == 200
        assert asked(url, Origin="https://evil.example")[0] == 403


def test_beside_a_flask_application_both_answer_and_no_lifespan_is_needed(bus):
    console = WSGIMiddleware(site_of(bus))
    tools = create_app(bus, token="a long secret")
    routes = [Route("/mcp", tools), Mount("/mounted", tools), Mount("/", console)]
    app = Starlette(routes=routes)
    with listening(app) as url:
        for path in ("mcp", "mounted/"):
            assistant = Assistant(f"{url}/{path}", authorization="Bearer a long secret")
            assert assistant.call("pgbus_workflows")["workflows"] == []
        with urlopen(f"{url}/pgbus/workflows", timeout=20) as page:
            assert page.status == 200
        assert asked(f"{url}/mcp")[0] == 401
    console.executor.shutdown()


def test_alone_it_answers_wherever_it_is_asked(url):
    assistant = Assistant(f"{url}/some/where", authorization="Bearer a long secret")
    assert assistant.call("pgbus_workflows")["total"] == 0
