"""The outside verbs: each one guarded transition under its run's row lock.

A verb locks the run, checks the table of `states` against what it found, and writes;
in the caller's transaction, or in one of its own. Two callers at once: one wins, the
other sees the state that one left.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pgbus.engine.decision import EventEntry, Held, NextAttempt
from pgbus.engine.definition import registry
from pgbus.engine.definition.options import OptionError, aware_moment
from pgbus.engine.definition.scope import guarded_run
from pgbus.engine.errors import InvalidTransition, NotOngoing, NotPaused, RunMoved, StepNotDefined
from pgbus.engine.observe import emission
from pgbus.engine.runner.decide import next_live_step, scheduled
from pgbus.engine.states import (
    NEEDS_CLASS,
    OPEN,
    TRANSITIONS,
    AttemptStatus,
    Event,
    Move,
    Outcome,
    RunStatus,
    Verb,
    allows,
)
from pgbus.engine.storage import (
    batches,
    reattempts,
    runs,
    signals,
    trail,
    transitions,
    waits,
)
from pgbus.engine.storage.batches import BatchPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.observe.emission import Payload
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow, RunRow

#: A moment that has passed means now.
_LONG_PAST = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Request:
    """Who asks for a verb, why, and in which host transaction (None: one of its own).

    With `seen`, the run's `updated_at` as the caller knows it, the verb is refused once it moved.
    """

    actor: str = "app"
    reason: str | None = None
    session: Any = None
    seen: datetime | None = None


@dataclass(slots=True)
class LockedRun:
    """A run under its lock, and what is being done to it."""

    connection: Connection
    run: RunRow
    attempt: AttemptRow
    verb: Verb
    request: Request
    payloads: list[Payload]

    def record(
        self,
        event: Event,
        source: RunStatus,
        target: RunStatus,
        *,
        reason: str | None = None,
        step: tuple[str, int] | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        """Write an event by the verb's actor, about the newest attempt unless `step` says other."""
        step_name, attempt = step or (self.attempt.step_name, self.attempt.attempt)
        trail.record(
            self.connection,
            self.run.workflow_id,
            EventEntry(event, reason, details),
            source=source,
            target=target,
            actor=self.request.actor,
            step_name=step_name,
            attempt=attempt,
        )

    def move(
        self, target: RunStatus, *, current_step: str | None = None, step_id: int | None = None
    ) -> None:
        """Move the run and note what is to be told of it after the commit."""
        transitions.move_run(
            self.connection, self.run, self.verb, target, current_step=current_step, step_id=step_id
        )
        of = (self.run.workflow_class, self.run.workflow_id)
        match target:
            case RunStatus.PAUSED:
                self.payloads.append(emission.WorkflowPaused(*of))
            case RunStatus.FINISHED:
                self.payloads.append(emission.WorkflowFinished(*of))
            case RunStatus.CANCELLED:
                self.payloads.append(emission.WorkflowCancelled(*of))


def pause(services: Services, workflow_id: str, request: Request) -> RunRow:
    """Pause the run; a body that runs is let to its end, and its outcome is held."""
    with locked(services, workflow_id, Verb.PAUSE, request) as it:
        it.move(RunStatus.PAUSED)
        transitions.withdraw(it.connection, it.attempt)
        waits.stop_clock(it.connection, it.attempt)
        it.record(Event.PAUSED, it.run.status, RunStatus.PAUSED, reason=request.reason)
        return _after(it)


def cancel(services: Services, workflow_id: str, request: Request) -> RunRow:
    """Cancel the run and its open attempt."""
    with locked(services, workflow_id, Verb.CANCEL, request) as it:
        withdrawn = _close(it)
        signals.consume(it.connection, it.attempt)
        it.move(RunStatus.CANCELLED)
        it.record(
            Event.CANCELLED,
            it.run.status,
            RunStatus.CANCELLED,
            reason=request.reason,
            details=withdrawn,
        )
        return _after(it)


def run_now(services: Services, workflow_id: str, request: Request) -> RunRow:
    """Send the scheduled attempt at once."""
    with locked(services, workflow_id, Verb.RUN_NOW, request) as it:
        return _send_again(it, _LONG_PAST, Event.RUN_NOW)


def reschedule(services: Services, workflow_id: str, at: datetime, request: Request) -> RunRow:
    """Move the scheduled attempt to `at`, an aware moment; one in the past means now."""
    try:
        aware_moment(at)
    except OptionError as error:
        raise ValueError(f"reschedule takes an aware datetime: {error}") from None
    with locked(services, workflow_id, Verb.RESCHEDULE, request) as it:
        return _send_again(it, at, Event.RESCHEDULED)


def skip(services: Services, workflow_id: str, request: Request) -> RunRow:
    """Skip the step the run is on and schedule the next."""
    with locked(services, workflow_id, Verb.SKIP, request) as it:
        definition = definition_of(services, it)
        transitions.end_attempt(it.connection, it.attempt, AttemptStatus.SKIPPED, Outcome.SKIPPED)
        signals.consume(it.connection, it.attempt)
        _next_step(services, it, definition, Event.STEP_SKIPPED, details=_withdraw_batch(it))
        return _after(it)


def resume_at(services: Services, workflow_id: str, step_name: str, request: Request) -> RunRow:
    """Schedule a new attempt of the named step, also of one that completed before."""
    with locked(services, workflow_id, Verb.RESUME_AT, request) as it:
        definition = definition_of(services, it)
        step = definition.step(step_name)
        if step.removed:
            raise StepNotDefined(f"{definition.name} has removed its step {step_name!r}.")
        reattempts.restart(it.connection, it.attempt)
        details = {"step": step_name} | (_close(it) or {})
        following = NextAttempt(step_name, services.queue_of(step))
        _schedule(services, it, following, Event.RESUMED, details=details)
        return _after(it)


def resume(services: Services, workflow_id: str, request: Request) -> RunRow:
    """Go on: with what a body's end held back, else from the newest attempt."""
    with locked(services, workflow_id, Verb.RESUME, request) as it:
        definition = definition_of(services, it)
        reattempts.restart(it.connection, it.attempt)
        _resume(services, it, definition)
        return _after(it)


def _resume(services: Services, it: LockedRun, definition: Definition) -> None:
    attempt = it.attempt
    held = attempt.held
    transitions.release_held(it.connection, attempt)
    match held, attempt.status:
        case Held(Move.FINISH, reason), _:
            _end(it, RunStatus.FINISHED, Event.FINISHED, Event.RESUMED, reason)
        case Held(Move.STEP_CANCEL, reason), _:
            signals.consume(it.connection, attempt)
            _end(it, RunStatus.CANCELLED, Event.CANCELLED, Event.RESUMED, reason)
        case Held(Move.REATTEMPT, wait=wait), _:
            _again(services, it, definition, wait=wait)
        case Held(Move.PARK, batch=str(batch)), _:
            _open_held(it, BatchPlan.decode(batch))
        case Held(Move.ADVANCE), _:
            _next_step(services, it, definition, Event.RESUMED)
        case _, AttemptStatus.COMPLETED | AttemptStatus.SKIPPED:
            _next_step(services, it, definition, Event.RESUMED)
        case _, AttemptStatus.FAILED | AttemptStatus.CANCELLED:
            _again(services, it, definition, wait=0.0)
        case _, AttemptStatus.IN_PROGRESS:
            it.move(RunStatus.PERFORMING)
            it.record(
                Event.RESUMED, RunStatus.PAUSED, RunStatus.PERFORMING, reason=it.request.reason
            )
        case _, AttemptStatus.WAITING:
            waits.restart_clock(it.connection, attempt)
            it.move(RunStatus.WAITING)
            it.record(Event.RESUMED, RunStatus.PAUSED, RunStatus.WAITING, reason=it.request.reason)
        case _, AttemptStatus.SCHEDULED:
            queue = services.queue_of(definition.step(attempt.step_name))
            # The time it was paused is not one in which it was overdue.
            transitions.resend(it.connection, attempt, at=attempt.scheduled_at, queue=queue)
            it.move(RunStatus.READY)
            it.record(Event.RESUMED, RunStatus.PAUSED, RunStatus.READY, reason=it.request.reason)


@contextmanager
def locked(
    services: Services, workflow_id: str, verb: Verb, request: Request
) -> Iterator[LockedRun]:
    """Lock the run for a verb that its state allows; tell the host what happened, after commit.

    All or nothing: an error anywhere in it leaves the run, and the host's transaction, as
    they were. Raise `InvalidTransition`, `RunNotFound`, or `RunLocked`.
    """
    if guarded_run.get() == workflow_id:
        raise InvalidTransition(
            f"{verb} of run {workflow_id} from its own guard: the run is locked while its guards "
            "are asked. Return a truth value from the guard, or use the verb in a body.",
            status=RunStatus.PERFORMING,
        )
    services.bus.check_schema()
    payloads: list[Payload] = []
    with services.transaction(request.session) as connection:
        run, attempt = runs.lock(connection, workflow_id)
        if request.seen is not None and run.updated_at != request.seen:
            raise _moved(verb, run)
        if not allows(verb, run.status, attempt.status):
            raise _refusal(verb, run, attempt)
        yield LockedRun(connection, run, attempt, verb, request, payloads)
    if request.session is None:
        services.events.emit(*payloads)
    else:
        services.events.emit_after_commit(request.session, payloads)


_REFUSALS: dict[Verb, type[InvalidTransition]] = {
    Verb.RESUME: NotPaused,
    Verb.RESUME_AT: NotPaused,
    Verb.SIGNAL: NotOngoing,
}


def _refusal(verb: Verb, run: RunRow, attempt: AttemptRow) -> InvalidTransition:
    sources = TRANSITIONS[verb].sources
    if run.status in sources:
        problem = f"its step {attempt.step_name} is {attempt.status}, so there is nothing to {verb}"
    else:
        allowed = " or ".join(status for status in RunStatus if status in sources)
        problem = f"it is {run.status}, and {verb} needs it {allowed}"
    error = _REFUSALS.get(verb, InvalidTransition)
    return error(f"Run {run.workflow_id} of {run.workflow_class}: {problem}.", status=run.status)


def _moved(verb: Verb, run: RunRow) -> RunMoved:
    return RunMoved(
        f"{verb} of run {run.workflow_id} of {run.workflow_class}: it has moved since it was read, and is "
        f"{run.status} at {run.current_step} now. Read it again, and see whether {verb} is still meant.",
        status=run.status,
    )


def definition_of(services: Services, it: LockedRun) -> Definition:
    """Return the definition of the run's class, its queues there.

    Raise `StepNotDefined` when it is not loaded.
    """
    definition = registry.find(it.run.workflow_class)
    if definition is None:
        assert it.verb in NEEDS_CLASS  # noqa: S101 (available_actions promises as much)
        raise StepNotDefined(
            f"{it.verb} of run {it.run.workflow_id} needs its class "
            f"{it.run.workflow_class}, which is not loaded here; import its module."
        )
    services.bus.make_ready(definition)
    return definition


def _close(it: LockedRun) -> dict[str, Any] | None:
    """End the open attempt as cancelled; return what is to be told of a batch it waited for."""
    if it.attempt.status in OPEN:
        transitions.end_attempt(
            it.connection, it.attempt, AttemptStatus.CANCELLED, Outcome.CANCELLED
        )
        return _withdraw_batch(it)
    transitions.release_held(it.connection, it.attempt)
    return None


def _withdraw_batch(it: LockedRun) -> dict[str, Any] | None:
    """Let the members of the batch that the attempt waited for not start any more."""
    attempt = it.attempt
    if attempt.status is not AttemptStatus.WAITING or attempt.batch_id is None:
        return None
    open_jobs = batches.withdraw(it.connection, attempt.batch_id)
    return {"batch_id": attempt.batch_id, "open_jobs": open_jobs}


def _open_held(it: LockedRun, plan: BatchPlan) -> None:
    """Open the batch of a body that ended while its run was paused, and wait for it."""
    waits.begin(
        it.connection,
        it.attempt.step_id,
        waiting_for=None,
        timeout_at=None,
        batch_id=plan.new.batch_id,
    )
    batches.open_batch(it.connection, plan)
    it.move(RunStatus.WAITING)
    it.record(Event.RESUMED, RunStatus.PAUSED, RunStatus.WAITING, reason=it.request.reason)
    opened = {"batch_id": plan.new.batch_id, "size": len(plan.members)}
    it.record(Event.FAN_OUT_OPENED, RunStatus.WAITING, RunStatus.WAITING, details=opened)


def _send_again(it: LockedRun, at: datetime, event: Event) -> RunRow:
    moment = transitions.resend(it.connection, it.attempt, at=at)
    it.move(RunStatus.READY)
    it.record(
        event,
        RunStatus.READY,
        RunStatus.READY,
        reason=it.request.reason,
        details={"scheduled_at": moment.isoformat()},
    )
    return _after(it)


def _again(services: Services, it: LockedRun, definition: Definition, *, wait: float) -> None:
    step = definition.step(it.attempt.step_name)
    _schedule(services, it, NextAttempt(step.name, services.queue_of(step), wait), Event.RESUMED)


def _next_step(
    services: Services,
    it: LockedRun,
    definition: Definition,
    event: Event,
    *,
    details: dict[str, Any] | None = None,
) -> None:
    step = next_live_step(definition, it.attempt.step_name)
    if step is None:
        _end(it, RunStatus.FINISHED, Event.FINISHED, event, None, details=details)
    else:
        _schedule(services, it, scheduled(step, services.queue_of), event, details=details)


def _schedule(
    services: Services,
    it: LockedRun,
    following: NextAttempt,
    event: Event,
    *,
    details: dict[str, Any] | None = None,
) -> None:
    """Schedule an attempt; `event` is the verb's own, with the reason."""
    trace = services.trace_here(after=it.attempt.trace)
    step_id, attempt = transitions.schedule(
        it.connection, it.run.workflow_id, following, trace=trace
    )
    it.move(RunStatus.READY, current_step=following.step_name, step_id=step_id)
    it.record(event, it.run.status, RunStatus.READY, reason=it.request.reason, details=details)
    it.record(
        Event.STEP_SCHEDULED,
        RunStatus.READY,
        RunStatus.READY,
        step=(following.step_name, attempt),
    )


def _end(
    it: LockedRun,
    target: RunStatus,
    event: Event,
    verb_event: Event,
    reason: str | None,
    *,
    details: dict[str, Any] | None = None,
) -> None:
    it.move(target)
    source = it.run.status
    it.record(verb_event, source, source, reason=it.request.reason, details=details)
    it.record(event, source, target, reason=reason)


def _after(it: LockedRun) -> RunRow:
    row = runs.find(it.connection, it.run.workflow_id)
    assert row is not None  # noqa: S101 (its row is locked)
    return row
