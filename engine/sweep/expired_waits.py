"""Waits past their deadline: each gets its step's `on_timeout`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pgbus.engine.runner import waits
from pgbus.engine.storage import sweeping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.storage.sweeping import ExpiredWait
    from pgbus.engine.sweep.round import Round

BATCH = 500
BATCHES = 20


def sweep(turn: Round) -> int:
    """Return how many waits timed out, or were told that they are late."""
    return sum(
        turn.repair(
            wait.workflow_id, partial(waits.expire, turn.services, turn.worker, wait.workflow_id)
        )
        for wait in _found(turn)
    )


def _found(turn: Round) -> Iterator[ExpiredWait]:
    last: ExpiredWait | None = None
    for _ in range(BATCHES):
        with turn.services.database.autocommit() as connection:
            batch = sweeping.expired_waits(connection, after=last, limit=BATCH)
        yield from batch
        if len(batch) < BATCH or turn.is_over():
            return
        last = batch[-1]
