"""`python -m demo`: the database, the workers, the shop and a customer, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from waitress.server import create_server  # type: ignore[import-untyped]

from demo.customer import BASKETS, Customer
from demo.partners import Partners
from demo.shop.app import create_app, prepare
from demo.trail import Trail
from pgbus import PgbusError
from pgbus.engine.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask

_HOST = "127.0.0.1"
_PROJECT = Path(__file__).resolve().parent.parent
_BUS = "demo.shop.app:bus"
#: Ctrl-C, `kill`, a closed terminal.
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PORTS = 65_536
_TICK = 0.2
#: Longer than the workers' own `shutdown_timeout`.
_PATIENCE = 20
#: What the workers say they run, unless the environment says otherwise: start one with another, and compare.
_REVISION = "shop-1.0"


def main() -> int:
    """Run the demo; 0 when it was stopped or is done, 1 when it could not go on."""
    options = _options()
    try:
        listener = socket.create_server((_HOST, options.port))
    except OSError as problem:
        print(
            f"Port {options.port} cannot be used ({os.strerror(problem.errno or 0)}). Stop what listens "
            "there, or choose another: .venv/bin/python -m demo --port 8001",
            file=sys.stderr,
        )
        return 1
    stop = _Stop()
    with listener:
        try:
            return _run(options, listener, stop)
        except Exception:
            # Ctrl-C reaches all that the terminal runs: while PostgreSQL is set up, that too.
            if stop.wanted:
                return 0
            raise


class _Stop:
    """Whether a signal asked for the end; the handler does no more than note it."""

    def __init__(self) -> None:
        self.wanted = False
        for ending in _ENDINGS:
            signal.signal(ending, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self.wanted = True


def _run(options: argparse.Namespace, listener: socket.socket, stop: _Stop) -> int:
    with ExitStack() as parts:
        home, server = _housed(options.data)
        print(f"PostgreSQL starts; its data and the workers' log are in {home}.", flush=True)
        parts.callback(server.stop)
        database_url = server.start()
        app = create_app(database_url)
        parts.callback(app.extensions["pgbus"].close)
        prepare(app)
        workers = parts.enter_context(_workers(database_url, home / "workers.log"))
        parts.enter_context(_served(app, listener))
        shop_url = f"http://{_HOST}:{options.port}"
        trail = parts.enter_context(closing(Trail(database_url, shop_url)))
        _greet(shop_url, database_url, trail)
        partners = Partners(database_url, shop_url)
        parts.enter_context(partners.calling())
        customer = Customer(shop_url, partners, rate=options.rate, orders=options.orders)
        status = _watch(customer, trail, workers, stop, until_idle=options.until_idle)
        print("Stopping ...", flush=True)
        trail.print_summary()
        return status


def _watch(
    customer: Customer,
    trail: Trail,
    workers: subprocess.Popen[bytes],
    stop: _Stop,
    *,
    until_idle: bool,
) -> int:
    tick = threading.Event()
    while workers.poll() is None:
        if stop.wanted:
            return 0
        customer.shop()
        trail.print_news()
        if until_idle and customer.done and trail.idle():
            trail.print_news()
            return 0
        tick.wait(_TICK)
    print(f"The workers' supervisor ended with status {workers.returncode}.", file=sys.stderr)
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="A shop on pgbus, with everything it needs."
    )
    parser.add_argument("--port", type=int, default=8000, help="where the shop listens (8000)")
    parser.add_argument(
        "--rate",
        type=float,
        default=0.25,
        help=f"orders a second (0.25), after the first {len(BASKETS)}, which come at once",
    )
    parser.add_argument("--orders", type=int, help="how many orders are placed (no end)")
    parser.add_argument(
        "--until-idle", action="store_true", help="end when nothing is left to do for a minute"
    )
    parser.add_argument(
        "--data", type=Path, default=_PROJECT / ".demo", help="the database's folder (.demo)"
    )
    options = parser.parse_args()
    if options.rate <= 0:
        parser.error("--rate must be above 0")
    if options.until_idle and options.orders is None:
        parser.error("--until-idle needs --orders: without, the orders never end")
    if not 0 < options.port < _PORTS:
        parser.error(f"--port must be from 1 to {_PORTS - 1}")
    return options


def _housed(wanted: Path) -> tuple[Path, EmbeddedPostgres]:
    """Return the folder that keeps the demo's data, and a server that can live there."""
    try:
        return wanted, EmbeddedPostgres(wanted / "postgres", database="shop")
    except PgbusError as refusal:
        elsewhere = Path(f"/var/tmp/pgbus-demo-{os.getuid()}")  # noqa: S108 (survives a restart)
        print(f"{refusal}. So the demo uses {elsewhere}.")
        return elsewhere, EmbeddedPostgres(elsewhere / "postgres", database="shop")


@contextmanager
def _workers(database_url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `pgbus start` as in production; a session of its own keeps Ctrl-C from it."""
    pgbus = Path(sys.executable).with_name("pgbus")
    with log.open("ab") as records:
        supervisor = subprocess.Popen(  # noqa: S603 (our own command line)
            [pgbus, "start", "--app", _BUS, "--workers", "2"],
            cwd=_PROJECT,
            env={"GIT_REVISION": _REVISION, **os.environ, "SHOP_DATABASE_URL": database_url},
            stderr=records,
            start_new_session=True,
        )
    try:
        yield supervisor
    finally:
        supervisor.terminate()
        try:
            supervisor.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            supervisor.kill()


@contextmanager
def _served(app: Flask, listener: socket.socket) -> Iterator[None]:
    server = create_server(app, sockets=[listener])
    thread = threading.Thread(target=server.run, name="shop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.close()
        thread.join(_TICK)


def _greet(shop_url: str, database_url: str, trail: Trail) -> None:
    print(f"The shop is at {shop_url}/orders; Ctrl-C stops it and keeps its data.")
    print(f"What its runs do, in words, and what you can do about them: {shop_url}/pgbus/")
    print("To look at its runs from another terminal, in this folder:")
    print(f"  export SHOP_DATABASE_URL='{database_url}' PGBUS_APP={_BUS}")
    print("  .venv/bin/pgbus workflows list                   # what is under way, and where")
    print("  .venv/bin/pgbus workflows list --status waiting  # for what, since and until when")
    print("  .venv/bin/pgbus workflows list --status paused   # and why")
    print("  .venv/bin/pgbus doctor                           # would anything be left lying?")
    print("Below, a line per event of a run; that a step starts, or is due at once, is left out.")
    print()
    trail.print_summary()
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
