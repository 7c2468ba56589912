"""Batches that ended and did not finish, and fan-outs that were not told that theirs did."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pgbus.engine.jobs.batch import told
from pgbus.engine.runner import waits
from pgbus.engine.storage import batches, sweeping

if TYPE_CHECKING:
    from pgbus.engine.sweep.round import Round

LIMIT = 500


def sweep(turn: Round) -> int:
    """Return how many batches were finished, and fan-outs resolved."""
    return _finish(turn) + _resolve(turn)


def _finish(turn: Round) -> int:
    with turn.services.database.autocommit() as connection:
        unfinished = sweeping.unfinished_batches(connection, limit=LIMIT)
    return sum(
        turn.attempt(f"batch {batch_id}", partial(_finish_one, turn, batch_id))
        for batch_id in unfinished
    )


def _finish_one(turn: Round, batch_id: str) -> bool:
    with turn.services.database.autocommit() as connection:
        finished = batches.finish(connection, batch_id)
        payloads = told(connection, batch_id if finished else None)
    turn.services.events.emit(*payloads)
    return finished


def _resolve(turn: Round) -> int:
    """Resolve fan-outs whose batch has long finished, or is gone."""
    threshold = turn.services.settings.workflow_stall_threshold
    with turn.services.database.autocommit() as connection:
        waiting = [
            *sweeping.unresolved_runs(connection, threshold=threshold, limit=LIMIT),
            *sweeping.batchless_runs(connection, limit=LIMIT),
        ]
    return sum(
        turn.repair(run, partial(waits.resolve, turn.services, turn.worker, run)) for run in waiting
    )
