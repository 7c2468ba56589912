"""Signals: sent to a run, taken by the step that waits, which is woken in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pgbus.engine import codec, subjects
from pgbus.engine.decision import EventEntry
from pgbus.engine.definition import options, registry
from pgbus.engine.errors import NotOngoing, PayloadError, RunNotFound, SignalKeyReused
from pgbus.engine.observe import emission
from pgbus.engine.runner import control
from pgbus.engine.runner.attempt import verbs_refused
from pgbus.engine.runner.control import Request
from pgbus.engine.runner.gate import first_match, signal_of
from pgbus.engine.states import AttemptStatus, Event, RunStatus, Verb
from pgbus.engine.storage import messages, runs, trail, waits
from pgbus.engine.storage import signals as storage
from pgbus.engine.storage.signals import NewSignal

if TYPE_CHECKING:
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.signal import Sending, Signal
    from pgbus.engine.definition.step import Step
    from pgbus.engine.runner.control import LockedRun
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow, RunRow
    from pgbus.engine.storage.signals import SignalRow


def signal(services: Services, workflow_id: str, sending: Sending) -> Signal:
    """Store the signal; wake the step that waits for it. A key used before changes nothing."""
    new = _checked(services, sending)
    request = Request(sending.actor, sending.reason, sending.session, seen=sending.seen)
    with control.locked(services, workflow_id, Verb.SIGNAL, request) as it:
        if new.idempotency_key is not None:
            earlier = storage.by_key(it.connection, it.run.workflow_id, new.idempotency_key)
            if earlier is not None:
                return _duplicate(it, new, earlier)
        definition = registry.find(it.run.workflow_class)
        if definition is not None:
            with verbs_refused(it.run.workflow_id):
                _check_type(definition, sending)
            services.bus.make_ready(definition)
        row = storage.store(
            it.connection,
            it.run.workflow_id,
            new,
            actor=request.actor,
            reason=request.reason,
        )
        it.record(
            Event.SIGNAL_RECEIVED,
            it.run.status,
            it.run.status,
            reason=request.reason,
            details=_told(new, duplicate=False),
        )
        it.payloads.append(emission.SignalReceived(*_of(it.run), new.name, duplicate=False))
        _offer(services, it, definition)
        return signal_of(row)


def signal_subject(
    services: Services,
    definition: Definition,
    subject: object,
    sending: Sending,
    *,
    missing: str,
) -> Signal | None:
    """Signal the ongoing run of exactly this class for the subject.

    Without one raise `NotOngoing`, or return None where it may be `missing`.
    """
    definition.check_subject(subject)
    reference = subjects.reference_of(subject)
    services.bus.check_schema()
    with services.connection(sending.session) as connection:
        found = runs.ongoing_of_subjects(
            connection, definition.name, [(reference.type, reference.id)]
        )
    run = next(iter(found.values()), None)
    try:
        if run is not None:
            return signal(services, run.workflow_id, sending)
    except (NotOngoing, RunNotFound):  # it ended in between
        if missing != "ignore":
            raise
    if missing == "ignore":
        return None
    raise NotOngoing(
        f"{reference.type} {reference.id} has no ongoing run of {definition.name} to take the signal "
        f"{sending.name!r}; start one, or pass missing='ignore'.",
        status=None,
    )


def _checked(services: Services, sending: Sending) -> NewSignal:
    """Return the signal as it is stored; refuse what cannot be."""
    name = options.signal_name(sending.name)
    key = options.idempotency_key(sending.idempotency_key)
    if sending.payload is None:
        return NewSignal(name, None, key)
    if not isinstance(sending.payload, Mapping):
        kind = type(sending.payload).__qualname__
        raise PayloadError("payload", f"is a {kind}; give a mapping of names to values")
    limit = services.settings.workflow_max_payload_size
    payload = codec.encode(dict(sending.payload), name="payload", limit=limit)
    return NewSignal(name, payload, key)


def _check_type(definition: Definition, sending: Sending) -> None:
    declared = definition.signal_types.get(sending.name)
    if declared is not None:
        declared.value_of(dict(sending.payload or {}))


def _duplicate(it: LockedRun, new: NewSignal, earlier: SignalRow) -> Signal:
    if earlier.name != new.name:
        raise SignalKeyReused(
            f"Run {it.run.workflow_id} got the idempotency key {new.idempotency_key!r} with the signal "
            f"{earlier.name!r} before; a signal {new.name!r} needs a key of its own."
        )
    it.record(
        Event.SIGNAL_RECEIVED,
        it.run.status,
        it.run.status,
        reason=it.request.reason,
        details=_told(new, duplicate=True),
    )
    it.payloads.append(emission.SignalReceived(*_of(it.run), new.name, duplicate=True))
    return signal_of(earlier, duplicate_delivery=True)


def _told(new: NewSignal, *, duplicate: bool) -> dict[str, Any]:
    return {"name": new.name, "idempotency_key": new.idempotency_key, "duplicate": duplicate}


def _of(run: RunRow) -> tuple[str, str]:
    return run.workflow_class, run.workflow_id


def _offer(services: Services, it: LockedRun, definition: Definition | None) -> None:
    """Let the waiting step take what is pending; where its class is not loaded a worker does it."""
    attempt = it.attempt
    if attempt.status is not AttemptStatus.WAITING or attempt.waiting_for is None:
        return
    step, actor = _step_of(definition, attempt), it.request.actor
    if step is None or step.wait_for is None:
        # This process may be an older release, or a newer one, than the workers.
        messages.nudge(it.connection, attempt.queue, it.run.workflow_id)
    elif (row := match(it.connection, attempt, step)) is not None:
        queue = services.queue_of(step)
        trace = services.trace_here(after=attempt.trace)
        wake_with(it.connection, it.run, attempt, row, queue=queue, trace=trace, actor=actor)


def _step_of(definition: Definition | None, attempt: AttemptRow) -> Step | None:
    if definition is None:
        return None
    return next((step for step in definition.steps if step.name == attempt.step_name), None)


def match(connection: Connection, attempt: AttemptRow, step: Step) -> SignalRow | None:
    """Return the oldest pending signal that a waiting step takes; what its matcher raises passes."""
    expectation = step.wait_for
    if expectation is None:
        return None
    found = storage.at_gate(connection, attempt.step_id, expectation.name)
    with verbs_refused(attempt.workflow_id):
        return first_match(expectation, found.pending)


def wake_with(
    connection: Connection,
    run: RunRow,
    attempt: AttemptRow,
    row: SignalRow,
    *,
    queue: str,
    trace: str | None,
    actor: str = "system",
) -> None:
    """Let a waiting attempt have this pending signal, and wake it."""
    woken = woken_status(run)
    take(
        connection,
        run.workflow_id,
        row,
        step=(attempt.step_name, attempt.attempt, attempt.step_id),
        status=run.status,
        target=woken,
        actor=actor,
    )
    wake(connection, run, attempt, source=woken, queue=queue, trace=trace, actor=actor)


def take(
    connection: Connection,
    workflow_id: str,
    row: SignalRow,
    *,
    step: tuple[str, int, int],
    status: RunStatus,
    target: RunStatus | None = None,
    actor: str = "system",
) -> None:
    """Let an attempt (its step's name, its number, its step_id) claim a pending signal."""
    step_name, attempt, step_id = step
    storage.claim(connection, workflow_id, row.signal_id, (step_name, step_id))
    trail.record(
        connection,
        workflow_id,
        EventEntry(Event.SIGNAL_CLAIMED, None, {"name": row.name, "signal_id": row.signal_id}),
        source=status,
        target=target or status,
        actor=actor,
        step_name=step_name,
        attempt=attempt,
    )


def wake(
    connection: Connection,
    run: RunRow,
    attempt: AttemptRow,
    *,
    source: RunStatus,
    queue: str,
    trace: str | None,
    timed_out: bool = False,
    actor: str = "system",
) -> None:
    """Schedule a waiting attempt for now, on this queue; that of a paused run is sent by resume.

    `source` is where the trail stands: at the run's status, or further when an event told of the wake.
    """
    waits.wake(connection, run, attempt, queue=queue, timed_out=timed_out, trace=trace)
    trail.record(
        connection,
        run.workflow_id,
        EventEntry(Event.STEP_SCHEDULED),
        source=source,
        target=woken_status(run),
        actor=actor,
        step_name=attempt.step_name,
        attempt=attempt.attempt,
    )


def woken_status(run: RunRow) -> RunStatus:
    """Return what waking the run's step makes of the run."""
    return RunStatus.READY if run.status is RunStatus.WAITING else run.status
