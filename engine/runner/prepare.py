"""Before a body: claim under the run's lock, ask the guards there, act on what they say."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.definition.scope import guarded_run
from pgbus.engine.errors import StepNotDefined, StepStalled
from pgbus.engine.runner.attempt import Attempt
from pgbus.engine.runner.decide import Result, pause_on, rule_stall
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.runner.finalize import Applied, Ending
from pgbus.engine.runner.policies import after_error
from pgbus.engine.states import Detection, Outcome, StallAction
from pgbus.engine.storage import claims
from pgbus.engine.storage.claims import ClaimVerdict, Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.runner.finalize import Finalizer
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Worker
    from pgbus.engine.storage.database import Connection


def prepare(
    services: Services, worker: Worker, finalizer: Finalizer, delivery: Delivery
) -> Attempt | Ending | Applied | None:
    """Return the attempt whose body is to run; or how it ended before that; None: nothing to do."""
    if delivery.verdict is ClaimVerdict.CLAIMED:
        return _attempt(services, delivery)
    if delivery.verdict is ClaimVerdict.CRASHED:
        return _crashed(services, delivery)
    prepared = services.database.persistently(
        lambda connection: _under_lock(services, worker, finalizer, delivery, connection)
    )
    return _crashed(services, prepared) if isinstance(prepared, Delivery) else prepared


def _crashed(services: Services, delivery: Delivery) -> Ending | None:
    """Return the stall of an attempt whose message came again.

    Without heartbeats a message comes again whether its worker died or is at it still: None.
    """
    return _stalled(services, delivery) if services.settings.visibility_heartbeat else None


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
        prepared = _attempt(services, claimed)
        if isinstance(prepared, Attempt):
            with _verbs_refused(claimed.workflow_id):
                prepared = _guarded(services, prepared)
        return finalizer.apply(connection, prepared) if isinstance(prepared, Ending) else prepared


def _attempt(services: Services, claimed: Delivery) -> Attempt | Ending:
    try:
        definition, step = _declared(claimed)
    except StepNotDefined as error:
        return Ending(claimed, None, pause_on(record_error(error, backtrace_lines=0)))
    if step.removed:
        result = Result(Outcome.SKIPPED, reason="the step was removed")
        return Ending(claimed, definition, services.decider(definition, step).after_result(result))
    return Attempt(services, claimed, definition, step)


def _declared(delivery: Delivery) -> tuple[Definition, Step]:
    """Return what this worker's code declares for the step, or raise `StepNotDefined`."""
    definition = registry.find(delivery.workflow_class)
    if definition is None:
        raise StepNotDefined(
            f"{delivery.workflow_class} is not loaded in this worker; import its module from "
            "the one that --app names (a class in a script's __main__ is found by no other "
            "process: move it into a module)."
        )
    return definition, definition.step(delivery.step_name)


def _guarded(services: Services, attempt: Attempt) -> Attempt | Ending:
    try:
        result = attempt.ask_guards()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a host's guard: whatever it raises is recorded)
        return after_error(services, attempt, error)
    if result is None:
        return attempt
    decider = services.decider(attempt.definition, attempt.step)
    return Ending(attempt.delivery, attempt.definition, decider.after_result(result))


def _stalled(services: Services, delivery: Delivery) -> Ending:
    error = StepStalled(
        f"The worker died or froze while it ran attempt {delivery.attempt} of "
        f"{delivery.step_name}: its message was delivered again."
    )
    recorded, detection = record_error(error, backtrace_lines=0), Detection.REDELIVERY
    try:
        definition, step = _declared(delivery)
    except StepNotDefined:
        final = pause_on(recorded, detection=detection)
        return Ending(delivery, None, final, detection=detection)
    ruling = rule_stall(
        _stall_action(services, step), reattempted=services.reattempts(delivery).by_stalls
    )
    final = services.decider(definition, step).after_error(recorded, ruling, detection=detection)
    return Ending(delivery, definition, final, detection=detection)


def _stall_action(services: Services, step: Step) -> StallAction:
    if step.on_stall is not None:
        return step.on_stall
    return StallAction.REATTEMPT if step.transactional else services.settings.workflow_stall_action


@contextmanager
def _verbs_refused(workflow_id: str) -> Iterator[None]:
    token = guarded_run.set(workflow_id)
    try:
        yield
    finally:
        guarded_run.reset(token)
