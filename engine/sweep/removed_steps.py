"""Runs that wait on a step which their class has removed: they move on, as any run that comes to one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.runner import waits
from pgbus.engine.storage import sweeping

if TYPE_CHECKING:
    from pgbus.engine.sweep.round import Round

LIMIT = 500


def sweep(turn: Round) -> int:
    """Return how many runs were woken."""
    removed = [
        f"{definition.name}#{step}"
        for definition in registry.definitions()
        for step in definition.removed
    ]
    if not removed:
        return 0
    with turn.services.database.autocommit() as connection:
        waiting = sweeping.waiting_on(connection, removed, limit=LIMIT)
    return sum(
        turn.repair(run, partial(waits.release, turn.services, turn.worker, run)) for run in waiting
    )
