"""`pgbus dashboard`: the console by itself, on waitress."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from flask import Flask, redirect, request, url_for
from waitress.server import create_server  # type: ignore[import-untyped] # it is without types

from pgbus.dashboard.blueprint import create_blueprint
from pgbus.dashboard.host import allow_anyone
from pgbus.engine.cli.app import AppFailure, app_option, import_module, opened
from pgbus.engine.cli.failures import BadSetting

if TYPE_CHECKING:
    from collections.abc import Callable

    from werkzeug.wrappers import Response

    from pgbus.engine.bus import Pgbus


@click.command()
@app_option()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8900, show_default=True)
@click.option(
    "--auth",
    metavar="MODULE:ATTRIBUTE",
    help="Your callable of the request: a truth value lets it in.",
)
@click.option(
    "--allow-anyone", "open_door", is_flag=True, help="Let everybody in who can reach it."
)
@click.option(
    "--secret-key",
    envvar="PGBUS_DASHBOARD_SECRET_KEY",
    show_envvar=True,
    help="Signs forms; several processes need the same. Else made anew at each start.",
)
@click.option(
    "--metrics-token",
    envvar="PGBUS_DASHBOARD_METRICS_TOKEN",
    show_envvar=True,
    help="Lets whoever has it as a bearer token read /pgbus/metrics, and nothing else.",
)
def dashboard(
    app: str | None,
    host: str,
    port: int,
    auth: str | None,
    *,
    open_door: bool,
    secret_key: str | None,
    metrics_token: str | None,
) -> None:
    """Serve the operator's console by itself, at /pgbus."""
    if bool(auth) == open_door:
        raise click.UsageError(
            "say who is let in: --auth module:callable, or --allow-anyone on a machine that only "
            "you can reach."
        )
    with opened(app) as bus:
        lets_in = _callable(auth) if auth else allow_anyone
        bus.check_schema()
        with _listening(host, port) as listener:
            site = standalone(
                bus, lets_in, secret_key or secrets.token_hex(32), metrics_token=metrics_token
            )
            if ip_address(listener.getsockname()[0]).is_loopback:
                site.before_request(_refuse_other_names)
            _serve(site, listener)


def standalone(
    bus: Pgbus,
    auth: Callable[..., object],
    secret_key: str,
    *,
    metrics_token: str | None = None,
) -> Flask:
    """Return an application that is nothing but the console of a bus."""
    site = Flask("pgbus.dashboard.standalone")
    site.secret_key = secret_key
    site.config["SESSION_COOKIE_SAMESITE"] = "Lax"
    # One of a neighbour on the same host, on another port, would be overwritten else.
    site.config["SESSION_COOKIE_NAME"] = "pgbus_session"
    # Who may be anyone is whoever started it; of others the callable has told no name.
    user = os.environ.get("USER") if auth is allow_anyone else None
    site.register_blueprint(
        create_blueprint(
            bus,
            auth=auth,
            web_actor=(lambda _request: user) if user else None,
            metrics_token=metrics_token,
        ),
        url_prefix="/pgbus",
    )
    site.add_url_rule("/", "root", _to_home)
    return site


def _refuse_other_names() -> tuple[str, int] | None:
    """Refuse what asks by a name that is not this machine's own.

    Else any page of the web could ask through a name of its own that leads here. Flask's trusted
    hosts know no IPv6 addresses.
    """
    name = urlsplit(f"//{request.host}").hostname or ""
    try:
        own = name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        own = False
    return None if own else (f"This console listens on localhost, not on {name}.", 400)


def _to_home() -> Response:
    return redirect(url_for("pgbus.home"))


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as problem:
        raise BadSetting(
            f"Port {port} of {host} cannot be used: {problem.strerror}. Choose others with --port and "
            "--host; port 0 is any that is free."
        ) from None


def _serve(site: Flask, listener: socket.socket) -> None:
    """Answer until Ctrl-C or SIGTERM."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, _end)
    host, port = listener.getsockname()[:2]
    at = f"[{host}]" if ":" in host else host
    server = create_server(site, sockets=[listener])
    click.echo(f"The console is at http://{at}:{port}/pgbus/; Ctrl-C stops it.")
    try:
        server.run()
    finally:
        server.close()


def _end(_number: int, _frame: object) -> None:
    raise SystemExit


def _callable(named: str) -> Callable[..., Any]:
    module, _, attribute = named.partition(":")
    if not module or not attribute:
        raise click.BadParameter(
            f"{named!r} is not of the form module:attribute, such as shop.console:is_staff.",
            param_hint="--auth",
        )
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # the host's own code may raise anything
        raise AppFailure(named, error) from error
    if not callable(found):
        raise click.BadParameter(f"{named} is no callable.", param_hint="--auth")
    return found  # type: ignore[no-any-return] # what it returns is not known
