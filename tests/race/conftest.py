"""A bus on the test's database."""

from __future__ import annotations

import pytest
from support.replay import assert_trail_replays

from pgbus import Pgbus


@pytest.fixture
def bus(database):
    bus = Pgbus(database_url=database.url)
    yield bus
    bus.close()
    assert_trail_replays(database)
