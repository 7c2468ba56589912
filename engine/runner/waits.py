"""How a wait ends that no sender's signal ended: its deadline, its batch, or a worker that looks again.

Each locks the run, looks whether it still waits, and writes all of the end in that transaction.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgbus.engine.decision import EventEntry
from pgbus.engine.definition import registry
from pgbus.engine.errors import StepNotDefined
from pgbus.engine.runner import deadlines, fan_out, signals, waiting
from pgbus.engine.runner.attempt import verbs_refused
from pgbus.engine.runner.decide import Result, pause_on
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.runner.finalize import Applied, Finalizer
from pgbus.engine.states import Event, Outcome
from pgbus.engine.storage import batches, messages
from pgbus.engine.storage import waits as storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.decision import Finalization
    from pgbus.engine.definition.step import Step
    from pgbus.engine.runner.services import Services
    from pgbus.engine.runner.waiting import Waiting
    from pgbus.engine.storage.batches import BatchRow
    from pgbus.engine.storage.claims import Delivery, Worker
    from pgbus.engine.storage.database import Connection

#: A message that only a worker with the run's class can act on comes again after this many seconds.
_LATER = 60.0

_log = logging.getLogger("pgbus.runner")


def look_again(
    services: Services, finalizer: Finalizer, connection: Connection, delivery: Delivery
) -> Applied | None:
    """Act on a message for a run that waits: its batch has finished, or a signal has come.

    The message was claimed in the connection's transaction. None: the run waits on, or was woken.
    """
    it = waiting.locked(services, finalizer, connection, delivery.workflow_id)
    if it is not None and it.step is None:
        _log.warning(
            "Step %s of run %s has got what it waits for, and %s does not declare it here; looking "
            "again in %d s.",
            it.attempt.step_name, it.run.workflow_id, it.run.workflow_class, _LATER,
        )  # fmt: skip
        messages.set_visible_in(connection, delivery.queue, delivery.message_id, _LATER)
        return None
    if it is not None and it.attempt.batch_id is not None:
        batch = batches.find(connection, it.attempt.batch_id)
        if batch is None or batch.finished_at is not None:
            return _end_fan_out(it, batch, delivery)
    elif it is not None and it.step is not None:
        _offer(it, it.step)
    messages.delete(connection, delivery.queue, delivery.message_id)
    return None


def resolve(services: Services, worker: Worker, workflow_id: str) -> bool:
    """End the wait of a fan-out whose batch has finished, or is gone; False: it does not wait so.

    Where the class is not loaded, what is to follow a finished batch is left to who has it.
    """
    finalizer = _finalizer(services, worker)
    with _unpaused(services, finalizer, workflow_id) as it:
        if it is None or it.attempt.batch_id is None:
            return False
        batch = batches.find(it.connection, it.attempt.batch_id)
        if batch is not None and (
            batch.finished_at is None or registry.find(it.run.workflow_class) is None
        ):
            return False
        applied = _end_fan_out(it, batch, None)
    finalizer.follow(applied)
    return True


def release(services: Services, worker: Worker, workflow_id: str) -> bool:
    """Wake a run whose step does not wait for signals any more, by its class; False: it does."""
    with _unpaused(services, _finalizer(services, worker), workflow_id) as it:
        if it is None or it.step is None or it.attempt.batch_id is not None:
            return False
        if it.step.wait_for is not None:
            return False
        it.wake(it.step)
    return True


def expire(services: Services, worker: Worker, workflow_id: str, *, early: bool = False) -> bool:
    """Apply a wait's `on_timeout` once its deadline has passed; False: it waits on, or no more.

    `early` does so whatever the deadline.
    """
    finalizer = _finalizer(services, worker)
    with _unpaused(services, finalizer, workflow_id) as it:
        if it is None or it.attempt.waiting_for is None:
            return False
        if not (early or storage.is_overdue(it.connection, it.attempt)):
            return False
        if it.step is not None and it.step.wait_for is None:
            it.wake(it.step)
            return True
        with verbs_refused(workflow_id):
            ended = deadlines.time_out(it)
    services.events.emit(deadlines.payload(it))
    if ended is not None:
        finalizer.follow(ended)
    return True


def _finalizer(services: Services, worker: Worker) -> Finalizer:
    """Return one that goes on with nothing: no worker is at hand."""
    return Finalizer(services, worker, stopping=lambda: True)


@contextmanager
def _unpaused(
    services: Services, finalizer: Finalizer, workflow_id: str
) -> Iterator[Waiting | None]:
    """Lock a run in a transaction of its own; None unless it waits and is not paused."""
    with services.database.transaction() as connection:
        it = waiting.locked(services, finalizer, connection, workflow_id)
        yield None if it is None or it.is_paused else it


def _offer(it: Waiting, step: Step) -> None:
    """Wake the attempt with the signal that it takes, if any; of a matcher that raises its gate hears.

    A step that its class has removed, or lets wait no more, is woken as it is.
    """
    try:
        row = signals.match(it.connection, it.attempt, step)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 (a host's matcher: at the gate the policies decide about it)
        it.wake(step)
        return
    if step.wait_for is None:
        it.wake(step)
    elif row is not None:
        queue = it.services.queue_of(step)
        trace = it.services.trace_here(after=it.attempt.trace)
        signals.wake_with(it.connection, it.run, it.attempt, row, queue=queue, trace=trace)


def _end_fan_out(it: Waiting, batch: BatchRow | None, message: Delivery | None) -> Applied:
    """End the attempt as its batch did, under the message that told of it."""
    details = {
        "batch_id": it.attempt.batch_id,
        "failed_jobs": batch.failed_jobs if batch else None,
        "total_jobs": batch.total_jobs if batch else None,
    }
    if batch is not None:
        batches.mark_resolved(it.connection, batch.batch_id)
    told = EventEntry(Event.FAN_OUT_FINISHED, None, details)
    return it.end(told, _after_batch(it, batch), message)


def _after_batch(it: Waiting, batch: BatchRow | None) -> Finalization:
    error, output = fan_out.failure(batch), it.attempt.encoded_output
    if it.declared is None:
        undeclared = StepNotDefined(
            f"{it.run.workflow_class} does not declare {it.attempt.step_name!r} here."
        )
        return pause_on(error or record_error(undeclared, backtrace_lines=0), output=output)
    definition, step = it.declared
    decider = it.services.decider(definition, step)
    if step.removed:
        reason = "the step was removed"
        return decider.after_result(Result(Outcome.SKIPPED, output, reason))
    if batch is None and error is not None:
        return pause_on(error, output=output)
    return decider.after_batch(error, output)
