"""The tools over streamable HTTP, for any ASGI server."""

from __future__ import annotations

import hmac
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pgbus.mcp_server.server import build

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import Receive, Scope, Send

    from pgbus.engine.bus import Pgbus

_log = logging.getLogger("pgbus.mcp")

Auth = Callable[[Request], object]

#: This machine's own names.
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


def create_app(
    bus: Pgbus,
    *,
    token: str | None = None,
    auth: Auth | None = None,
    allow_unauthenticated: bool = False,
    allow_payloads: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> Starlette:
    """Return an ASGI application that serves the tools at whatever path it is mounted.

    A call needs the bearer `token`, or that `auth`, a function or coroutine function of the request, returns
    something true. With neither, raise `ValueError`, unless `allow_unauthenticated`. Besides this machine's own
    names it answers to those of `allowed_hosts`, with any port. With `allow_payloads` a call may ask for
    arguments, outputs, payloads and error texts.
    """
    if not (token or auth or allow_unauthenticated):
        raise ValueError(
            "Say who may call the tools: token='a long secret', or auth=a callable of the request; "
            "allow_unauthenticated=True lets in everybody who can reach it."
        )
    if token and auth:
        raise ValueError("Give token= or auth=, not both.")
    if not (token or auth):
        can = "read and change runs" if bus.settings.mcp_write_tools else "read what runs do"
        _log.warning("The MCP server lets in everybody: whoever can reach it can %s.", can)
    endpoint = _Endpoint(
        server=build(bus, allow_payloads=allow_payloads),
        token=token,
        auth=auth,
        names=_names(allowed_hosts),
    )
    return Starlette(routes=[Route("/{path:path}", endpoint)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    """One exchange for each request, which needs nothing of those before: any process can answer it."""

    server: Server[Any]
    token: str | None
    auth: Auth | None
    names: TransportSecuritySettings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._refusal(Request(scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        # One that lived longer would need its lifespan run, which no host does for what it mounts.
        exchange = StreamableHTTPSessionManager(
            self.server, json_response=True, stateless=True, security_settings=self.names
        )
        async with exchange.run():
            await exchange.handle_request(scope, receive, send)

    async def _refusal(self, request: Request) -> Response | None:
        if self.token and not _has_token(request, self.token):
            return PlainTextResponse("Give the token.", 401, {"WWW-Authenticate": "Bearer"})
        if self.auth and not await _lets_in(self.auth, request):
            return PlainTextResponse("The application does not let you in.", 403)
        if request.method != "POST":
            return PlainTextResponse("Calls are posted.", 405, {"Allow": "POST"})
        return None


def _has_token(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode("latin-1"), token.encode()
    )


async def _lets_in(auth: Auth, request: Request) -> bool:
    """Tell whether the host says yes; what raises, or only looks like a yes, is none."""
    try:
        answer = await run_in_threadpool(auth, request)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception:  # noqa: BLE001 (the host's own code may raise anything)
        _log.exception("The MCP server's auth raised; nobody is let in.")
        return False
    return bool(answer) and not isinstance(answer, Response)


def _names(hosts: Sequence[str]) -> TransportSecuritySettings:
    """Return by which names the server may be asked: any other may be a page's trick on a browser here."""
    names = [*_LOCAL, *hosts]
    return TransportSecuritySettings(
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        allowed_origins=[
            f"{scheme}://{form}"
            for name in names
            for scheme in ("http", "https")
            for form in (name, f"{name}:*")
        ],
    )
