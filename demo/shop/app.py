"""The application: its database, its bus, its gateway."""

from __future__ import annotations

import os
from datetime import timedelta

from flask import Flask
from sqlalchemy import create_engine

# Their classes and jobs are known to every process that loads the application.
from demo.shop import receipts, workflows  # noqa: F401 (declares the workflows and the job)
from demo.shop.gateway import Gateway
from demo.shop.models import Session, install
from demo.shop.views import shop
from demo.shop.webhooks import webhooks
from pgbus import Pgbus


def create_app(database_url: str) -> Flask:
    """Return the shop on a database that holds its tables and those of pgbus."""
    app = Flask(__name__)
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
    return app


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
