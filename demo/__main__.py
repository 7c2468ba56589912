"""`python -m demo`: the database, the workers, the shop and a customer, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from waitress.server import create_server  # type: ignore[import-untyped]

from demo.customer import Customer
from demo.shop.app import create_app, prepare
from demo.trail import Trail
from pgbus.engine.embedded import EmbeddedPostgres
from pgbus.engine.errors import PgbusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask

_HOST = "127.0.0.1"
_PROJECT = Path(__file__).resolve().parent.parent
_BUS = "demo.shop.app:bus"
_TICK = 0.2
#: Longer than the workers' own `shutdown_timeout`.
_PATIENCE = 20


def main() -> int:
    """Runs the demo; 0 when it was stopped or is done, 1 when it could not go on."""
    options = _options()
    try:
        listener = socket.create_server((_HOST, options.port))
    except OSError as problem:
        print(
            f"Port {options.port} cannot be used ({problem.strerror}): stop what listens there, or "
            f"choose another with `python -m demo --port {options.port + 1}`.",
            file=sys.stderr,
        )
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with listener:
        try:
            return _run(options, listener)
        except KeyboardInterrupt:
            return 0


def _run(options: argparse.Namespace, listener: socket.socket) -> int:
    with ExitStack() as parts:
        database_url = parts.enter_context(_database(options.data))
        app = create_app(database_url)
        parts.callback(app.extensions["pgbus"].close)
        prepare(app)
        log = options.data / "workers.log"
        workers = parts.enter_context(_workers(database_url, log))
        parts.enter_context(_served(app, listener))
        trail = parts.enter_context(Trail(database_url))
        _greet(options.port, database_url, trail)
        parts.callback(trail.print_summary)
        parts.callback(_ignore_signals)
        customer = Customer(
            f"http://{_HOST}:{options.port}", rate=options.rate, orders=options.orders
        )
        return _watch(customer, trail, workers, until_idle=options.until_idle)


def _watch(
    customer: Customer, trail: Trail, workers: subprocess.Popen[bytes], *, until_idle: bool
) -> int:
    tick = threading.Event()
    while workers.poll() is None:
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
    parser.add_argument("--rate", type=float, default=0.5, help="orders a second (0.5)")
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
    return options


@contextmanager
def _database(folder: Path) -> Iterator[str]:
    """The URL of an embedded PostgreSQL that runs within the context and keeps its data."""
    try:
        server = EmbeddedPostgres(folder / "postgres", database="shop")
    except PgbusError as refusal:
        elsewhere = Path(f"/var/tmp/pgbus-demo-{os.getuid()}")  # noqa: S108 (its owner's alone)
        print(f"{refusal}. The demo's data goes to {elsewhere} instead.")
        server = EmbeddedPostgres(elsewhere / "postgres", database="shop")
    try:
        yield server.start()
    finally:
        server.stop()


@contextmanager
def _workers(database_url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`pgbus start`, as it runs in production; a session of its own keeps Ctrl-C from it."""
    pgbus = Path(sys.executable).with_name("pgbus")
    with log.open("ab") as records:
        supervisor = subprocess.Popen(  # noqa: S603 (our own command line)
            [pgbus, "start", "--app", _BUS, "--workers", "2"],
            cwd=_PROJECT,
            env={**os.environ, "SHOP_DATABASE_URL": database_url},
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


def _greet(port: int, database_url: str, trail: Trail) -> None:
    print(f"The shop is at http://{_HOST}:{port}/orders; Ctrl-C stops it and keeps its data.")
    print("To look at its runs from another terminal, in this folder:")
    print(f"  export SHOP_DATABASE_URL='{database_url}' PGBUS_APP={_BUS}")
    print("  .venv/bin/pgbus workflows list")
    print()
    trail.print_summary()


def _ignore_signals() -> None:
    """From here on everything is being stopped; a second Ctrl-C must not leave half of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("Stopping ...", flush=True)


if __name__ == "__main__":
    sys.exit(main())
