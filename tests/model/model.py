"""A small, pure model of runs, after the specification of their states, signals and waits.

It shares the names of states with the engine, and what the classes declare; nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shapes import BREAKS, MATCHES, MAX_REATTEMPTS, SIGNAL, Asked, Broken, Ending, Guarding

from pgbus.engine import errors
from pgbus.engine.states import (
    AttemptStatus,
    MemberStatus,
    OnTimeout,
    Outcome,
    RunStatus,
    SignalStatus,
    StallAction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shapes import Scripted

    from pgbus.engine.definition.step import Step

R, A, O, S = RunStatus, AttemptStatus, Outcome, SignalStatus  # noqa: E741 (the four tables of states)


class Due(StrEnum):
    """When a scheduled attempt may be claimed; what is far off has no message yet."""

    NOW = "now"
    SOON = "soon"
    FAR = "far"


class Deadline(StrEnum):
    """Where a wait's deadline lies."""

    AHEAD = "ahead"
    PAST = "past"


class Then(StrEnum):
    """How an attempt's end moves its run: what is held while that is paused."""

    ADVANCE = "advance"
    FINISH = "finish"
    PAUSE = "step_pause"
    CANCEL = "step_cancel"
    REATTEMPT = "reattempt"
    PARK = "park"


class Refused(Exception):
    """What the caller of a verb gets instead of a change."""

    def __init__(self, error: type[Exception], status: RunStatus | None = None) -> None:
        super().__init__(error, status)
        self.error = error
        self.status = status


class _Raised(Exception):
    """A host's code raised: the class's name, and what the policies make of it."""


@dataclass(frozen=True)
class End:
    """How an attempt ended, and what then."""

    status: AttemptStatus
    outcome: Outcome
    then: Then
    error: str | None = None
    later: bool = False
    at_once: bool = False
    by_policy: bool = False


@dataclass
class Batch:
    """A fan-out's batch: `stale` when it finished so long ago that its completion must be lost."""

    members: list[MemberStatus]
    withdrawn: bool = False
    gone: bool = False
    stale: bool = False

    @property
    def finished(self) -> bool:
        return MemberStatus.OPEN not in self.members

    @property
    def over(self) -> bool:
        return self.finished or self.gone


@dataclass
class Attempt:
    """One try of a step; `message` tells that the message it names is in the queue."""

    step: Step
    number: int
    status: AttemptStatus = A.SCHEDULED
    outcome: Outcome | None = None
    error: str | None = None
    held: End | None = None
    due: Due = Due.NOW
    message: bool = True
    deadline: Deadline | None = None
    late: bool = False
    timed_out: bool = False
    batch: Batch | None = None
    #: Members of a fan-out that ended while its run was paused.
    planned: int = 0

    def __str__(self) -> str:
        return f"{self.step.name} {self.number} {self.status}"

    @property
    def waits_for_signal(self) -> bool:
        return self.status is A.WAITING and not self.step.fan_out


@dataclass
class Signal:
    """A signal that a run got."""

    name: str
    n: int
    key: str | None
    status: SignalStatus = S.PENDING
    step: str | None = None


@dataclass
class Run:
    """One run, and every attempt of its steps."""

    shape: type[Scripted]
    status: RunStatus = R.READY
    attempts: list[Attempt] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    #: How often in a row policies reattempted the step that the run is on.
    reattempted: int = 0
    ignored: int = 0

    def __post_init__(self) -> None:
        self._schedule(self.steps[0])

    @property
    def steps(self) -> list[Step]:
        return [step for step in self.shape._definition.steps if not step.removed]

    @property
    def newest(self) -> Attempt:
        return self.attempts[-1]

    @property
    def performs(self) -> bool:
        """Whether a body is at it, also of a run that was paused meanwhile."""
        return self.newest.status is A.IN_PROGRESS

    @property
    def broken(self) -> bool:
        """Whether nothing will move it, so that the doctor must say so."""
        newest, batch = self.newest, self.newest.batch
        match self.status:
            case R.READY:
                return newest.due is not Due.FAR and not newest.message
            case R.PERFORMING:
                return not newest.message
            case R.WAITING if batch is not None:
                return batch.gone or (batch.finished and batch.stale)
        return False

    def _guarded(self, step: Step) -> bool:
        return self.shape._definition.guarded(step)

    def view(self) -> dict[str, Any]:
        """What there is to be seen of it."""
        newest = self.newest
        due = newest.due is Due.NOW if newest.status is A.SCHEDULED else None
        return {
            "status": self.status,
            "step": newest.step.name,
            "attempts": [_attempt_view(one) for one in self.attempts],
            "signals": [(one.name, one.n, one.key, one.status, one.step) for one in self.signals],
            "due": due,
            "message": newest.message,
            "ignored": self.ignored,
            "broken": self.broken,
        }

    # What a worker does.

    def deliver(self, *, own: bool, guarding: Guarding, asked: Asked) -> Attempt | None:
        """A message comes: the newest attempt's own, or another; returns whose body begins."""
        newest = self.newest
        if own and self.status is R.READY and newest.due is Due.NOW:
            return self._claim(guarding, asked)
        if own and self.performs:
            self.stall()
        elif not own and newest.status is A.WAITING and newest.batch and newest.batch.over:
            self.resolve()
        return None

    def expected_readers(self) -> tuple[bool, bool] | None:
        """What `signal_ready` and `woken` are for a claim now; None: the matcher raises."""
        newest = self.newest
        if newest.step.wait_for is None or newest.timed_out:
            return (False, False)
        held = self.held_signal(newest.step)
        try:
            return (held is not None or self._first_match() is not None, held is not None)
        except _Raised:
            return None

    def held_signal(self, step: Step) -> Signal | None:
        return next(
            (one for one in self.signals if one.status is S.CLAIMED and one.step == step.name), None
        )

    def _claim(self, guarding: Guarding, asked: Asked) -> Attempt | None:
        self.status, self.newest.status = R.PERFORMING, A.IN_PROGRESS
        try:
            if self._guarded(self.newest.step) and (end := self._guards(guarding)):
                self._apply(end)
            elif self.newest.step.wait_for is not None and not self._passes_gate():
                self._park(asked)
        except _Raised as raised:
            self._apply(self._after_error(str(raised)))
        return self.newest if self.performs else None

    def _guards(self, guarding: Guarding) -> End | None:
        if guarding is Guarding.RAISE:
            raise _Raised("Broken")
        if guarding is Guarding.CANCEL:
            return End(A.CANCELLED, O.CANCELLED, Then.CANCEL)
        if self.newest.step.skip_if is None:
            return None
        if self.expected_readers() is None:
            raise _Raised("Broken")
        return End(A.SKIPPED, O.SKIPPED, Then.ADVANCE) if guarding is Guarding.SKIP else None

    def _passes_gate(self) -> bool:
        step = self.newest.step
        if self.newest.timed_out or self.held_signal(step):
            return True
        signal = self._first_match()
        if signal is None:
            return False
        signal.status, signal.step = S.CLAIMED, step.name
        return True

    def _first_match(self) -> Signal | None:
        for signal in self.signals:
            if signal.status is S.PENDING and signal.name == SIGNAL:
                if signal.n == BREAKS:
                    raise _Raised("Broken")
                if signal.n == MATCHES:
                    return signal
        return None

    def _park(self, asked: Asked) -> None:
        newest = self.newest
        timeout = newest.step.wait_timeout
        newest.deadline = _asked(asked) if callable(timeout) else timeout and Deadline.AHEAD
        newest.status, newest.message = A.WAITING, False
        self.status = R.WAITING

    def end_body(
        self, attempt: Attempt, ending: Ending, members: int, *, goes_on: bool
    ) -> Attempt | None:
        """A body ends; returns the attempt that the same worker goes on with, if it may."""
        if attempt is not self.newest or not self.performs:
            self.ignored += 1
            return None
        if attempt.step.fan_out and ending is Ending.RETURN and members:
            self._gather(members)
            return None
        self._apply(self._end_of(ending), goes_on=goes_on)
        return self.newest if self.performs else None

    def _gather(self, members: int) -> None:
        newest = self.newest
        newest.status, newest.message = A.WAITING, False
        if self.status is R.PAUSED:
            newest.held = End(A.WAITING, O.COMPLETED, Then.PARK)
            newest.planned = members
            return
        newest.batch = Batch([MemberStatus.OPEN] * members)
        self.status = R.WAITING

    def _end_of(self, ending: Ending) -> End:
        match ending:
            case Ending.RETURN:
                return End(A.COMPLETED, O.COMPLETED, Then.ADVANCE)
            case Ending.PAUSE:
                return End(A.COMPLETED, O.PAUSED, Then.PAUSE)
            case Ending.CANCEL:
                return End(A.CANCELLED, O.CANCELLED, Then.CANCEL, at_once=True)
            case Ending.REATTEMPT:
                return End(A.FAILED, O.REATTEMPTED, Then.REATTEMPT)
            case Ending.REATTEMPT_LATER:
                return End(A.FAILED, O.REATTEMPTED, Then.REATTEMPT, later=True)
            case Ending.SKIP:
                return End(A.SKIPPED, O.SKIPPED, Then.ADVANCE)
            case Ending.FINISH:
                return End(A.COMPLETED, O.FINISHED, Then.FINISH)
            case Ending.FAIL:
                return self._after_error("Broken")
            case Ending.FAIL_FLAKILY:
                return self._after_error("Flaky")
            case Ending.FAIL_NEEDLESSLY:
                return self._after_error("Needless")
            case Ending.FAIL_FATALLY:
                return self._after_error("Fatal")

    def _after_error(self, error: str) -> End:
        action = {"Flaky": "reattempt", "Needless": "skip", "Fatal": "cancel"}.get(error, "pause")
        if action == "reattempt" and self.reattempted >= MAX_REATTEMPTS:
            action = "pause"
        return _failed(action, error, by_policy=True)

    def stall(self) -> None:
        """The newest attempt's worker died: its message came again, or it hangs."""
        step = self.newest.step
        default = StallAction.REATTEMPT if step.transactional else StallAction.PAUSE
        self._apply(_failed(step.on_stall or default, "StepStalled"))

    def resolve(self) -> None:
        """The run hears that its batch has ended, or is gone."""
        batch, step = self.newest.batch, self.newest.step
        assert batch is not None
        if batch.gone:
            end = _failed("pause", "FanOutFailed")
        elif set(batch.members) == {MemberStatus.COMPLETED}:
            end = End(A.COMPLETED, O.COMPLETED, Then.ADVANCE)
        else:
            end = _failed(step.on_batch_failure, "FanOutFailed")
        self._end_wait(end)

    def _end_wait(self, end: End) -> None:
        self.newest.deadline = None
        if self.status is R.WAITING:
            self.status = R.PERFORMING
        self._apply(end)

    def _apply(self, end: End, *, goes_on: bool = False) -> None:
        newest, message = self.newest, self.newest.message
        newest.status, newest.outcome, newest.error = end.status, end.outcome, end.error
        newest.message = False
        if self.status is R.PAUSED and not end.at_once:
            newest.held = end
            if end.status in (A.COMPLETED, A.SKIPPED):
                self._consume()
            return
        self._follow(end)
        if goes_on and end.then is Then.ADVANCE and self._may_go_on():
            # Under the message that it had, which may have been lost.
            self.status, self.newest.status = R.PERFORMING, A.IN_PROGRESS
            self.newest.message = message

    def _may_go_on(self) -> bool:
        step = self.newest.step
        return self.status is R.READY and not step.wait and not self._guarded(step)

    def _follow(self, end: End) -> None:
        if end.status in (A.COMPLETED, A.SKIPPED) or end.then is Then.CANCEL:
            self._consume()
        match end.then:
            case Then.ADVANCE:
                self._advance()
            case Then.FINISH:
                self.status = R.FINISHED
            case Then.PAUSE:
                self.status = R.PAUSED
            case Then.CANCEL:
                self.status = R.CANCELLED
            case Then.REATTEMPT:
                self.reattempted += end.by_policy
                self._schedule(self.newest.step, Due.FAR if end.later else Due.NOW, again=True)

    def _advance(self) -> None:
        at = self.steps.index(self.newest.step)
        following = self.steps[at + 1 :]
        if not following:
            self.status = R.FINISHED
            return
        step = following[0]
        self._schedule(step, Due.FAR if step.wait else Due.NOW)

    def _schedule(self, step: Step, due: Due = Due.NOW, *, again: bool = False) -> None:
        if not again:
            self.reattempted = 0
        number = 1 + sum(one.step is step for one in self.attempts)
        self.attempts.append(Attempt(step, number, due=due, message=due is not Due.FAR))
        self.status = R.READY

    def _consume(self) -> None:
        for signal in self.signals:
            if signal.status is S.CLAIMED and signal.step == self.newest.step.name:
                signal.status = S.CONSUMED

    # What callers ask for.

    def _need(self, error: type[Exception], *sources: RunStatus) -> None:
        if self.status not in sources:
            raise Refused(error, self.status)

    def pause(self) -> None:
        self._need(errors.InvalidTransition, R.READY, R.PERFORMING, R.WAITING)
        self.status = R.PAUSED
        if self.newest.status is A.SCHEDULED:
            self.newest.message = False

    def cancel(self) -> None:
        self._need(errors.InvalidTransition, R.READY, R.PERFORMING, R.WAITING, R.PAUSED)
        self._close()
        self._consume()
        self.status = R.CANCELLED

    def _close(self) -> None:
        newest = self.newest
        if newest.status in (A.SCHEDULED, A.WAITING, A.IN_PROGRESS):
            self._withdraw_batch()
            newest.status, newest.outcome = A.CANCELLED, O.CANCELLED
        newest.held = newest.deadline = None
        newest.message = False

    def _withdraw_batch(self) -> None:
        batch = self.newest.batch
        if batch and self.newest.status is A.WAITING and not batch.finished:
            batch.withdrawn = True

    def skip(self) -> None:
        self._need(errors.InvalidTransition, R.WAITING, R.PAUSED)
        newest = self.newest
        if newest.status not in (A.FAILED, A.SCHEDULED, A.WAITING):
            raise Refused(errors.InvalidTransition, self.status)
        self._withdraw_batch()
        newest.status, newest.outcome = A.SKIPPED, O.SKIPPED
        newest.held = newest.deadline = None
        newest.message = False
        self._consume()
        self._advance()

    def run_now(self) -> None:
        self._reschedule(Due.NOW)

    def reschedule(self, due: Due) -> None:
        self._reschedule(due)

    def _reschedule(self, due: Due) -> None:
        self._need(errors.InvalidTransition, R.READY)
        self.newest.due, self.newest.message = due, due is not Due.FAR

    def resume_at(self, name: str) -> None:
        self._need(errors.NotPaused, R.PAUSED)
        step = next((one for one in self.steps if one.name == name), None)
        if step is None:
            raise Refused(errors.StepNotDefined)
        self._close()
        self._schedule(step)

    def resume(self) -> None:
        self._need(errors.NotPaused, R.PAUSED)
        self.reattempted = 0
        newest, held = self.newest, self.newest.held
        newest.held = None
        if held is not None and held.then is Then.PARK:
            newest.batch = Batch([MemberStatus.OPEN] * newest.planned)
            self.status = R.WAITING
        elif held is not None and held.then is not Then.PAUSE:
            # The count of reattempts starts again.
            self._follow(replace(held, by_policy=False))
        else:
            self._go_on()

    def _go_on(self) -> None:
        newest = self.newest
        match newest.status:
            case A.COMPLETED | A.SKIPPED:
                self._advance()
            case A.FAILED:
                self._schedule(newest.step)
            case A.IN_PROGRESS:
                self.status = R.PERFORMING
            case A.WAITING:
                self.status = R.WAITING
            case A.SCHEDULED:
                newest.message = newest.due is not Due.FAR
                self.status = R.READY

    def rerun(self) -> Run:
        self._need(errors.InvalidTransition, R.FINISHED, R.CANCELLED)
        return Run(self.shape)

    def signal(self, name: str, n: int, key: str | None) -> bool:
        """Returns whether it was a duplicate."""
        self._need(errors.NotOngoing, R.READY, R.PERFORMING, R.WAITING, R.PAUSED)
        key = key if key and key.strip() else None
        earlier = next((one for one in self.signals if key and one.key == key), None)
        if earlier:
            if earlier.name != name:
                raise Refused(errors.SignalKeyReused)
            return True
        self.signals.append(Signal(name, n, key))
        if self.newest.waits_for_signal:
            self._offer()
        return False

    def _offer(self) -> None:
        try:
            signal = self._first_match()
        except _Raised:
            self.signals.pop()
            raise Refused(Broken) from None
        if signal:
            signal.status, signal.step = S.CLAIMED, self.newest.step.name
            self._wake()

    def _wake(self) -> None:
        newest = self.newest
        newest.status, newest.due, newest.deadline = A.SCHEDULED, Due.NOW, None
        newest.message = self.status is R.WAITING
        if self.status is R.WAITING:
            self.status = R.READY

    # What the sweep and the clock do.

    def come_due(self) -> None:
        """Its time has come, and the timer has had its turn."""
        if self.status is R.READY and self.newest.due is Due.FAR:
            self.newest.message = True
        self.newest.due = Due.NOW

    def sweep(self, asked: Asked) -> None:
        """Everything that went wrong did so long ago; the sweep has had its turn."""
        newest, batch = self.newest, self.newest.batch
        for one in self.attempts:
            if one.batch and one.batch.finished:
                one.batch.stale = True
        if self.status is R.READY and newest.due is Due.NOW:
            newest.message = True
        elif self.status is R.WAITING and newest.deadline is Deadline.PAST:
            self._time_out(asked)
        elif self.status is R.WAITING and batch and batch.over:
            self.resolve()

    def _time_out(self, asked: Asked) -> None:
        newest = self.newest
        match newest.step.on_timeout:
            case OnTimeout.RUN:
                newest.timed_out = True
                self._wake()
            case OnTimeout.NOTIFY:
                self._notify(asked)
            case action:
                self._end_wait(_failed(action, "WaitTimedOut"))

    def _notify(self, asked: Asked) -> None:
        newest = self.newest
        try:
            following = _asked(asked) if callable(newest.step.wait_timeout) else Deadline.AHEAD
        except _Raised as raised:
            self._end_wait(_failed("pause", str(raised)))
            return
        newest.late = True
        newest.deadline = following if following is Deadline.AHEAD else None


def _attempt_view(attempt: Attempt) -> dict[str, Any]:
    batch = attempt.batch
    return {
        "attempt": (attempt.step.name, attempt.number),
        "status": attempt.status,
        "outcome": attempt.outcome,
        "error": attempt.error,
        "held": attempt.held and attempt.held.then,
        "deadline": attempt.deadline,
        "late": attempt.late,
        "timed_out": attempt.timed_out,
        "batch": batch
        and ("gone" if batch.gone else (batch.finished, batch.withdrawn, batch.members)),
    }


def _asked(asked: Asked) -> Deadline | None:
    match asked:
        case Asked.RAISE:
            raise _Raised("Broken")
        case Asked.NAIVE:
            raise _Raised("ValueError")
        case Asked.NONE:
            return None
        case Asked.PAST:
            return Deadline.PAST
    return Deadline.AHEAD


def _failed(action: str, error: str, *, by_policy: bool = False) -> End:
    match action:
        case "reattempt":
            return End(A.FAILED, O.REATTEMPTED, Then.REATTEMPT, error, by_policy=by_policy)
        case "skip":
            return End(A.SKIPPED, O.SKIPPED, Then.ADVANCE, error)
        case "cancel":
            return End(A.FAILED, O.CANCELLED, Then.CANCEL, error)
    return End(A.FAILED, O.PAUSED, Then.PAUSE, error)


def end_member(batch: Batch, number: int, status: MemberStatus) -> None:
    """A member's message has been worked off; one of a withdrawn batch did not run."""
    if not batch.gone and batch.members[number] is MemberStatus.OPEN:
        batch.members[number] = MemberStatus.DISCARDED if batch.withdrawn else status


def batches(runs: list[Run]) -> Iterator[tuple[Run, Attempt, Batch]]:
    """Every batch there ever was."""
    for run in runs:
        for attempt in run.attempts:
            if attempt.batch:
                yield run, attempt, attempt.batch
