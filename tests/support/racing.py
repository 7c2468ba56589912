"""Calls that are let go at the same moment, and the locks they wait for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import AlreadyRunning, InvalidTransition

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.database import Database


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each of `works` gave, or with which of the expected refusals it lost."""
    barrier = threading.Barrier(len(works))

    def go(work: Callable[[], Any]) -> Any:
        barrier.wait(20)
        try:
            return work()
        except (InvalidTransition, AlreadyRunning) as refused:
            return refused

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(go, works))


def waiting_for_a_lock(database: Database) -> int:
    """How many connections wait for a lock."""
    return database.value(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
