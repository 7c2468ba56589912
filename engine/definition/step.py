"""Steps: how a class body declares one, and what it comes to once its class is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from pgbus.engine.definition.methods import (
    asked_of_instance,
    call_by_name,
    check_callable,
    find_method,
)
from pgbus.engine.definition.options import (
    ZERO,
    Duration,
    OptionError,
    aware_moment,
    checked,
    choice,
    declared_in,
    duration,
    flag,
    positive_duration,
    priority,
    queue,
)
from pgbus.engine.definition.policy import Handler, Policy, step_policies
from pgbus.engine.definition.signal import Expectation, Matcher, expectation
from pgbus.engine.queues import DEFAULT_PRIORITY
from pgbus.engine.states import OnBatchFailure, OnTimeout, StallAction

if TYPE_CHECKING:
    from pgbus.engine.definition.guard import Guard
    from pgbus.engine.definition.members import FanOut


class JobOptions(TypedDict, total=False):
    """Options of a step's message; the waits only ever move the step later."""

    queue: str
    priority: Literal[0, 1, 2]
    wait: Duration
    wait_until: datetime


class ClassOptions(TypedDict, total=False):
    """A workflow class's keywords: message options of all its steps."""

    queue: str
    priority: Literal[0, 1, 2]
    wait: Duration


class Placement(TypedDict, total=False):
    """Directly before or after which step, declared above or in a base, a step stands."""

    before_step: str
    after_step: str


#: Gives the deadline of one wait: a duration from its begin, an aware moment, or `None` for none.
AskedDeadline = Callable[[Any], Duration | datetime | None]


class CommonOptions(Placement, total=False):
    """Options of `step` and `fan_out` alike."""

    wait: Duration
    skip_if: Guard | str
    timeout: Duration
    on_stall: Literal["pause", "reattempt", "cancel"] | StallAction
    job_options: JobOptions
    policies: Sequence[Policy | Handler]


class StepOptions(CommonOptions, total=False):
    """Options of `step`."""

    transactional: bool
    wait_for: str | Matcher
    wait_timeout: Duration | AskedDeadline | str
    on_timeout: Literal["pause", "cancel", "skip", "run", "notify"] | OnTimeout


class FanOutOptions(CommonOptions, total=False):
    """Options of `fan_out`."""

    on_batch_failure: Literal["pause", "cancel", "skip"] | OnBatchFailure


Body = Callable[[Any], object]
FanOutBody = Callable[[Any, "FanOut"], object]
F = TypeVar("F", bound=Body)
B = TypeVar("B", bound=FanOutBody)

#: The options that say where a step stands.
PLACEMENT = tuple(Placement.__annotations__)

_CLASS_CHECKS: dict[str, Callable[[Any], Any]] = {
    "queue": queue,
    "priority": priority,
    "wait": duration,
}
_JOB_CHECKS = _CLASS_CHECKS | {"wait_until": aware_moment}
_COMMON_CHECKS: dict[str, Callable[[Any], Any]] = {
    "wait": duration,
    "timeout": positive_duration,
    "on_stall": partial(choice, kind=StallAction),
    "job_options": partial(checked, checks=_JOB_CHECKS),
    # Their targets were checked when the steps were put in order.
    "before_step": str,
    "after_step": str,
}
_STEP_CHECKS: dict[str, Callable[[Any], Any]] = {
    "transactional": flag,
    "wait_for": expectation,
    "on_timeout": partial(choice, kind=OnTimeout),
}
_FAN_OUT_CHECKS: dict[str, Callable[[Any], Any]] = {
    "on_batch_failure": partial(choice, kind=OnBatchFailure),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a definition; `body` takes the instance, and a `fan_out`'s its `FanOut`, too.

    A gravestone's `body` is `None`. The step is due `wait` after the step before it ended, and
    never before `message_wait` after that and `message_wait_until`. `queue` is `None` for the
    setting `workflow_queue`.
    """

    name: str
    body: Callable[..., Any] | None
    fan_out: bool = False
    transactional: bool = False
    wait: timedelta = ZERO
    queue: str | None = None
    priority: int = DEFAULT_PRIORITY
    message_wait: timedelta = ZERO
    message_wait_until: datetime | None = None
    skip_if: Guard | None = None
    timeout: timedelta | None = None
    on_stall: StallAction | None = None
    policies: tuple[Policy, ...] = ()
    wait_for: Expectation | None = None
    wait_timeout: timedelta | Callable[[Any], Any] | None = None
    on_timeout: OnTimeout = OnTimeout.PAUSE
    on_batch_failure: OnBatchFailure = OnBatchFailure.PAUSE

    @property
    def removed(self) -> bool:
        """Whether this is a gravestone: the run on it moves on."""
        return self.body is None

    def listing(self) -> dict[str, Any]:
        """Return the step as its class's step list stores it: what is done, when, how safely.

        Options at their default are left out, so that a new option changes no stored digest.
        Where a message travels and what follows an error do not make a run's definition outdated.
        """
        until = self.message_wait_until
        told = {
            "removed": self.removed,
            "transactional": self.transactional,
            "wait": max(self.wait, self.message_wait).total_seconds(),
            "wait_until": until and until.astimezone(UTC).isoformat(),
            "skip_if": _told(self.skip_if),
            "wait_for": self.wait_for and self.wait_for.description,
            "wait_timeout": _told(self.wait_timeout),
            "on_timeout": self.on_timeout is not OnTimeout.PAUSE and self.on_timeout,
            "fan_out": self.fan_out,
            "on_batch_failure": (
                self.on_batch_failure is not OnBatchFailure.PAUSE and self.on_batch_failure
            ),
        }
        return {"name": self.name} | {option: value for option, value in told.items() if value}


def _told(value: Callable[[Any], object] | timedelta | None) -> float | str | bool:
    """Return seconds or a callable's name; `True` for one without a name, `False` for `None`."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    name: str | bool = getattr(value, "__name__", value is not None)
    return name


@dataclass(frozen=True, slots=True, eq=False)
class StepDeclaration:
    """What stands in a class body for a step until the class is created."""

    body: object = None
    options: Mapping[str, Any] = field(default_factory=dict)
    removed: bool = False
    anonymous: bool = False
    fan_out: bool = False

    def __call__(self, body: object) -> StepDeclaration:
        """Return the declaration with its body: `@step(...)` at work."""
        return replace(self, body=body)

    def method(self) -> Callable[..., Any]:
        """Return the method that the class gets under the step's name."""
        body = self.body
        if isinstance(body, FunctionType):
            return body
        if isinstance(body, str):
            return call_by_name(body)
        if body is None or isinstance(body, StepDeclaration) or not callable(body):
            raise OptionError(
                f"{body!r} is no body; decorate a method with @{self.decorator}(...), "
                f"or give {self.decorator}() a function or the name of a method"
            )
        function = body

        def call(*arguments: Any) -> Any:
            return function(*arguments)

        return call

    @property
    def decorator(self) -> str:
        """What declares it."""
        return "fan_out" if self.fan_out else "step"


@overload
def step(body: F, /, **options: Unpack[StepOptions]) -> F: ...
@overload
def step(body: str, /, **options: Unpack[StepOptions]) -> Callable[[Any], Any]: ...
@overload
def step(**options: Unpack[StepOptions]) -> Callable[[F], F]: ...
def step(body: object = None, /, **options: Any) -> Any:
    """Declare a step where it stands in its class, under the name it is given there.

    It is `@step` or `@step(...)` on a method, `name = step(function)` for a function of the
    instance, or `name = step("method")`. A method called `_` is an anonymous step: step_1,
    step_2, ... in order.

    - `wait`: how long after the step before it ended (the first: after the start).
    - `skip_if`: a callable of the instance or a method's name; something true skips the step.
    - `transactional`: the writes of `self.session` commit with the step's completion.
    - `timeout`, `on_stall`: how long until an attempt counts as stalled, and what then.
    - `policies`: exception policies of this step, before those of the class.
    - `job_options`: `queue`, `priority`, `wait`, `wait_until` of its message.
    - `before_step`, `after_step`: where it stands, instead of last.
    - `wait_for`: the signal without which it does not run: a name, a `SignalMatcher`, a
      `signal_type`, or any object with `matches(signal)`.
    - `wait_timeout`: how long it waits; or a callable of the instance or a method's name, asked
      when the wait begins for that, an aware `datetime`, or `None` for no deadline.
    - `on_timeout`: what the deadline does: `pause` (the default), `cancel` or `skip`, `run` the
      body without a signal, or `notify` and go on waiting.
    """
    return StepDeclaration(body, options)


@overload
def fan_out(body: B, /, **options: Unpack[FanOutOptions]) -> B: ...
@overload
def fan_out(body: str, /, **options: Unpack[FanOutOptions]) -> Callable[[Any, FanOut], Any]: ...
@overload
def fan_out(**options: Unpack[FanOutOptions]) -> Callable[[B], B]: ...
def fan_out(body: object = None, /, **options: Any) -> Any:
    """Declare a step that adds jobs to a batch and completes when all of them have ended.

    Its body takes the builder, too: `def notify_vendors(self, batch: FanOut)`. It takes the forms
    and options of `step`, except those of waiting for a signal and `transactional`.

    - `on_batch_failure`: what follows when a job failed: `pause` (the default), `cancel`, `skip`.
    """
    return StepDeclaration(body, options, fan_out=True)


def removed_step(**placement: Unpack[Placement]) -> Any:
    """Leave a gravestone in a step's place: a run that is on it moves on."""
    return StepDeclaration(options=placement, removed=True)


def checked_class_options(owner: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a class's keywords, checked."""
    with declared_in(owner.__qualname__):
        return checked(options, _CLASS_CHECKS)


def resolve(
    declaration: StepDeclaration, name: str, owner: type, class_options: Mapping[str, Any]
) -> Step:
    """Return the step that a declaration comes to in the class `owner`."""
    with declared_in(f"{owner.__qualname__}, step {name!r}"):
        options = checked(declaration.options, _checks(declaration, owner))
        if not declaration.removed:
            _check_combination(options)
            _check_body(declaration, name, owner)
    message = {**class_options, **options.pop("job_options", {})}
    for placing in PLACEMENT:
        options.pop(placing, None)
    return Step(
        name=name,
        body=None if declaration.removed else call_by_name(name),
        fan_out=declaration.fan_out,
        queue=message.get("queue"),
        priority=message.get("priority", DEFAULT_PRIORITY),
        message_wait=message.get("wait", ZERO),
        message_wait_until=message.get("wait_until"),
        **options,
    )


def _checks(declaration: StepDeclaration, owner: type) -> Mapping[str, Callable[[Any], Any]]:
    if declaration.removed:
        return {option: _COMMON_CHECKS[option] for option in PLACEMENT}
    common: dict[str, Callable[[Any], Any]] = {
        **_COMMON_CHECKS,
        "skip_if": partial(asked_of_instance, owner),
        "policies": partial(step_policies, owner),
    }
    if declaration.fan_out:
        return common | _FAN_OUT_CHECKS
    return common | _STEP_CHECKS | {"wait_timeout": partial(_wait_timeout, owner)}


def _wait_timeout(owner: type, value: object) -> timedelta | Callable[[Any], Any]:
    if isinstance(value, datetime):
        raise OptionError(
            f"{value!r} is no duration; give a callable that returns it, such as lambda self: "
            "self.subject.due_at"
        )
    if isinstance(value, str) and not value.isidentifier():
        raise OptionError(
            f"{value!r} names no method, which is what a str does; give seconds or a timedelta"
        )
    if isinstance(value, str) or callable(value):
        return asked_of_instance(owner, value)
    return positive_duration(value)


def _check_combination(options: Mapping[str, Any]) -> None:
    if "wait_timeout" in options and "wait_for" not in options:
        raise OptionError(
            "wait_timeout: it bounds the wait for a signal, and there is no wait_for; add one, "
            "or bound the attempt with timeout"
        )
    if "on_timeout" in options and "wait_timeout" not in options:
        told = "on_timeout: without a wait_timeout no wait times out; add one"
        if "timeout" in options:
            told += " (timeout is another thing: it bounds an attempt, and on_stall says what then)"
        raise OptionError(told)


def _check_body(declaration: StepDeclaration, name: str, owner: type) -> None:
    called = declaration.body if isinstance(declaration.body, str) else name
    parameters: tuple[str, ...] = ("self",)
    mend = ""
    if declaration.fan_out:
        parameters, mend = ("self", "batch"), "a fan_out's body takes (self, batch)"
    for method in {called, name}:
        check_callable(find_method(owner, method), *parameters, may_be_async=True, mend=mend)
