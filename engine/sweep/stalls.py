"""Attempts that run past their timeout: hung, or their worker died and nothing came again."""

from __future__ import annotations

from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.errors import StepStalled
from pgbus.engine.runner.finalize import Finalizer
from pgbus.engine.runner.stalls import after_stall
from pgbus.engine.states import AttemptStatus, Detection, RunStatus
from pgbus.engine.storage import runs, sweeping
from pgbus.engine.storage.sweeping import Walked
from pgbus.engine.sweep.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from pgbus.engine.storage.sweeping import Overrun
    from pgbus.engine.sweep.round import Round

LIMIT = 500


class Stalls:
    """Gives hung attempts their stall action, oldest first; a run that is paused is left alone."""

    def __init__(self) -> None:
        self._walk = Walk(Walked.MOVING)

    def sweep(self, turn: Round) -> int:
        """Return how many were stalled."""
        oldest = nsmallest(LIMIT, self._found(turn), key=lambda overrun: overrun.started_at)
        return sum(
            turn.repair(overrun.delivery.workflow_id, partial(_stall, turn, overrun))
            for overrun in oldest
        )

    def _found(self, turn: Round) -> Iterator[Overrun]:
        timeouts = dict(_timeouts())
        threshold = turn.services.settings.workflow_stall_threshold
        for within in self._walk.slices(turn):
            with turn.services.database.autocommit() as connection:
                yield from sweeping.overruns(
                    connection, within, timeouts=timeouts, threshold=threshold, limit=LIMIT
                )


def _timeouts() -> Iterator[tuple[str, timedelta]]:
    for definition in registry.definitions():
        for step in definition.steps:
            if step.timeout is not None:
                yield f"{definition.name}#{step.name}", step.timeout


def _stall(turn: Round, overrun: Overrun) -> bool:
    delivery = overrun.delivery
    error = StepStalled(
        f"Attempt {delivery.attempt} of {delivery.step_name} ran past its timeout of "
        f"{overrun.timeout:g} s; {overrun.worker} began it at {overrun.started_at.isoformat()}."
    )
    ending = after_stall(turn.services, delivery, error, Detection.SWEEP)
    finalizer = Finalizer(turn.services, turn.worker, stopping=lambda: True)
    with turn.services.database.transaction() as connection:
        run, attempt = runs.lock(connection, delivery.workflow_id)
        hangs = (
            run.status is RunStatus.PERFORMING
            and attempt.step_id == delivery.step_id
            and attempt.status is AttemptStatus.IN_PROGRESS
        )
        applied = finalizer.apply_for_others(connection, ending) if hangs else None
    if applied is not None:
        finalizer.follow(applied)
    return applied is not None
