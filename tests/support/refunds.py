"""A day of refunds: most get through, until a deploy makes half of the payments fail."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from support.histories import Attempt, History, Run, write

from pgbus import FanOut, Workflow, fan_out, removed_step, step
from pgbus.engine.insights import reading
from pgbus.engine.states import AttemptStatus, Outcome, RunStatus

if TYPE_CHECKING:
    from pgbus import Pgbus

DECLINED = "refunds.PaymentDeclinedError"
_MINUTE = timedelta(minutes=1)


class RefundWorkflow(Workflow):
    @step
    def check(self): ...

    @step(wait_for="goods_returned", wait_timeout=timedelta(days=7))
    def receive(self): ...

    @step(wait=timedelta(minutes=10))
    def pay(self): ...

    legacy_export = removed_step()

    @step(wait_for="payout", wait_timeout=lambda _self: None)
    def settle(self): ...

    @fan_out
    def tell(self, batch: FanOut): ...


REFUND = f"{__name__}.{RefundWorkflow.__name__}"
_STEPS = ("check", "receive", "pay", "settle", "tell")


def a_day(bus: Pgbus, runs: int = 200) -> None:
    """Writes the runs of the last day, and three more on a step that was removed."""
    with bus.services.database.transaction() as connection:
        write(connection, _Day(reading.now(connection), runs).history)


class _Day:
    """The rows; a run is on the newer revision when it began in the last three hours."""

    def __init__(self, now: datetime, runs: int) -> None:
        self.history = History([], [])
        self._now = now
        self._random = Random(7)
        self._step_ids = count(1_000_000)  # beside those of real runs
        for number in range(runs):
            self._run(number, now - timedelta(hours=23) * self._random.random() ** 1.5)
        for number in range(runs, runs + 3):
            self._legacy(number)

    def _run(self, number: int, began: datetime) -> None:
        revision = "9c41e7b" if self._now - began > timedelta(hours=3) else "b81d07e"
        workflow_id, moment = str(UUID(int=number + 1)), began
        for name in _STEPS:
            begins = moment + timedelta(seconds=self._random.uniform(0.05, 20))
            ends = begins + timedelta(seconds=self._random.expovariate(0.5))
            if name in ("receive", "settle"):
                ends += timedelta(minutes=self._random.expovariate(1 / 60))
            if ends >= self._now:
                self._sits(workflow_id, name, begins, began, revision)
                return
            fails = name == "pay" and self._random.random() < (
                0.5 if revision == "b81d07e" else 0.02
            )
            attempt = self._attempt(workflow_id, name, begins, AttemptStatus.COMPLETED, revision)
            attempt.started_at, attempt.finished_at = begins, ends
            attempt.outcome = Outcome.COMPLETED
            if fails:
                attempt.status, attempt.outcome = AttemptStatus.FAILED, Outcome.PAUSED
                attempt.error_class = DECLINED
                self._stands(attempt, RunStatus.PAUSED, began, ends)
                return
            moment = ends
        how = RunStatus.CANCELLED if number % 17 == 0 else RunStatus.FINISHED
        self._stands(attempt, how, began, moment)

    def _sits(
        self, workflow_id: str, name: str, since: datetime, began: datetime, revision: str
    ) -> None:
        since = min(since, self._now - _MINUTE)
        if name in ("receive", "settle", "tell"):
            attempt = self._attempt(workflow_id, name, since, AttemptStatus.WAITING, revision)
            attempt.started_at = attempt.waiting_since = since
            attempt.timeout_at = self._now + timedelta(days=6)
            self._stands(attempt, RunStatus.WAITING, began, since)
            return
        attempt = self._attempt(workflow_id, name, self._now, AttemptStatus.SCHEDULED, revision)
        self._stands(attempt, RunStatus.READY, began, since)

    def _legacy(self, number: int) -> None:
        since = self._now - timedelta(hours=5)
        status = AttemptStatus.FAILED
        attempt = self._attempt(
            str(UUID(int=number + 1)), "legacy_export", since, status, "77ab3f0"
        )
        attempt.started_at = since
        attempt.finished_at = since + _MINUTE
        attempt.outcome, attempt.error_class = Outcome.PAUSED, DECLINED
        self._stands(attempt, RunStatus.PAUSED, since - timedelta(hours=30), since + _MINUTE)

    def _attempt(
        self, workflow_id: str, name: str, due: datetime, status: AttemptStatus, revision: str
    ) -> Attempt:
        attempt = Attempt(
            step_id=next(self._step_ids),
            workflow_id=workflow_id,
            step_name=name,
            attempt=1,
            status=status,
            scheduled_at=due - timedelta(seconds=self._random.expovariate(2)),
            created_at=due,
            revision=None if status is AttemptStatus.SCHEDULED else revision,
        )
        self.history.attempts.append(attempt)
        return attempt

    def _stands(self, newest: Attempt, status: RunStatus, began: datetime, at: datetime) -> None:
        settled = status not in (RunStatus.READY, RunStatus.WAITING)
        ended = status in (RunStatus.FINISHED, RunStatus.CANCELLED)
        self.history.runs.append(
            Run(
                workflow_id=newest.workflow_id,
                workflow_class=REFUND,
                status=status,
                current_step=newest.step_name,
                step_id=newest.step_id,
                created_at=began,
                updated_at=at,
                paused_at=at if status is RunStatus.PAUSED else None,
                ended_at=at if ended else None,
                settled_error=(newest.error_class or "") if settled else None,
            )
        )
