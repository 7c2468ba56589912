"""Steps: how a class body declares one, and what it comes to once its class is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from types import FunctionType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from pgbus.engine.definition.guard import Guard, skip_condition
from pgbus.engine.definition.methods import call_by_name, check_callable, find_method
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
from pgbus.engine.queues import DEFAULT_PRIORITY
from pgbus.engine.states import StallAction


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


class StepOptions(Placement, total=False):
    """Options of `step`."""

    wait: Duration
    skip_if: Guard | str
    timeout: Duration
    on_stall: Literal["pause", "reattempt", "cancel"] | StallAction
    transactional: bool
    job_options: JobOptions
    policies: Sequence[Policy | Handler]


Body = Callable[[Any], object]
F = TypeVar("F", bound=Body)

#: The options that say where a step stands.
PLACEMENT = tuple(Placement.__annotations__)

_CLASS_CHECKS: dict[str, Callable[[Any], Any]] = {
    "queue": queue,
    "priority": priority,
    "wait": duration,
}
_JOB_CHECKS = _CLASS_CHECKS | {"wait_until": aware_moment}
_STEP_CHECKS: dict[str, Callable[[Any], Any]] = {
    "wait": duration,
    "timeout": positive_duration,
    "on_stall": partial(choice, kind=StallAction),
    "transactional": flag,
    "job_options": partial(checked, checks=_JOB_CHECKS),
    # Their targets were checked when the steps were put in order.
    "before_step": str,
    "after_step": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a definition; `body` takes the instance and is `None` for a gravestone.

    It is due `wait` after the step before it ended, and never before `message_wait` after that
    and `message_wait_until`. `queue` is `None` for the setting `workflow_queue`.
    """

    name: str
    body: Callable[[Any], Any] | None
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
            "skip_if": getattr(self.skip_if, "__name__", self.skip_if is not None),
        }
        return {"name": self.name} | {option: value for option, value in told.items() if value}


@dataclass(frozen=True, slots=True, eq=False)
class StepDeclaration:
    """What stands in a class body for a step until the class is created."""

    body: object = None
    options: Mapping[str, Any] = field(default_factory=dict)
    removed: bool = False
    anonymous: bool = False

    def __call__(self, body: object) -> StepDeclaration:
        """Return the declaration with its body: `@step(...)` at work."""
        return StepDeclaration(body, self.options)

    def method(self) -> Callable[[Any], Any]:
        """Return the method that the class gets under the step's name."""
        body = self.body
        if isinstance(body, FunctionType):
            return body
        if isinstance(body, str):
            return call_by_name(body)
        if body is None or isinstance(body, StepDeclaration) or not callable(body):
            raise OptionError(
                f"{body!r} is no body; decorate a method with @step(...), "
                "or give step() a function or the name of a method"
            )
        function = body

        def call(workflow: Any) -> Any:
            return function(workflow)

        return call


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
    """
    return StepDeclaration(body, options)


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
            _check_body(declaration, name, owner)
    message = {**class_options, **options.pop("job_options", {})}
    for placing in PLACEMENT:
        options.pop(placing, None)
    return Step(
        name=name,
        body=None if declaration.removed else call_by_name(name),
        queue=message.get("queue"),
        priority=message.get("priority", DEFAULT_PRIORITY),
        message_wait=message.get("wait", ZERO),
        message_wait_until=message.get("wait_until"),
        **options,
    )


def _checks(declaration: StepDeclaration, owner: type) -> Mapping[str, Callable[[Any], Any]]:
    if declaration.removed:
        return {option: _STEP_CHECKS[option] for option in PLACEMENT}
    return {
        **_STEP_CHECKS,
        "skip_if": partial(skip_condition, owner),
        "policies": partial(step_policies, owner),
    }


def _check_body(declaration: StepDeclaration, name: str, owner: type) -> None:
    called = declaration.body if isinstance(declaration.body, str) else name
    for method in {called, name}:
        check_callable(find_method(owner, method), "self", may_be_async=True)
