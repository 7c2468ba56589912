"""What becomes of an attempt: result x ruling -> decision. Pure: no database, no clock.

A `Result` says how the body (or a guard) ended. An error's `Ruling` comes from
its policy and from how often the step was reattempted already. `decide` turns the two
into the `Finalization` that is applied under the run's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.engine.codec import storable
from pgbus.engine.decision import (
    ErrorEntry,
    EventEntry,
    Finalization,
    Held,
    NextAttempt,
    Wait,
)
from pgbus.engine.definition.policy import PolicyAction
from pgbus.engine.states import (
    AttemptStatus,
    Detection,
    Event,
    Move,
    Outcome,
    RunStatus,
    StallAction,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.policy import Policy
    from pgbus.engine.definition.step import Step
    from pgbus.engine.storage.batches import BatchPlan

#: How often in a row a stalled attempt is reattempted before its run pauses.
MAX_STALL_REATTEMPTS = 100


class Cause(StrEnum):
    """Who had an attempt reattempted; each has a count of its own."""

    POLICY = "policy"
    BODY = "body"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Result:
    """How a body, or a guard before it, ended without an error.

    `outcome` is what it asked for; `wait` the seconds before a reattempt.
    """

    outcome: Outcome
    output: str | None = None
    reason: str | None = None
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Ruling:
    """What to do about an error: the action, after how many seconds, why; which count it is of."""

    action: PolicyAction
    wait: float = 0.0
    reason: str | None = None
    cause: Cause = Cause.POLICY


def rule(policy: Policy | None, *, reattempted: int) -> Ruling:
    """Rule by a declarative policy, given how often policies reattempted the step in a row."""
    if policy is None or policy.action is None:
        return Ruling(PolicyAction.PAUSE)
    if policy.action is not PolicyAction.REATTEMPT:
        return Ruling(policy.action)
    if _spent(policy, reattempted):
        return _given_up(policy, reattempted)
    return Ruling(PolicyAction.REATTEMPT, wait=policy.delay(reattempted + 1).total_seconds())


def limited(policy: Policy, ruling: Ruling, *, reattempted: int) -> Ruling:
    """Return what a policy method decided, within the policy's limit of reattempts in a row."""
    if ruling.action is PolicyAction.REATTEMPT and _spent(policy, reattempted):
        return _given_up(policy, reattempted)
    return ruling


def _spent(policy: Policy, reattempted: int) -> bool:
    return policy.max_reattempts is not None and reattempted >= policy.max_reattempts


def _given_up(policy: Policy, reattempted: int) -> Ruling:
    return Ruling(policy.terminal_action, reason=f"gave up after {reattempted} reattempts")


def rule_stall(action: StallAction, *, reattempted: int) -> Ruling:
    """Rule on an attempt lost through no fault of its body, given how often in a row it was."""
    if action is StallAction.REATTEMPT and reattempted >= MAX_STALL_REATTEMPTS:
        return Ruling(PolicyAction.PAUSE, reason=f"gave up after {reattempted} reattempts")
    return Ruling(PolicyAction(action), cause=Cause.STALL)


@dataclass(frozen=True, slots=True)
class Decider:
    """Decides about one attempt of a declared step; `queue_of` names a step's physical queue."""

    definition: Definition
    step: Step
    queue_of: Callable[[Step], str]

    def after_result(self, result: Result) -> Finalization:
        """Return the finalization of an attempt that ended without an error."""
        match result.outcome:
            case Outcome.COMPLETED:
                return self._advance(
                    AttemptStatus.COMPLETED, EventEntry(Event.STEP_COMPLETED), result
                )
            case Outcome.SKIPPED:
                entry = EventEntry(Event.STEP_SKIPPED, result.reason)
                return self._advance(AttemptStatus.SKIPPED, entry, result)
            case Outcome.FINISHED:
                return Finalization(
                    Move.FINISH, RunStatus.FINISHED, AttemptStatus.COMPLETED, Outcome.FINISHED,
                    (EventEntry(Event.STEP_COMPLETED), EventEntry(Event.FINISHED, result.reason)),
                    output=result.output, held=_held(Move.FINISH, result.reason),
                )  # fmt: skip
            case Outcome.PAUSED:
                return Finalization(
                    Move.STEP_PAUSE, RunStatus.PAUSED, AttemptStatus.COMPLETED, Outcome.PAUSED,
                    (EventEntry(Event.STEP_COMPLETED), EventEntry(Event.PAUSED, result.reason)),
                    output=result.output, held=_held(Move.STEP_PAUSE, result.reason),
                )  # fmt: skip
            case Outcome.CANCELLED:
                return Finalization(
                    Move.STEP_CANCEL, RunStatus.CANCELLED, AttemptStatus.CANCELLED,
                    Outcome.CANCELLED, (EventEntry(Event.CANCELLED, result.reason),),
                    output=result.output,
                )  # fmt: skip
            case Outcome.REATTEMPTED:
                return self._reattempt(
                    result.wait, EventEntry(Event.STEP_REATTEMPTED, result.reason), Cause.BODY,
                    output=result.output,
                )  # fmt: skip

    def park_at_gate(self, timeout_at: datetime | None) -> Finalization:
        """Return how an attempt parks that found no signal at its gate."""
        assert self.step.wait_for is not None  # noqa: S101 (only such a step has a gate)
        waiting_for = self.step.wait_for.description
        details = {
            "wait_for": waiting_for,
            "timeout_at": timeout_at.isoformat() if timeout_at else None,
        }
        return Finalization(
            Move.PARK, RunStatus.WAITING, AttemptStatus.WAITING, None,
            (EventEntry(Event.STEP_WAITING, None, details),),
            wait=Wait(waiting_for, timeout_at),
        )  # fmt: skip

    def after_fan_out(self, output: str | None, batch: BatchPlan | None) -> Finalization:
        """Return how a fan-out's attempt parks on its batch; with none it has completed."""
        if batch is None:
            final = self.after_result(Result(Outcome.COMPLETED, output))
            none = EventEntry(Event.FAN_OUT_FINISHED, None, {"failed_jobs": 0, "total_jobs": 0})
            return replace(final, events=(none, *final.events))
        batch_id = batch.new.batch_id
        opened = {"batch_id": batch_id, "size": len(batch.members)}
        return Finalization(
            Move.PARK, RunStatus.WAITING, AttemptStatus.WAITING, None,
            (EventEntry(Event.FAN_OUT_OPENED, None, opened),
             EventEntry(Event.STEP_WAITING, None, {"batch_id": batch_id})),
            output=output, held=_held(Move.PARK), wait=Wait(batch=batch),
        )  # fmt: skip

    def after_batch(self, error: ErrorEntry | None, output: str | None) -> Finalization:
        """Return how a fan-out's attempt ends, given what failed in its batch."""
        if error is None:
            return self.after_result(Result(Outcome.COMPLETED, output))
        return self.after_error(
            error, Ruling(PolicyAction(self.step.on_batch_failure)), output=output
        )

    def after_error(
        self,
        error: ErrorEntry,
        ruling: Ruling,
        *,
        output: str | None = None,
        detection: Detection | None = None,
    ) -> Finalization:
        """Return the finalization of an attempt that failed; `detection` tells of a stall."""
        details = {"error_class": error.error_class}
        match ruling.action:
            case PolicyAction.REATTEMPT:
                entry = EventEntry(Event.STEP_REATTEMPTED, ruling.reason, details)
                return self._reattempt(
                    ruling.wait, entry, ruling.cause,
                    output=output, error=error, before=_detected(detection),
                )  # fmt: skip
            case PolicyAction.SKIP:
                entry = EventEntry(Event.STEP_SKIPPED, ruling.reason, details)
                result = Result(Outcome.SKIPPED, output)
                return self._advance(AttemptStatus.SKIPPED, entry, result, error=error)
            case PolicyAction.CANCEL:
                return Finalization(
                    Move.STEP_CANCEL, RunStatus.CANCELLED, AttemptStatus.FAILED, Outcome.CANCELLED,
                    (*_failed(error, detection), EventEntry(Event.CANCELLED, ruling.reason)),
                    output=output, error=error, held=_held(Move.STEP_CANCEL, ruling.reason),
                )  # fmt: skip
            case PolicyAction.PAUSE:
                return pause_on(error, ruling.reason, output=output, detection=detection)

    def _advance(
        self,
        status: AttemptStatus,
        entry: EventEntry,
        result: Result,
        *,
        error: ErrorEntry | None = None,
    ) -> Finalization:
        following = next_live_step(self.definition, self.step.name)
        if following is None:
            move, target = Move.FINISH, RunStatus.FINISHED
            events = (entry, EventEntry(Event.FINISHED))
        else:
            move, target = Move.ADVANCE, RunStatus.READY
            events = (entry, EventEntry(Event.STEP_SCHEDULED))
        return Finalization(
            move, target, status, result.outcome, events, output=result.output, error=error,
            held=_held(Move.ADVANCE), next=scheduled(following, self.queue_of) if following else None,
        )  # fmt: skip

    def _reattempt(
        self,
        wait: float,
        entry: EventEntry,
        cause: Cause,
        *,
        output: str | None,
        error: ErrorEntry | None = None,
        before: tuple[EventEntry, ...] = (),
    ) -> Finalization:
        return Finalization(
            Move.REATTEMPT, RunStatus.READY, AttemptStatus.FAILED, Outcome.REATTEMPTED,
            (*before, entry, EventEntry(Event.STEP_SCHEDULED)),
            output=output, error=error, reattempted_by=cause,
            held=_held(Move.REATTEMPT, wait=wait),
            next=NextAttempt(self.step.name, self.queue_of(self.step), wait),
        )  # fmt: skip


def pause_on(
    error: ErrorEntry,
    reason: str | None = None,
    *,
    output: str | None = None,
    detection: Detection | None = None,
) -> Finalization:
    """Return the finalization of a failed attempt that pauses its run, its step declared or not."""
    return Finalization(
        Move.STEP_PAUSE, RunStatus.PAUSED, AttemptStatus.FAILED, Outcome.PAUSED,
        (*_failed(error, detection), EventEntry(Event.PAUSED, reason)),
        output=output, error=error, held=_held(Move.STEP_PAUSE, reason),
    )  # fmt: skip


def _failed(error: ErrorEntry, detection: Detection | None) -> tuple[EventEntry, ...]:
    failed = EventEntry(Event.STEP_FAILED, None, {"error_class": error.error_class})
    return (*_detected(detection), failed)


def _detected(detection: Detection | None) -> tuple[EventEntry, ...]:
    if detection is None:
        return ()
    return (EventEntry(Event.STALL_DETECTED, None, {"detection": detection}),)


def scheduled(step: Step, queue_of: Callable[[Step], str]) -> NextAttempt:
    """Return the attempt of a step whose turn it is: the later of its wait and message options."""
    wait = max(step.wait, step.message_wait, timedelta())
    return NextAttempt(step.name, queue_of(step), wait.total_seconds(), step.message_wait_until)


def next_live_step(definition: Definition, step_name: str) -> Step | None:
    """Return the next declared step that is not a gravestone; None after the last."""
    step = definition.step_after(step_name)
    while step is not None and step.removed:
        step = definition.step_after(step.name)
    return step


def _held(move: Move, reason: str | None = None, *, wait: float = 0.0) -> Held:
    return Held(move, reason and storable(reason), wait)
