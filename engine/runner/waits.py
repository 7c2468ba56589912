"""How a wait ends that no signal ended: its deadline, its batch, or a worker that looks again.

Each locks the run, looks whether it still waits, and writes all of the end in that transaction.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pgbus.engine.decision import EventEntry
from pgbus.engine.definition.policy import PolicyAction
from pgbus.engine.errors import StepNotDefined, WaitTimedOut
from pgbus.engine.observe import emission
from pgbus.engine.runner import fan_out, signals
from pgbus.engine.runner.attempt import Attempt, verbs_refused
from pgbus.engine.runner.decide import Ruling, pause_on
from pgbus.engine.runner.declarations import declared
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.runner.finalize import Applied, Ending, Finalizer
from pgbus.engine.states import AttemptStatus, Event, OnTimeout, RunStatus
from pgbus.engine.storage import batches, messages, runs, trail, waits
from pgbus.engine.storage.claims import ClaimVerdict, Delivery

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.decision import Finalization
    from pgbus.engine.definition.deadline import Deadline
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.observe.emission import Payload
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Worker
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow, RunRow

#: A message that only a worker with the run's class can act on comes again after this many seconds.
_LATER = 60.0

_log = logging.getLogger("pgbus.runner")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A run under its lock whose newest attempt waits; `definition` and `step` None: not declared."""

    services: Services
    finalizer: Finalizer
    connection: Connection
    run: RunRow
    attempt: AttemptRow
    definition: Definition | None
    step: Step | None


def moment_of(connection: Connection, deadline: Deadline | None) -> datetime | None:
    """Return the moment of a deadline that counts from now."""
    if deadline is None:
        return None
    return deadline.at or waits.moment_in(connection, deadline.after or timedelta())


def look_again(
    services: Services, finalizer: Finalizer, connection: Connection, delivery: Delivery
) -> Applied | None:
    """Act on a message for a run that waits: its batch has finished, or a signal has come.

    The message was claimed in the connection's transaction. None: the run waits on, or was woken.
    """
    it = _locked(services, finalizer, connection, delivery.workflow_id)
    if it is not None and it.attempt.batch_id is not None:
        batch = batches.find(connection, it.attempt.batch_id)
        if batch is None or batch.finished_at is not None:
            return _end_fan_out(it, batch, delivery)
    elif it is not None:
        if it.definition is None or it.step is None:
            _log.warning(
                "A signal came for step %s of run %s, which %s does not declare here; looking again in %d s.",
                it.attempt.step_name, it.run.workflow_id, it.run.workflow_class, _LATER,
            )  # fmt: skip
            messages.set_visible_in(connection, delivery.queue, delivery.message_id, _LATER)
            return None
        _offer(it, it.step)
    messages.delete(connection, delivery.queue, delivery.message_id)
    return None


def _offer(it: _Waiting, step: Step) -> None:
    """Wake the attempt with the signal that it takes, if any; of a matcher that raises its gate hears.

    A step that its class has removed, or lets wait no more, is woken as it is.
    """
    queue = it.services.queue_of(step)
    if step.wait_for is None:
        signals.wake(it.connection, it.run, it.attempt, source=it.run.status, queue=queue)
        return
    try:
        row = signals.match(it.connection, it.attempt, step)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 (a host's matcher: at the gate the policies decide about it)
        signals.wake(it.connection, it.run, it.attempt, source=it.run.status, queue=queue)
        return
    if row is not None:
        signals.wake_with(it.connection, it.run, it.attempt, row, queue=queue)


def resolve(services: Services, worker: Worker, workflow_id: str) -> bool:
    """End the wait of a fan-out whose batch has finished, or is gone; False: it does not wait so."""
    finalizer = Finalizer(services, worker, stopping=lambda: True)
    with services.database.transaction() as connection:
        it = _locked(services, finalizer, connection, workflow_id)
        if it is None or it.run.status is not RunStatus.WAITING or it.attempt.batch_id is None:
            return False
        batch = batches.find(connection, it.attempt.batch_id)
        if batch is not None and batch.finished_at is None:
            return False
        applied = _end_fan_out(it, batch, None)
    finalizer.follow(applied)
    return True


def release(services: Services, worker: Worker, workflow_id: str) -> bool:
    """Wake a run that waits on a step which its class has removed; False: it does not."""
    finalizer = Finalizer(services, worker, stopping=lambda: True)
    with services.database.transaction() as connection:
        it = _locked(services, finalizer, connection, workflow_id)
        if (
            it is None
            or it.run.status is not RunStatus.WAITING
            or it.step is None
            or not it.step.removed
            or it.attempt.batch_id is not None
        ):
            return False
        _offer(it, it.step)
    return True


def expire(services: Services, worker: Worker, workflow_id: str, *, early: bool = False) -> bool:
    """Apply a wait's `on_timeout` once its deadline has passed; False: it waits on, or no more.

    `early` does so whatever the deadline.
    """
    finalizer = Finalizer(services, worker, stopping=lambda: True)
    with services.database.transaction() as connection:
        it = _locked(services, finalizer, connection, workflow_id)
        if it is None or it.run.status is not RunStatus.WAITING or it.attempt.waiting_for is None:
            return False
        if not (early or waits.is_overdue(connection, it.attempt)):
            return False
        with verbs_refused(workflow_id):
            ended = _time_out(it)
    emission.emit(_timed_out_payload(it))
    if isinstance(ended, Applied):
        finalizer.follow(ended)
    return True


def _locked(
    services: Services, finalizer: Finalizer, connection: Connection, workflow_id: str
) -> _Waiting | None:
    run, attempt = runs.lock(connection, workflow_id)
    if attempt.status is not AttemptStatus.WAITING or run.status not in _WAITS:
        return None
    try:
        definition, step = declared(run.workflow_class, attempt.step_name)
    except StepNotDefined:
        return _Waiting(services, finalizer, connection, run, attempt, None, None)
    return _Waiting(services, finalizer, connection, run, attempt, definition, step)


_WAITS = frozenset({RunStatus.WAITING, RunStatus.PAUSED})


def _end_fan_out(
    it: _Waiting, batch: batches.BatchRow | None, delivery: Delivery | None
) -> Applied:
    """End the attempt as its batch did, under the message that told of it."""
    error, output = fan_out.failure(batch), it.attempt.encoded_output
    details = {
        "batch_id": it.attempt.batch_id,
        "failed_jobs": batch.failed_jobs if batch else None,
        "total_jobs": batch.total_jobs if batch else None,
    }
    if it.definition is None or it.step is None:
        problem = error or record_error(
            StepNotDefined(
                f"{it.run.workflow_class} does not declare {it.attempt.step_name!r} here."
            ),
            backtrace_lines=0,
        )
        final = pause_on(problem, output=output)
    else:
        decider = it.services.decider(it.definition, it.step)
        if batch is None and error is not None:
            final = pause_on(error, output=output)
        else:
            final = decider.after_batch(error, output)
    if batch is not None:
        batches.mark_resolved(it.connection, batch.batch_id)
    return _end(it, EventEntry(Event.FAN_OUT_FINISHED, None, details), final, delivery)


def _time_out(it: _Waiting) -> Applied | None:
    action = OnTimeout.PAUSE if it.step is None else it.step.on_timeout
    match action:
        case OnTimeout.RUN:
            assert it.step is not None  # noqa: S101 (only a declared step runs)
            woken = signals.woken_status(it.run)
            _record(it, _timed_out(it, action), woken)
            queue = it.services.queue_of(it.step)
            signals.wake(
                it.connection, it.run, it.attempt, source=woken, queue=queue, timed_out=True
            )
            return None
        case OnTimeout.NOTIFY:
            return _give_notice(it)
    error = record_error(WaitTimedOut(_what_was_missed(it)), backtrace_lines=0)
    if it.definition is None or it.step is None:
        final = pause_on(error)
    else:
        decider = it.services.decider(it.definition, it.step)
        final = decider.after_error(error, Ruling(PolicyAction(action)))
    return _end(it, _timed_out(it, action), final, None)


def _give_notice(it: _Waiting) -> Applied | None:
    """Tell that the wait is late; it goes on until its next deadline, or without one."""
    try:
        following = _next_deadline(it)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a host's callable: whatever it raises pauses the run)
        entry = _timed_out(it, OnTimeout.NOTIFY)
        return _end(it, entry, pause_on(it.services.recorded(error)), None)
    _record(it, _timed_out(it, OnTimeout.NOTIFY), it.run.status)
    waits.notice(it.connection, it.run, it.attempt, timeout_at=following)
    return None


def _next_deadline(it: _Waiting) -> datetime | None:
    assert it.definition is not None and it.step is not None  # noqa: S101, PT018 (a step with notify)
    missed = it.attempt.timeout_at
    attempt = Attempt(it.services, _delivery(it, None), it.definition, it.step)
    deadline = attempt.deadline()
    if deadline is None or missed is None:
        return None
    if deadline.after is not None:
        return waits.next_period(it.connection, missed, deadline.after)
    if deadline.at is not None and waits.is_ahead(it.connection, deadline.at):
        return deadline.at
    return None


def _end(
    it: _Waiting, event: EventEntry, final: Finalization, delivery: Delivery | None
) -> Applied:
    """Let the attempt end as decided; `delivery` is the message that it ends under, if any."""
    performing = RunStatus.PERFORMING if it.run.status is RunStatus.WAITING else it.run.status
    waits.resolve(
        it.connection,
        it.run,
        it.attempt,
        queue=delivery.queue if delivery else it.attempt.queue,
        message_id=delivery.message_id if delivery else None,
        read_count=delivery.read_count if delivery else None,
        worker=it.finalizer.worker.name,
    )
    _record(it, event, performing)
    ending = Ending(_delivery(it, delivery), it.definition, final)
    if delivery is None:
        return it.finalizer.apply_for_others(it.connection, ending)
    return it.finalizer.apply(it.connection, ending)


def _delivery(it: _Waiting, message: Delivery | None) -> Delivery:
    """Return the attempt as a delivery: of this message, or of none."""
    run, attempt = it.run, it.attempt
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
    )


def _record(it: _Waiting, entry: EventEntry, target: RunStatus) -> None:
    trail.record(
        it.connection,
        it.run.workflow_id,
        entry,
        source=it.run.status,
        target=target,
        actor="system",
        step_name=it.attempt.step_name,
        attempt=it.attempt.attempt,
    )


def _timed_out(it: _Waiting, action: OnTimeout) -> EventEntry:
    missed = it.attempt.timeout_at
    return EventEntry(
        Event.WAIT_TIMED_OUT,
        None,
        {
            "wait_for": it.attempt.waiting_for,
            "action": action,
            "timeout_at": missed.isoformat() if missed else None,
        },
    )


def _what_was_missed(it: _Waiting) -> str:
    since, until = it.attempt.waiting_since, it.attempt.timeout_at
    return (
        f"Step {it.attempt.step_name!r} waited for the signal {it.attempt.waiting_for!r} since "
        f"{since.isoformat() if since else 'an unknown time'}; "
        f"none came until {until.isoformat() if until else 'it was ended early'}."
    )


def _timed_out_payload(it: _Waiting) -> Payload:
    return emission.WaitTimedOut(
        it.run.workflow_class,
        it.run.workflow_id,
        it.attempt.step_name,
        OnTimeout.PAUSE if it.step is None else it.step.on_timeout,
    )
