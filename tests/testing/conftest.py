"""A bus on the test's database, a worker that is not the helpers', and runs that end with the test."""

from __future__ import annotations

import pytest
from support.driving import Driver
from support.replay import assert_trail_replays

from pgbus import Pgbus


@pytest.fixture
def bus_options():
    """What else the bus is made with; a module overrides it."""
    return {}


@pytest.fixture
def bus(database, bus_options):
    bus = Pgbus(database_url=database.url, **bus_options)
    yield bus
    bus.close()
    assert_trail_replays(database)


@pytest.fixture
def driver(bus):
    return Driver(bus)
