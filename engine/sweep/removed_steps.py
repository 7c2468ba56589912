"""Runs that wait for a signal on a step which, by their class, waits for none any more: they go on."""

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
    not_waiting = [
        (definition.name, step.name)
        for definition in registry.definitions()
        for step in definition.steps
        if step.wait_for is None
    ]
    with turn.services.database.autocommit() as connection:
        waiting = sweeping.waiting_on(connection, not_waiting, limit=LIMIT)
    return sum(
        turn.repair(run, partial(waits.release, turn.services, turn.worker, run)) for run in waiting
    )
