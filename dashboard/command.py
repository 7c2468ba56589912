"""`pgbus dashboard`: the console by itself, on waitress."""

from __future__ import annotations

import importlib
import os
import secrets
from typing import TYPE_CHECKING, Any

import click
from flask import Flask, redirect, url_for
from waitress.server import create_server  # type: ignore[import-untyped]

from pgbus.dashboard.blueprint import create_blueprint
from pgbus.dashboard.host import allow_anyone
from pgbus.engine.cli.app import app_option, opened

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
def dashboard(
    app: str | None,
    host: str,
    port: int,
    auth: str | None,
    *,
    open_door: bool,
    secret_key: str | None,
) -> None:
    """Serve the operator's console by itself, at /pgbus."""
    if bool(auth) == open_door:
        raise click.UsageError(
            "say who is let in: --auth module:callable, or --allow-anyone on a machine that only "
            "you can reach."
        )
    with opened(app) as bus:
        bus.check_schema()
        lets_in = _callable(auth) if auth else allow_anyone
        site = standalone(bus, lets_in, secret_key or secrets.token_hex(32))
        server = create_server(site, host=host, port=port)
        click.echo(
            f"The console is at http://{host}:{server.effective_port}/pgbus/; Ctrl-C stops it."
        )
        try:
            server.run()
        finally:
            server.close()


def standalone(bus: Pgbus, auth: Callable[..., object], secret_key: str) -> Flask:
    """Return an application that is nothing but the console of a bus."""
    site = Flask("pgbus.dashboard.standalone")
    site.secret_key = secret_key
    site.config["SESSION_COOKIE_SAMESITE"] = "Lax"
    # One of a neighbour on the same host, on another port, would be overwritten else.
    site.config["SESSION_COOKIE_NAME"] = "pgbus_session"
    site.register_blueprint(
        create_blueprint(bus, auth=auth, web_actor=_operator), url_prefix="/pgbus"
    )
    site.add_url_rule("/", "root", _to_home)
    return site


def _to_home() -> Response:
    return redirect(url_for("pgbus.home"))


def _operator(_request: object) -> str | None:
    return os.environ.get("USER") or "standalone"


def _callable(named: str) -> Callable[..., Any]:
    module, _, attribute = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise click.BadParameter(
            f"{named} cannot be loaded: {problem}", param_hint="--auth"
        ) from None
    if not callable(found):
        raise click.BadParameter(f"{named} is no callable.", param_hint="--auth")
    return found  # type: ignore[no-any-return]
