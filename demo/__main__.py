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

from demo.customer import Customer
from demo.shop.app import create_app, prepare
from demo.trail import Trail
from pgbus.engine.embedded import EmbeddedPostgres
from pgbus.engine.errors import PgbusError
from sqlalchemy import make_url
from waitress.server import create_server

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
        workers = parts.enter_context(_workers(database_url))
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
