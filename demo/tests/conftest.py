"""The shop on a database for tests, new for every test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.shop.app import create_app, prepare
from demo.shop.models import Base, Session, install

if TYPE_CHECKING:
    from flask import Flask
    from flask.testing import FlaskClient

    from pgbus import Pgbus


@pytest.fixture(scope="session")
def app(pgbus_database_url: str) -> Flask:
    app = create_app(pgbus_database_url)
    prepare(app)
    return app


@pytest.fixture(scope="session")
def pgbus_application_bus(app: Flask) -> Pgbus:
    bus: Pgbus = app.extensions["pgbus"]
    return bus


@pytest.fixture
def customer(app: Flask, pgbus_bus: Pgbus) -> FlaskClient:
    """A customer of a shop without orders, its shelves as on the first day."""
    with Session.begin() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    install()
    return app.test_client()
