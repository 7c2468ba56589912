"""A bus on the test's database, and a worker in the test's hands."""

from __future__ import annotations

import pytest
from support.driving import Driver

from pgbus import Pgbus


@pytest.fixture
def bus(database):
    bus = Pgbus(database_url=database.url)
    yield bus
    bus.close()


@pytest.fixture
def driver(bus):
    return Driver(bus)
