"""A bus whose trails are replayed when the test is over."""

from __future__ import annotations

import pytest
from support.replay import assert_trail_replays


@pytest.fixture
def bus(database, bus):
    yield bus
    bus.close()
    assert_trail_replays(database)
