"""What becomes of an attempt whose worker died, froze or hung."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.errors import StepNotDefined
from pgbus.engine.runner.decide import pause_on, rule_stall
from pgbus.engine.runner.declarations import declared
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.runner.finalize import Ending
from pgbus.engine.states import StallAction

if TYPE_CHECKING:
    from pgbus.engine.definition.step import Step
    from pgbus.engine.errors import StepStalled
    from pgbus.engine.runner.services import Services
    from pgbus.engine.states import Detection
    from pgbus.engine.storage.claims import Delivery


def after_stall(
    services: Services, delivery: Delivery, error: StepStalled, detection: Detection
) -> Ending:
    """Return how a stalled attempt ends; `error` says how that was noticed."""
    recorded = record_error(error, backtrace_lines=0)
    try:
        definition, step = declared(delivery.workflow_class, delivery.step_name)
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
