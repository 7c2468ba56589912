"""What a host's policies say about an error, its policy methods asked."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from pgbus.engine.definition.policy import PolicyAction, Report
from pgbus.engine.definition.scope import Phase
from pgbus.engine.definition.verbs import (
    CancelRun,
    FinishRun,
    PauseRun,
    ReattemptStep,
    SkipStep,
    StepVerb,
    find_verb,
)
from pgbus.engine.runner.decide import Result, Ruling, limited, rule
from pgbus.engine.runner.finalize import Ending
from pgbus.engine.states import Outcome

if TYPE_CHECKING:
    from pgbus.engine.definition.policy import Policy
    from pgbus.engine.runner.attempt import Attempt
    from pgbus.engine.runner.services import Services

#: A verb that ends its run as finished is no ruling on the error: it is a result.
_ACTIONS: dict[type[StepVerb], PolicyAction] = {
    PauseRun: PolicyAction.PAUSE,
    SkipStep: PolicyAction.SKIP,
    CancelRun: PolicyAction.CANCEL,
    ReattemptStep: PolicyAction.REATTEMPT,
}

_log = logging.getLogger("pgbus.runner")


def after_error(
    services: Services, attempt: Attempt, error: BaseException, *, seconds: float | None = None
) -> Ending:
    """Return how an attempt ends whose guard or body raised."""
    delivery = attempt.delivery
    _warn(
        attempt,
        error,
        "%s %s, attempt %d of run %s raised.",
        delivery.workflow_class,
        delivery.step_name,
        delivery.attempt,
        delivery.workflow_id,
    )
    recorded = services.recorded(error)
    decider = services.decider(attempt.definition, attempt.step)
    output = attempt.storable_output()
    ruling, report = _ruling(services, attempt, error)
    if isinstance(ruling, FinishRun):
        final = decider.after_result(Result(Outcome.FINISHED, output, ruling.reason))
        final = dataclasses.replace(final, error=recorded)
    else:
        final = decider.after_error(recorded, ruling, output=output)
    reported = report is Report.ALWAYS or (
        report is Report.TERMINAL_ONLY and final.outcome is not Outcome.REATTEMPTED
    )
    return Ending(delivery, attempt.definition, final, seconds, reported=reported)


def _warn(attempt: Attempt, error: BaseException, message: str, *values: object) -> None:
    """Log an error; neither its text nor a handler of the host's keeps it from being recorded."""
    with suppress(Exception):
        _log.warning(
            message,
            *values,
            exc_info=(type(error), error, error.__traceback__),
            extra=dataclasses.asdict(attempt.context),
        )


def _ruling(
    services: Services, attempt: Attempt, error: BaseException
) -> tuple[Ruling | FinishRun, Report]:
    """Return what is to become of the attempt, and when its error is to be reported."""
    delivery = attempt.delivery
    try:
        policy = attempt.definition.policy_for(attempt.step, error)
        if policy is None:
            return Ruling(PolicyAction.PAUSE), Report.ALWAYS
        reattempted = services.reattempts(delivery).by_policies
        if policy.handler is None:
            return rule(policy, reattempted=reattempted), policy.report
        return _asked(attempt, policy, error, reattempted), policy.report
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # noqa: BLE001 (a host's policy: its failure must not hide the step's)
        _warn(
            attempt,
            raised,
            "The policy for step %s of %s raised; run %s pauses with the original error.",
            delivery.step_name,
            delivery.workflow_class,
            delivery.workflow_id,
        )
        return Ruling(PolicyAction.PAUSE, reason="the policy itself raised"), Report.ALWAYS


def _asked(
    attempt: Attempt, policy: Policy, error: BaseException, reattempted: int
) -> Ruling | FinishRun:
    """Return the verb that a policy method chose; without one the run pauses."""
    assert policy.handler is not None  # noqa: S101 (the caller chose such a policy)
    with attempt.phase(Phase.POLICY) as (workflow, _session):
        try:
            policy.handler(workflow, error)
        except BaseException as raised:
            verb = find_verb(raised)
            if verb is None:
                raise
            if isinstance(verb, FinishRun):
                return verb
            return limited(policy, _ruling_of(verb), reattempted=reattempted)
    return Ruling(PolicyAction.PAUSE)


def _ruling_of(verb: StepVerb) -> Ruling:
    return Ruling(_ACTIONS[type(verb)], verb.wait.total_seconds(), verb.reason)
