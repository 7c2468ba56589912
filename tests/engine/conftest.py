"""A bus on the test's database, and a worker in the test's hands."""

from __future__ import annotations

import pytest
from support.driving import Driver
from support.replay import assert_trail_replays

from pgbus import Pgbus


@pytest.fixture
def bus(database):
    bus = Pgbus(database_url=database.url)
    yield bus
    bus.close()
    assert_trail_replays(database)


@pytest.fixture
def driver(bus):
    return Driver(bus)
