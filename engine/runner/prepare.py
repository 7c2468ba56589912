"""Before a body: claim under the run's lock, ask the guards there, act on what they say."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.definition.policy import PolicyAction
from pgbus.engine.errors import StepNotDefined, StepStalled
from pgbus.engine.runner.attempt import Attempt
from pgbus.engine.runner.decide import Result, Ruling, rule_stall
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.runner.finalize import Applied, Ending
from pgbus.engine.runner.policies import after_error
from pgbus.engine.states import Outcome
from pgbus.engine.storage import runs, transitions
from pgbus.engine.storage.transitions import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.runner.finalize import Finalizer
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.transitions import Worker

#: The run whose lock a guard of this context is asked under; its verbs would wait for themselves.
guarded_run: ContextVar[str | None] = ContextVar("pgbus_guarded_run", default=None)


def prepare(
    services: Services, worker: Worker, finalizer: Finalizer, delivery: Delivery
) -> Attempt | Ending | Applied | None:
    """The attempt whose body is to run; or how it ended before that; None: nothing to do."""
    if delivery.verdict == "claimed":
        return _attempt(services, delivery)
    if delivery.verdict == "crashed":
        return _stalled(services, delivery)
    prepared = services.database.persistently(
        lambda connection: _under_lock(services, worker, finalizer, delivery, connection)
    )
    return _stalled(services, prepared) if isinstance(prepared, Delivery) else prepared


def _under_lock(
    services: Services,
    worker: Worker,
    finalizer: Finalizer,
    delivery: Delivery,
    connection: Connection,
) -> Attempt | Applied | Delivery | None:
    """Claims and asks the guards in one transaction; run again, it finds what it did before.

    A delivery is one whose worker died. Raises `RunLocked` when the lock is not to be had.
    """
    with connection.transaction():
        claimed = transitions.claim(connection, worker, delivery)
        if claimed is None or claimed.verdict == "crashed":
            return claimed
        prepared = _attempt(services, claimed)
        if isinstance(prepared, Attempt):
            with _verbs_refused(claimed.workflow_id):
                prepared = _guarded(services, prepared)
        return finalizer.apply(connection, prepared) if isinstance(prepared, Ending) else prepared


def _attempt(services: Services, claimed: Delivery) -> Attempt | Ending:
    definition = registry.find(claimed.workflow_class)
    if definition is None:
        return _undefined(
            services,
            claimed,
            StepNotDefined(
                f"{claimed.workflow_class} is not loaded in this worker; import its module from "
                "the one that --app names."
            ),
        )
    try:
        step = definition.step(claimed.step_name)
    except StepNotDefined as error:
        return _undefined(services, claimed, error)
    if step.removed:
        decider = services.decider(claimed, definition, step)
        result = Result(Outcome.SKIPPED, reason="the step was removed")
        return Ending(claimed, definition, decider.after_result(result))
    return Attempt(services, claimed, definition, step)


def _undefined(services: Services, claimed: Delivery, error: StepNotDefined) -> Ending:
    decider = services.decider(claimed, None, None)
    final = decider.after_error(record_error(error, backtrace_lines=0), Ruling(PolicyAction.PAUSE))
    return Ending(claimed, None, final)


def _guarded(services: Services, attempt: Attempt) -> Attempt | Ending:
    try:
        result = attempt.ask_guards()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a host's guard: whatever it raises is recorded)
        return after_error(services, attempt, error)
    if result is None:
        return attempt
    decider = services.decider(attempt.delivery, attempt.definition, attempt.step)
    return Ending(attempt.delivery, attempt.definition, decider.after_result(result))


def _stalled(services: Services, delivery: Delivery, detection: str = "redelivery") -> Ending:
    definition = registry.find(delivery.workflow_class)
    step = _declared_step(definition, delivery.step_name)
    action = PolicyAction(_stall_action(services, step))
    _, stalls = services.database.persistently(
        lambda connection: runs.reattempts(
            connection, delivery.workflow_id, delivery.step_name, delivery.attempt
        )
    )
    error = StepStalled(
        f"The worker died or froze while it ran attempt {delivery.attempt} of "
        f"{delivery.step_name}: its message was delivered again."
    )
    final = services.decider(delivery, definition, step).after_error(
        record_error(error, backtrace_lines=0),
        rule_stall(action, reattempted=stalls),
        stalled=detection,
    )
    return Ending(delivery, definition, final, stalled=detection)


def _declared_step(definition: Definition | None, name: str) -> Step | None:
    try:
        return definition.step(name) if definition else None
    except StepNotDefined:
        return None


def _stall_action(services: Services, step: Step | None) -> str:
    if step is None:
        return "pause"
    if step.on_stall is not None:
        return step.on_stall
    return "reattempt" if step.transactional else services.settings.workflow_stall_action


@contextmanager
def _verbs_refused(workflow_id: str) -> Iterator[None]:
    token = guarded_run.set(workflow_id)
    try:
        yield
    finally:
        guarded_run.reset(token)
