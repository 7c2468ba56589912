"""What becomes of a wait at its deadline."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pgbus.engine.decision import EventEntry
from pgbus.engine.definition.policy import PolicyAction
from pgbus.engine.errors import WaitTimedOut
from pgbus.engine.observe import emission
from pgbus.engine.runner.attempt import Attempt
from pgbus.engine.runner.decide import Ruling, pause_on
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.states import Event, OnTimeout
from pgbus.engine.storage import waits

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.decision import ErrorEntry
    from pgbus.engine.definition.deadline import Deadline
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.runner.finalize import Applied
    from pgbus.engine.runner.waiting import Waiting
    from pgbus.engine.storage.database import Connection


def moment_of(connection: Connection, deadline: Deadline | None) -> datetime | None:
    """Return the moment of a deadline of a wait that begins now."""
    if isinstance(deadline, timedelta):
        return waits.moment_in(connection, deadline)
    return deadline


def action_of(it: Waiting) -> OnTimeout:
    """Return what is to become of the wait; a step that nobody declares can only be paused on."""
    return OnTimeout.PAUSE if it.step is None else it.step.on_timeout


def time_out(it: Waiting) -> Applied | None:
    """Apply the step's `on_timeout`; None: it waits on, or was woken."""
    action = action_of(it)
    if it.declared is None:
        return it.end(_told(it, action), pause_on(_missed(it)), None)
    definition, step = it.declared
    match action:
        case OnTimeout.RUN:
            it.wake(step, told_by=_told(it, action), timed_out=True)
            return None
        case OnTimeout.NOTIFY:
            return _give_notice(it, definition, step)
        case _:
            decider = it.services.decider(definition, step)
            final = decider.after_error(_missed(it), Ruling(PolicyAction(action)))
            return it.end(_told(it, action), final, None)


def payload(it: Waiting) -> emission.Payload:
    """Return what subscribers are told of it."""
    run = it.run
    return emission.WaitTimedOut(
        run.workflow_class, run.workflow_id, it.attempt.step_name, action_of(it)
    )


def _give_notice(it: Waiting, definition: Definition, step: Step) -> Applied | None:
    """Tell that the wait is late; it goes on until its next deadline, or without one."""
    told = _told(it, OnTimeout.NOTIFY)
    attempt = Attempt(it.services, it.delivery(None), definition, step)
    try:
        following = _following(it, attempt.deadline())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a host's callable: whatever it raises pauses the run)
        return it.end(told, pause_on(it.services.recorded(error)), None)
    it.record(told, it.run.status)
    waits.notice(it.connection, it.run, it.attempt, timeout_at=following)
    return None


def _following(it: Waiting, deadline: Deadline | None) -> datetime | None:
    """Return the next deadline after the missed one; None: it waits on without one."""
    missed = it.attempt.timeout_at
    if isinstance(deadline, timedelta):
        return None if missed is None else waits.next_period(it.connection, missed, deadline)
    if deadline is not None and waits.is_ahead(it.connection, deadline):
        return deadline
    return None


def _told(it: Waiting, action: OnTimeout) -> EventEntry:
    missed = it.attempt.timeout_at
    details = {
        "wait_for": it.attempt.waiting_for,
        "action": action,
        "timeout_at": missed.isoformat() if missed else None,
    }
    return EventEntry(Event.WAIT_TIMED_OUT, None, details)


def _missed(it: Waiting) -> ErrorEntry:
    since, until = it.attempt.waiting_since, it.attempt.timeout_at
    error = WaitTimedOut(
        f"Step {it.attempt.step_name!r} waited for the signal {it.attempt.waiting_for!r} since "
        f"{since.isoformat() if since else 'an unknown time'}; "
        f"none came until {until.isoformat() if until else 'it was ended early'}."
    )
    return record_error(error, backtrace_lines=0)
