"""The workflow classes of the model test; what their guards, bodies and jobs do is in `plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NoReturn

from pgbus import (
    SignalMatcher,
    Workflow,
    cancel_if,
    fan_out,
    job,
    on_exception,
    removed_step,
    step,
)
from pgbus.engine.states import OnBatchFailure, OnTimeout

SIGNAL = "go"
#: What the matcher makes of a payload's `n`.
MATCHES, DIFFERS, BREAKS = 1, 0, 13
#: How often in a row a `Flaky` step is tried again.
MAX_REATTEMPTS = 1


class Ending(StrEnum):
    """How a body ends: a verb of its own, or an error, by what its policy makes of that."""

    RETURN = "return"
    PAUSE = "pause"
    CANCEL = "cancel"
    REATTEMPT = "reattempt"
    REATTEMPT_LATER = "reattempt_later"
    SKIP = "skip"
    FINISH = "finish"
    FAIL = "fail"
    FAIL_FLAKILY = "fail_flakily"
    FAIL_NEEDLESSLY = "fail_needlessly"
    FAIL_FATALLY = "fail_fatally"


class Guarding(StrEnum):
    """What the guards say."""

    PASS = "pass"
    SKIP = "skip"
    CANCEL = "cancel"
    RAISE = "raise"


class Asked(StrEnum):
    """What a callable deadline gives."""

    PERIOD = "period"
    AHEAD = "ahead"
    PAST = "past"
    NONE = "none"
    NAIVE = "naive"
    RAISE = "raise"


class Broken(Exception):
    """No policy names it: its run pauses."""


class Flaky(Exception): ...


class Needless(Exception): ...


class Fatal(Exception): ...


@dataclass
class Plan:
    """What the host's code does next, and what it saw and did."""

    ending: Ending = Ending.RETURN
    members: int = 0
    guarding: Guarding = Guarding.PASS
    asked: Asked = Asked.PERIOD
    job_fails: bool = False
    #: (signal_ready, woken) as a guard found them; then (signal's id, timed_out) as bodies did.
    guard_saw: tuple[bool, bool] | None = None
    body_saw: tuple[int | None, bool] | None = None
    bodies: list[tuple[str, str, int]] = field(default_factory=list)
    jobs: list[tuple[str, int]] = field(default_factory=list)


plan = Plan()


def _matches(payload: Any) -> bool:
    if payload["n"] == BREAKS:
        raise Broken
    return payload["n"] == MATCHES


@job(max_retries=0)
def member(step_key: str, number: int) -> None:
    plan.jobs.append((step_key, number))
    if plan.job_fails:
        raise Broken


def _end(workflow: Workflow[Any]) -> None:
    plan.bodies.append((workflow.workflow_id, workflow.step_name, workflow.attempt))
    received = workflow.received_signal
    plan.body_saw = (received.signal_id if received else None, workflow.timed_out)
    _ENDINGS[plan.ending](workflow)


def _fan_out(workflow: Workflow[Any], batch: Any) -> None:
    batch.add_many(
        member, [(workflow.attempt_idempotency_key, number) for number in range(plan.members)]
    )
    _end(workflow)


def _raise(error: type[Exception]) -> Any:
    def end(_workflow: Workflow[Any]) -> NoReturn:
        raise error

    return end


_ENDINGS: dict[Ending, Any] = {
    Ending.RETURN: lambda workflow: None,
    Ending.PAUSE: lambda workflow: workflow.pause(),
    Ending.CANCEL: lambda workflow: workflow.cancel(),
    Ending.REATTEMPT: lambda workflow: workflow.reattempt(),
    Ending.REATTEMPT_LATER: lambda workflow: workflow.reattempt(wait=3600),
    Ending.SKIP: lambda workflow: workflow.skip(),
    Ending.FINISH: lambda workflow: workflow.finish(),
    Ending.FAIL: _raise(Broken),
    Ending.FAIL_FLAKILY: _raise(Flaky),
    Ending.FAIL_NEEDLESSLY: _raise(Needless),
    Ending.FAIL_FATALLY: _raise(Fatal),
}


def _skipping(workflow: Workflow[Any]) -> bool:
    plan.guard_saw = (workflow.signal_ready, workflow.woken)
    return plan.guarding is Guarding.SKIP


def _deadline(_workflow: Workflow[Any]) -> Any:
    if plan.asked is Asked.RAISE:
        raise Broken
    # Far off on either side: this machine's clock may stand beside the server's.
    now = datetime.now(UTC)
    return {
        Asked.PERIOD: timedelta(days=1),
        Asked.AHEAD: now + timedelta(days=1),
        Asked.PAST: now - timedelta(days=1),
        Asked.NONE: None,
        Asked.NAIVE: now.replace(tzinfo=None),
    }[plan.asked]


class Scripted(Workflow):
    """The policies of all: each error is called after what becomes of it."""

    policies = (
        on_exception(Flaky, action="reattempt", max_reattempts=MAX_REATTEMPTS),
        on_exception(Needless, action="skip"),
        on_exception(Fatal, action="cancel"),
    )


class Plain(Scripted):
    first = step(_end)
    second = step(_end, on_stall="reattempt")
    gone = removed_step()
    later = step(_end, wait=timedelta(days=2))


class Transactional(Scripted):
    first = step(_end, transactional=True)
    second = step(_end, transactional=True)


class Guarded(Scripted):
    first = step(_end, skip_if=_skipping, on_stall="cancel")
    second = step(_end, skip_if=_skipping)

    @cancel_if
    def cancelled(self) -> bool:
        return _cancelling()


def _cancelling() -> bool:
    if plan.guarding is Guarding.RAISE:
        raise Broken
    return plan.guarding is Guarding.CANCEL


def _waiting(name: str, **options: Any) -> type[Scripted]:
    class Waiting(Scripted):
        __qualname__ = name
        first = step(
            _end, wait_for=SignalMatcher(SIGNAL, _matches), skip_if=_skipping, on_stall="reattempt",
            **options,
        )  # fmt: skip
        second = step(_end, wait_for=SignalMatcher(SIGNAL, _matches))

        @cancel_if
        def cancelled(self) -> bool:
            return _cancelling()

    return Waiting


def _gathering(on_batch_failure: OnBatchFailure) -> type[Scripted]:
    class Gathering(Scripted):
        __qualname__ = f"Gathering_{on_batch_failure}"
        first = fan_out(on_batch_failure=on_batch_failure)(_fan_out)
        second = step(_end)

    return Gathering


_GATHERING = tuple(map(_gathering, OnBatchFailure))

#: Each as likely as it stands here often.
SHAPES: tuple[type[Scripted], ...] = (
    Plain,
    Transactional,
    Guarded,
    _waiting("Waiting"),
    *(
        _waiting(f"Waiting_{action}", wait_timeout=timedelta(days=1), on_timeout=action)
        for action in OnTimeout
    ),
    _waiting("Asking", wait_timeout=_deadline, on_timeout="run"),
    _waiting("Asking_notify", wait_timeout=_deadline, on_timeout="notify"),
    *_GATHERING * 2,
)
