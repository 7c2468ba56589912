"""What becomes of an attempt: result x ruling -> decision. Pure: no database, no clock.

A `Result` says how the body (or a guard) ended. An error's `Ruling` comes from
its policy and from how often the step was reattempted already. `decide` turns the two
into the `Finalization` that is applied under the run's lock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pgbus.engine.codec import storable
from pgbus.engine.decision import ErrorEntry, EventEntry, Finalization, NextAttempt
from pgbus.engine.definition.policy import PolicyAction
from pgbus.engine.states import AttemptStatus, Event, Move, Outcome, RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.policy import Policy
    from pgbus.engine.definition.step import Step

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
    """The ruling of a declarative policy, given how often policies reattempted the step in a row."""
    if policy is None or policy.action is None:
        return Ruling(PolicyAction.PAUSE)
    if policy.action is not PolicyAction.REATTEMPT:
        return Ruling(policy.action)
    if _spent(policy, reattempted):
        return _given_up(policy, reattempted)
    return Ruling(PolicyAction.REATTEMPT, wait=policy.delay(reattempted + 1).total_seconds())


def limited(policy: Policy, ruling: Ruling, *, reattempted: int) -> Ruling:
    """What a policy method decided, within the policy's limit of reattempts in a row."""
    if ruling.action is PolicyAction.REATTEMPT and _spent(policy, reattempted):
        return _given_up(policy, reattempted)
    return ruling


def _spent(policy: Policy, reattempted: int) -> bool:
    return policy.max_reattempts is not None and reattempted >= policy.max_reattempts


def _given_up(policy: Policy, reattempted: int) -> Ruling:
    return Ruling(policy.terminal_action, reason=f"gave up after {reattempted} reattempts")


def rule_stall(action: PolicyAction, *, reattempted: int) -> Ruling:
    """The ruling on an attempt lost through no fault of its body, given how often in a row it was."""
    if action is PolicyAction.REATTEMPT and reattempted >= MAX_STALL_REATTEMPTS:
        return Ruling(PolicyAction.PAUSE, reason=f"gave up after {reattempted} reattempts")
    return Ruling(action, cause=Cause.STALL)


@dataclass(frozen=True, slots=True)
class Decider:
    """Decides about one attempt of a step; `queue_of` names a step's physical queue."""

    definition: Definition | None
    step_name: str
    queue: str
    queue_of: Callable[[Step], str]

    def after_result(self, result: Result) -> Finalization:
        """The finalization of an attempt that ended without an error."""
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

    def after_error(
        self,
        error: ErrorEntry,
        ruling: Ruling,
        *,
        output: str | None = None,
        stalled: str | None = None,
    ) -> Finalization:
        """The finalization of an attempt that failed.

        `stalled` tells how a dead worker was noticed (redelivery or sweep).
        """
        details = {"error_class": error.error_class}
        before = (
            (EventEntry(Event.STALL_DETECTED, None, {"detection": stalled}),) if stalled else ()
        )
        failed = EventEntry(Event.STEP_FAILED, None, details)
        match ruling.action:
            case PolicyAction.REATTEMPT:
                entry = EventEntry(Event.STEP_REATTEMPTED, ruling.reason, details)
                return self._reattempt(
                    ruling.wait, entry, ruling.cause, output=output, error=error, before=before
                )
            case PolicyAction.SKIP:
                entry = EventEntry(Event.STEP_SKIPPED, ruling.reason, details)
                result = Result(Outcome.SKIPPED, output)
                return self._advance(AttemptStatus.SKIPPED, entry, result, error=error)
            case PolicyAction.CANCEL:
                move, target, last = Move.STEP_CANCEL, RunStatus.CANCELLED, Event.CANCELLED
                outcome = Outcome.CANCELLED
            case PolicyAction.PAUSE:
                move, target, last = Move.STEP_PAUSE, RunStatus.PAUSED, Event.PAUSED
                outcome = Outcome.PAUSED
        return Finalization(
            move, target, AttemptStatus.FAILED, outcome,
            (*before, failed, EventEntry(last, ruling.reason)),
            output=output, error=error, held=_held(move, ruling.reason),
        )  # fmt: skip

    def _advance(
        self,
        status: AttemptStatus,
        entry: EventEntry,
        result: Result,
        *,
        error: ErrorEntry | None = None,
    ) -> Finalization:
        following = next_live_step(self.definition, self.step_name)
        if following is None:
            move, target = Move.FINISH, RunStatus.FINISHED
            events = (entry, EventEntry(Event.FINISHED))
        else:
            move, target = Move.ADVANCE, RunStatus.READY
            events = (entry, EventEntry(Event.STEP_SCHEDULED))
        return Finalization(
            move, target, status, result.outcome, events, output=result.output, error=error,
            held=_held(Move.ADVANCE), next=self.next_attempt(following) if following else None,
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
            next=NextAttempt(self.step_name, self.queue, wait),
        )  # fmt: skip

    def next_attempt(self, step: Step) -> NextAttempt:
        """When and where a step runs once it is its turn."""
        return scheduled(step, self.queue_of)


def scheduled(step: Step, queue_of: Callable[[Step], str]) -> NextAttempt:
    """The attempt of a step whose turn it is: its wait and its message options are the later of the two."""
    wait = max(step.wait, step.message_wait, timedelta())
    return NextAttempt(step.name, queue_of(step), wait.total_seconds(), step.message_wait_until)


def next_live_step(definition: Definition | None, step_name: str) -> Step | None:
    """The next declared step that is not a gravestone; None after the last."""
    if definition is None:
        return None
    step = definition.step_after(step_name)
    while step is not None and step.removed:
        step = definition.step_after(step.name)
    return step


def _held(move: Move, reason: str | None = None, *, wait: float | None = None) -> str:
    held: dict[str, Any] = {"move": move}
    if reason:
        held["reason"] = storable(reason)
    if wait:
        held["wait"] = wait
    return json.dumps(held)
