"""A bus on the test's database, and a worker in the test's hands."""

from __future__ import annotations

import pytest
from support.driving import Driver
from support.replay import assert_trail_replays

from pgbus import Pgbus


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "rows_by_hand: the test writes rows that no trail leads to, so none is replayed"
    )


@pytest.fixture
def bus_options():
    """What else the bus is made with; a module overrides it."""
    return {}


@pytest.fixture
def bus(database, bus_options, request):
    """A bus; when the test is over, the trail of every run is replayed to its rows."""
    bus = Pgbus(database_url=database.url, **bus_options)
    yield bus
    bus.close()
    if not request.node.get_closest_marker("rows_by_hand"):
        assert_trail_replays(database)


@pytest.fixture
def driver(bus):
    return Driver(bus)
