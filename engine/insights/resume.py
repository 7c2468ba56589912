"""What resuming a paused run would do just now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.engine.decision import Held
from pgbus.engine.definition import registry
from pgbus.engine.states import AttemptStatus, Move, RunStatus

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.insights.runs import RunSummary
    from pgbus.engine.storage.database import Connection


class ResumeKind(StrEnum):
    """How a run goes on when it is resumed."""

    RETRY = "retry"
    CONTINUE = "continue"
    FINISH = "finish"
    CANCEL = "cancel"
    KEEP_WAITING = "keep_waiting"
    RUN_AT_TIME = "run_at_time"
    LET_STEP_END = "let_step_end"
    OPEN_FAN_OUT = "open_fan_out"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a resume does, and of which step (None: of none).

    The step is due `wait_seconds` after it and not before `not_before`. Of a wait that goes on, those are
    what is left until its deadline, None without one. It is `REFUSED` when the loaded class does not declare
    the step.
    """

    kind: ResumeKind
    step_name: str | None = None
    wait_seconds: float | None = None
    not_before: datetime | None = None


#: The batch that a fan-out holds may be large: only that there is one is told.
_NEWEST = """
SELECT (held - 'batch')::text, coalesce(held ? 'batch', false), extract(epoch FROM timeout_left)::double precision
  FROM {schema}.workflow_steps WHERE step_id = CAST(:step_id AS bigint)
"""


def plan(connection: Connection, run: RunSummary) -> ResumePlan | None:
    """Return what a resume would do; None for a run that is not paused, or not loaded here."""
    definition = registry.find(run.workflow_class)
    if run.status is not RunStatus.PAUSED or definition is None:
        return None
    ((encoded, opens_batch, seconds_left),) = connection.rows(_NEWEST, step_id=run.step_id)
    held = Held.decode(encoded) if encoded else None
    return _plan(definition, run, held, opens_batch=opens_batch, seconds_left=seconds_left)


def _plan(
    definition: Definition,
    run: RunSummary,
    held: Held | None,
    *,
    opens_batch: bool,
    seconds_left: float | None,
) -> ResumePlan:
    """Return it in the order in which the engine looks: what a body's end held back comes first."""
    step = run.current_step
    match held, run.attempt_status:
        case Held(Move.FINISH), _:
            return ResumePlan(ResumeKind.FINISH)
        case Held(Move.STEP_CANCEL), _:
            return ResumePlan(ResumeKind.CANCEL)
        case Held(Move.REATTEMPT, wait=wait), _:
            return _again(definition, step, wait)
        case Held(Move.PARK), _ if opens_batch:
            return ResumePlan(ResumeKind.OPEN_FAN_OUT, step)
        case (Held(Move.ADVANCE), _) | (_, AttemptStatus.COMPLETED | AttemptStatus.SKIPPED):
            return _onwards(definition, step)
        case _, AttemptStatus.IN_PROGRESS:
            return ResumePlan(ResumeKind.LET_STEP_END, step)
        case _, AttemptStatus.WAITING:
            return ResumePlan(ResumeKind.KEEP_WAITING, step, seconds_left)
        case _, AttemptStatus.SCHEDULED if _declared(definition, step) is None:
            return ResumePlan(ResumeKind.REFUSED, step)
        case _, AttemptStatus.SCHEDULED:
            return ResumePlan(ResumeKind.RUN_AT_TIME, step, not_before=run.scheduled_at)
        case _:
            return _again(definition, step, 0.0)


def _again(definition: Definition, step_name: str, wait: float) -> ResumePlan:
    """Return a retry; an attempt of a removed step does nothing but pass the run on."""
    declared = _declared(definition, step_name)
    if declared is not None and not declared.removed:
        return ResumePlan(ResumeKind.RETRY, step_name, wait)
    return _onwards(definition, step_name)


def _onwards(definition: Definition, step_name: str) -> ResumePlan:
    if _declared(definition, step_name) is None:
        return ResumePlan(ResumeKind.REFUSED, step_name)
    place = [step.name for step in definition.steps].index(step_name)
    following = next((step for step in definition.steps[place + 1 :] if not step.removed), None)
    if following is None:
        return ResumePlan(ResumeKind.FINISH)
    wait = max(following.wait, following.message_wait).total_seconds()
    return ResumePlan(ResumeKind.CONTINUE, following.name, wait, following.message_wait_until)


def _declared(definition: Definition, step_name: str) -> Step | None:
    return next((step for step in definition.steps if step.name == step_name), None)
