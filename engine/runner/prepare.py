"""Before a body: claim under the run's lock, ask the guards there, act on what they say."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pgbus.engine.errors import StepNotDefined, StepStalled
from pgbus.engine.runner import deadlines, signals, waits
from pgbus.engine.runner.attempt import Attempt, verbs_refused
from pgbus.engine.runner.decide import Result, pause_on
from pgbus.engine.runner.declarations import declared
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.runner.finalize import Applied, Ending
from pgbus.engine.runner.policies import after_error
from pgbus.engine.runner.stalls import after_stall
from pgbus.engine.states import Detection, Outcome, RunStatus
from pgbus.engine.storage import claims
from pgbus.engine.storage.claims import ClaimVerdict, Delivery

if TYPE_CHECKING:
    from pgbus.engine.runner.finalize import Finalizer
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Worker
    from pgbus.engine.storage.database import Connection


_log = logging.getLogger("pgbus.runner")


def prepare(
    services: Services, worker: Worker, finalizer: Finalizer, delivery: Delivery
) -> Attempt | Ending | Applied | None:
    """Return the attempt whose body is to run; or how it ended before that; None: nothing to do."""
    if delivery.verdict is ClaimVerdict.CLAIMED:
        return _claimed(services, finalizer, delivery)
    if delivery.verdict is ClaimVerdict.CRASHED:
        return _crashed(services, delivery)
    prepared = services.database.persistently(
        lambda connection: _under_lock(services, worker, finalizer, delivery, connection)
    )
    return _crashed(services, prepared) if isinstance(prepared, Delivery) else prepared


def _claimed(services: Services, finalizer: Finalizer, delivery: Delivery) -> Attempt | Ending:
    attempt = _attempt(services, finalizer, delivery)
    if isinstance(attempt, Attempt) and attempt.step.wait_for is not None:
        # Its claim's answer was lost, after it had passed its gate.
        services.database.persistently(attempt.open_gate)
    return attempt


def _crashed(services: Services, delivery: Delivery) -> Ending | None:
    """Return the stall of an attempt whose message came again.

    Without heartbeats a message comes again whether its worker died or is at it still: None.
    """
    if not services.settings.visibility_heartbeat:
        return None
    error = StepStalled(
        f"The worker died or froze while it ran attempt {delivery.attempt} of "
        f"{delivery.step_name}: its message was delivered again."
    )
    return after_stall(services, delivery, error, Detection.REDELIVERY)


def _under_lock(
    services: Services,
    worker: Worker,
    finalizer: Finalizer,
    delivery: Delivery,
    connection: Connection,
) -> Attempt | Applied | Delivery | None:
    """Claim and ask the guards in one transaction; run again, it finds what it did before.

    A delivery is one whose worker died. Raise `RunLocked` when the lock is not to be had.
    """
    with connection.transaction():
        claimed = claims.claim(connection, worker, delivery)
        if claimed is None or claimed.verdict is ClaimVerdict.CRASHED:
            return claimed
        if claimed.verdict is ClaimVerdict.WAITING:
            return waits.look_again(services, finalizer, connection, claimed)
        prepared = _attempt(services, finalizer, claimed)
        if isinstance(prepared, Attempt):
            prepared.open_gate(connection)
            with verbs_refused(claimed.workflow_id):
                prepared = _guarded(services, prepared, connection)
        return finalizer.apply(connection, prepared) if isinstance(prepared, Ending) else prepared


def _attempt(services: Services, finalizer: Finalizer, claimed: Delivery) -> Attempt | Ending:
    try:
        definition, step = declared(claimed.workflow_class, claimed.step_name)
    except StepNotDefined as error:
        _log.warning("Run %s pauses: %s", claimed.workflow_id, error)
        return Ending(claimed, None, pause_on(record_error(error, backtrace_lines=0)))
    if step.removed:
        result = Result(Outcome.SKIPPED, reason="the step was removed")
        return Ending(claimed, definition, services.decider(definition, step).after_result(result))
    return Attempt(services, claimed, definition, step, finalizer.span_of(claimed))


def _guarded(services: Services, attempt: Attempt, connection: Connection) -> Attempt | Ending:
    delivery, decider = attempt.delivery, services.decider(attempt.definition, attempt.step)
    try:
        result = attempt.ask_guards()
        if result is not None:
            return Ending(delivery, attempt.definition, decider.after_result(result))
        if attempt.gate is None or attempt.gate.timed_out or attempt.gate.row is not None:
            passed, deadline = True, None
        else:
            passed, deadline = False, attempt.deadline()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a host's guard: whatever it raises is recorded)
        return after_error(services, attempt, error)
    if passed:
        _take_signal(attempt, connection)
        return attempt
    timeout_at = deadlines.moment_of(connection, deadline)
    return Ending(delivery, attempt.definition, decider.park_at_gate(timeout_at))


def _take_signal(attempt: Attempt, connection: Connection) -> None:
    gate, delivery = attempt.gate, attempt.delivery
    if gate is None or gate.row is None or not gate.takes:
        return
    signals.take(
        connection,
        delivery.workflow_id,
        gate.row,
        step=(delivery.step_name, delivery.attempt, delivery.step_id),
        status=RunStatus.PERFORMING,
    )
