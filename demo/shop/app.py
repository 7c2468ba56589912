"""The application: its database, its bus, its gateway."""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING

from flask import Flask, url_for
from sqlalchemy import create_engine

# Their classes and jobs are known to every process that loads the application.
from demo.shop import receipts, workflows  # noqa: F401 (declares the workflows and the job)
from demo.shop.gateway import Gateway
from demo.shop.models import Order, Session, install
from demo.shop.views import shop
from demo.shop.webhooks import webhooks
from pgbus import Pgbus
from pgbus.dashboard import create_blueprint

if TYPE_CHECKING:
    from flask import Request


def create_app(database_url: str) -> Flask:
    """Return the shop on a database that holds its tables and those of pgbus."""
    app = Flask(__name__)
    app.secret_key = os.environ.get("SHOP_SECRET_KEY") or secrets.token_hex(32)
    made = app.extensions["pgbus"] = Pgbus(
        database_url=database_url,
        session_factory=Session,
        around=app.app_context,
        threads=4,
        # Short, so that a killed worker is soon noticed; every step here may be tried again.
        visibility_timeout=timedelta(seconds=5),
        # Deadlines of seconds, so that one can be watched passing.
        workflow_sweep_interval=timedelta(seconds=2),
        workflow_stall_action="reattempt",
        shutdown_timeout=timedelta(seconds=8),
    )
    engine = create_engine(made.settings.database_url)
    Session.configure(bind=engine)
    app.extensions["gateway"] = Gateway(engine)
    app.register_blueprint(shop)
    app.register_blueprint(webhooks)
    console = create_blueprint(made, auth=from_here, subject_url=subject_url)
    app.register_blueprint(console, url_prefix="/pgbus")
    return app


def from_here(request: Request) -> bool:
    """Let the browsers of this machine in; a shop of your own asks who is signed in."""
    return request.remote_addr == "127.0.0.1"


def subject_url(subject_type: str, subject_id: str) -> str | None:
    """Return the shop's own page of what a run is about."""
    if subject_type == Order.__name__:
        return url_for("shop.order", order_id=subject_id)
    return url_for("shop.vendors")


def bus() -> Pgbus:
    """Return the bus for `pgbus start --app demo.shop.app:bus` and its like."""
    app = create_app(os.environ["SHOP_DATABASE_URL"])
    made: Pgbus = app.extensions["pgbus"]
    return made


def prepare(app: Flask) -> None:
    """Bring the database to what the application needs; safe to run at every start."""
    made: Pgbus = app.extensions["pgbus"]
    made.migrate()
    gateway: Gateway = app.extensions["gateway"]
    gateway.install()
    install()
