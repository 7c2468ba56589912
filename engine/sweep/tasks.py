"""The tasks of the sweep, and when each is due."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.storage import sweeping
from pgbus.engine.storage.database import is_passing
from pgbus.engine.sweep import batches, expired_waits, gauge, removed_steps, retention
from pgbus.engine.sweep.lost_messages import LostMessages
from pgbus.engine.sweep.round import MAX_SECONDS, Round
from pgbus.engine.sweep.stalls import Stalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Worker

_log = logging.getLogger("pgbus.sweep")

_HOUR = 3600.0
#: Of a task that goes on at the next tick: deadlines do not wait for it.
_SHORT_SECONDS = 5.0


@dataclass(slots=True)
class Task:
    """What is done every so many seconds, by one process at a time.

    `work` returns how many it dealt with. `goes_on`: what a round had no time for is dealt with at
    the next ticks, in short rounds, not at the next interval.
    """

    name: str
    every: float
    work: Callable[[Round], int | None]
    goes_on: bool = False
    due_at: float = 0.0


class Sweep:
    """Does each task when it is due, as `worker`, until `stopping`."""

    def __init__(self, services: Services, worker: Worker, stopping: Callable[[], bool]) -> None:
        self._services = services
        self._worker = worker
        self._stopping = stopping
        often = services.settings.workflow_sweep_interval.total_seconds()
        threshold = services.settings.workflow_stall_threshold.total_seconds()
        self.tasks = (
            Task("expired waits", often, expired_waits.sweep),
            Task("stalls", often, Stalls().sweep),
            Task("batches", often, batches.sweep),
            Task("gauge", often, gauge.measure),
            # What it looks for has been due for much longer than a sweep's interval.
            Task("lost messages", max(often, threshold / 10), LostMessages().sweep),
            # After a start with new code there is something to find, later hardly ever.
            Task("removed steps", _HOUR, removed_steps.sweep),
            Task("ended runs", _HOUR, retention.EndedRuns().delete, goes_on=True),
            Task("finished batches", _HOUR, retention.finished_batches, goes_on=True),
            Task("archived messages", _HOUR, retention.archived_messages, goes_on=True),
        )

    def tick(self) -> None:
        """Do what is due; a task that fails is due again at the next tick."""
        for task in self.tasks:
            if self._stopping():
                return
            if task.due_at <= time.monotonic():
                self._try(task)

    def _try(self, task: Task) -> None:
        seconds = _SHORT_SECONDS if task.goes_on else MAX_SECONDS
        turn = Round(self._services, self._worker, self._stopping, seconds)
        try:
            self._do(task, turn)
        except Exception as error:  # noqa: BLE001 (whatever failed, the other tasks have their turn)
            if is_passing(error):
                self._services.database.failed(error)
            else:
                _log.exception("The sweep's task %r failed; it is tried again.", task.name)
            return
        if not (task.goes_on and turn.is_over()):
            task.due_at = time.monotonic() + task.every

    def _do(self, task: Task, turn: Round) -> None:
        """Do the task unless another process is at it."""
        with self._services.database.transaction() as connection:
            if not sweeping.try_lock(connection, task.name):
                return
            done = task.work(turn)
        if done:
            _log.info("The sweep dealt with %d %s.", done, task.name)
