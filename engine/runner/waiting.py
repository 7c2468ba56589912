"""A run under its lock whose step waits, and what ends the wait of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.errors import StepNotDefined
from pgbus.engine.runner import signals
from pgbus.engine.runner.declarations import declared
from pgbus.engine.runner.finalize import Ending
from pgbus.engine.states import AttemptStatus, RunStatus
from pgbus.engine.storage import runs, trail, waits
from pgbus.engine.storage.claims import ClaimVerdict, Delivery

if TYPE_CHECKING:
    from pgbus.engine.decision import EventEntry, Finalization
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.runner.finalize import Applied, Finalizer
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow, RunRow

_WAITS = frozenset({RunStatus.WAITING, RunStatus.PAUSED})


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that waits, paused or not; `declared` is None where this process declares no such step."""

    services: Services
    finalizer: Finalizer
    connection: Connection
    run: RunRow
    attempt: AttemptRow
    declared: tuple[Definition, Step] | None

    @property
    def step(self) -> Step | None:
        """The step, as this process declares it."""
        return self.declared[1] if self.declared else None

    @property
    def is_paused(self) -> bool:
        """Whether its run is paused, so that nothing may happen by itself."""
        return self.run.status is RunStatus.PAUSED

    def record(self, entry: EventEntry, target: RunStatus) -> None:
        """Write an event that leads from the run's status to `target`."""
        trail.record(
            self.connection,
            self.run.workflow_id,
            entry,
            source=self.run.status,
            target=target,
            actor="system",
            step_name=self.attempt.step_name,
            attempt=self.attempt.attempt,
        )

    def wake(
        self, step: Step, *, told_by: EventEntry | None = None, timed_out: bool = False
    ) -> None:
        """Schedule the attempt for now; `told_by` is the event that says why, if one does."""
        source = self.run.status
        if told_by is not None:
            source = signals.woken_status(self.run)
            self.record(told_by, source)
        queue = self.services.queue_of(step)
        signals.wake(
            self.connection,
            self.run,
            self.attempt,
            source=source,
            queue=queue,
            trace=self.services.trace_here(after=self.attempt.trace),
            timed_out=timed_out,
        )

    def end(self, told_by: EventEntry, final: Finalization, message: Delivery | None) -> Applied:
        """Let the attempt end as decided, under the message that told of it, if any."""
        waits.resolve(
            self.connection,
            self.run,
            self.attempt,
            queue=message.queue if message else self.attempt.queue,
            message_id=message.message_id if message else None,
            read_count=message.read_count if message else None,
        )
        self.record(told_by, self.run.status if self.is_paused else RunStatus.PERFORMING)
        definition = self.declared[0] if self.declared else None
        ending = Ending(self.delivery(message), definition, final)
        if message is None:
            return self.finalizer.apply_for_others(self.connection, ending)
        return self.finalizer.apply(self.connection, ending)

    def delivery(self, message: Delivery | None) -> Delivery:
        """Return the attempt as a delivery: of this message, or of none."""
        run, attempt = self.run, self.attempt
        return Delivery(
            ClaimVerdict.CLAIMED,
            message.queue if message else attempt.queue,
            message.message_id if message else 0,
            message.read_count if message else 0,
            None,
            run.workflow_id,
            run.workflow_class,
            run.subject_type,
            run.subject_id,
            run.encoded_arguments,
            attempt.step_id,
            attempt.step_name,
            attempt.attempt,
            attempt.trace,
        )


def locked(
    services: Services, finalizer: Finalizer, connection: Connection, workflow_id: str
) -> Waiting | None:
    """Lock the run; None when its step does not wait (any more)."""
    run, attempt = runs.lock(connection, workflow_id)
    if attempt.status is not AttemptStatus.WAITING or run.status not in _WAITS:
        return None
    try:
        known = declared(run.workflow_class, attempt.step_name)
    except StepNotDefined:
        known = None
    return Waiting(services, finalizer, connection, run, attempt, known)
