"""Exception policies: what becomes of a run whose step raised."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from types import FunctionType
from typing import Any, Literal, TypeVar, overload

from pgbus.engine.codec import storable
from pgbus.engine.definition.methods import call_by_name, check_callable, find_method
from pgbus.engine.definition.options import (
    ZERO,
    Duration,
    OptionError,
    checked,
    choice,
    declared_in,
    duration,
)
from pgbus.engine.definition.verbs import StepVerb
from pgbus.engine.errors import DefinitionError


class PolicyAction(StrEnum):
    """What a policy does with the run."""

    PAUSE = "pause"
    CANCEL = "cancel"
    SKIP = "skip"
    REATTEMPT = "reattempt"


class Report(StrEnum):
    """When an error that a policy handled goes to the error reporters."""

    ALWAYS = "always"
    NEVER = "never"
    TERMINAL_ONLY = "terminal_only"


ErrorName = type[BaseException] | str
Backoff = Callable[[int], Duration]
Handler = Callable[[Any, Any], object]
H = TypeVar("H", bound=Handler)
Terminal = Literal["pause", "cancel", "skip"] | PolicyAction

DEFAULT_MAX_REATTEMPTS = 100

_MARK = "__pgbus_policy__"
_REATTEMPT_ONLY = {
    "wait": ZERO,
    "max_reattempts": DEFAULT_MAX_REATTEMPTS,
    "terminal_action": PolicyAction.PAUSE,
}
#: They never reach a policy: the first two leave the attempt to redelivery.
_NO_STEP_ERRORS = (KeyboardInterrupt, SystemExit, StepVerb)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to do about errors; with a `handler` (instance, error) that one decides, by a verb.

    `max_reattempts` is `None` for no limit; once spent, `terminal_action` applies.
    """

    errors: tuple[ErrorName, ...] = ()
    action: PolicyAction | None = None
    wait: timedelta | Backoff = ZERO
    max_reattempts: int | None = DEFAULT_MAX_REATTEMPTS
    terminal_action: PolicyAction = PolicyAction.PAUSE
    report: Report = Report.ALWAYS
    handler: Handler | None = None

    def __str__(self) -> str:
        return f"on_exception({', '.join(_error_name(error) for error in self.errors)})"

    def distance(self, error: BaseException) -> int | None:
        """Return how far above the error's class the nearest class named here stands.

        `None` when none is named; a blanket policy is farther than any class.
        """
        lineage = type(error).__mro__
        if not self.errors:
            return len(lineage)
        named = (at for at, cls in enumerate(lineage) if {cls, _error_name(cls)} & {*self.errors})
        return next(named, None)

    def delay(self, reattempt: int) -> timedelta:
        """Return after how long a reattempt is due, given its number in the row, from 1."""
        if isinstance(self.wait, timedelta):
            return self.wait
        backoff = getattr(self.wait, "__qualname__", repr(self.wait))
        try:
            return duration(self.wait(reattempt))
        except OptionError as error:
            raise ValueError(
                f"{self}: wait={backoff} gave, for reattempt {reattempt}: {error}"
            ) from error


def nearest(policies: Sequence[Policy], error: BaseException) -> Policy | None:
    """Return the policy that names the class nearest the error's, the last declared of several."""
    distances = (
        (distance, -place)
        for place, policy in enumerate(policies)
        if (distance := policy.distance(error)) is not None
    )
    found = min(distances, default=None)
    return None if found is None else policies[-found[1]]


@overload
def on_exception(
    *errors: ErrorName,
    action: Literal["pause", "cancel", "skip", "reattempt"] | PolicyAction,
    wait: Duration | Backoff = 0,
    max_reattempts: int | None = DEFAULT_MAX_REATTEMPTS,
    terminal_action: Terminal = "pause",
    report: Literal["always", "never", "terminal_only"] | Report = "always",
) -> Policy: ...
@overload
def on_exception(
    *errors: ErrorName,
    max_reattempts: int | None = DEFAULT_MAX_REATTEMPTS,
    terminal_action: Terminal = "pause",
    report: Literal["always", "never", "terminal_only"] | Report = "always",
) -> Callable[[H], H]: ...
def on_exception(
    *errors: Any,
    action: Any = None,
    wait: Any = 0,
    max_reattempts: Any = DEFAULT_MAX_REATTEMPTS,
    terminal_action: Any = "pause",
    report: Any = "always",
) -> Policy | Callable[[Any], Any]:
    """Return a policy for `policies`; without `action`, a decorator of a method that decides.

    `errors` are classes or, for classes that cannot be imported here, their names
    ("stripe.error.CardError"); none means every error. `wait` is seconds, a `timedelta` or a
    callable of the reattempt's number in the row, from 1. The method gets the error, decides by
    a verb such as `self.reattempt(wait=30)`, and pauses the run when it returns without one.
    """
    options = {
        "wait": wait,
        "max_reattempts": max_reattempts,
        "terminal_action": terminal_action,
        "report": report,
    }
    if action is not None:
        options["action"] = action
    with declared_in(f"on_exception({', '.join(map(_error_name, errors))})"):
        policy = Policy(errors=tuple(map(_checked_error, errors)), **checked(options, _CHECKS))
        _check_combination(policy)
    return partial(_mark, policy) if policy.action is None else policy


def step_policies(owner: type, value: object) -> tuple[Policy, ...]:
    """Return a step's own policies; a decorated method stands for the policy it carries."""
    return tuple(_step_policy(owner, item) for item in _sequence(value))


def class_policies(owner: type, of_steps: Collection[object]) -> tuple[Policy, ...]:
    """Return the policies of all steps, those of the bases first, each class's as it wrote them.

    A method among `of_steps` belongs to a step and is none of them.
    """
    policies: dict[object, Policy] = {}
    for cls in reversed(owner.__mro__):
        for name, attribute in vars(cls).items():
            if name == "policies":
                policies |= {(cls, at): one for at, one in enumerate(_plain(owner, attribute))}
            elif is_policy_method(attribute) and attribute not in of_steps:
                policies.pop(name, None)
                policies[name] = _by_name(owner, name, getattr(attribute, _MARK))
    return tuple(policies.values())


def is_policy_method(attribute: object) -> bool:
    """Tell whether `on_exception` stands on this attribute of a class."""
    return isinstance(attribute, FunctionType) and hasattr(attribute, _MARK)


def _mark(policy: Policy, method: H) -> H:
    if not isinstance(method, FunctionType) or is_policy_method(method):
        raise DefinitionError(
            f"{policy} without action= stands once on a method (self, error), not on {method!r}; "
            "name all its errors in one on_exception, or give it an action"
        )
    setattr(method, _MARK, replace(policy, handler=method))
    return method


def _step_policy(owner: type, item: object) -> Policy:
    if isinstance(item, Policy):
        return item
    if not is_policy_method(item):
        raise OptionError(
            f"{item!r} is no policy; "
            "give on_exception(..., action=...) or a method decorated with @on_exception"
        )
    policy: Policy = getattr(item, _MARK)
    names = (name for cls in owner.__mro__ for name, value in vars(cls).items() if value is item)
    name = next(names, None)
    if name is not None:
        return _by_name(owner, name, policy)
    _check_handler(policy.handler)
    return policy


def _by_name(owner: type, name: str, policy: Policy) -> Policy:
    with declared_in(f"{owner.__qualname__}, on_exception method {name!r}"):
        _check_handler(find_method(owner, name))
    return replace(policy, handler=call_by_name(name))


def _check_handler(handler: Any) -> None:
    check_callable(handler, "self", "error", may_be_async=False)


def _plain(owner: type, value: object) -> Iterator[Policy]:
    with declared_in(f"{owner.__qualname__}: policies"):
        for item in _sequence(value):
            if not isinstance(item, Policy):
                raise OptionError(
                    f"{item!r} is no on_exception(..., action=...); "
                    "a decorated method applies to every step by itself"
                )
            yield item


def _sequence(value: object) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise OptionError(f"{value!r} is no list or tuple of policies")
    return value


def qualified_name(cls: type) -> str:
    """Return the class as `module.Qualname`, without the module for builtins."""
    return storable(f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins."))


def _error_name(error: object) -> str:
    if isinstance(error, type):
        return qualified_name(error)
    return error if isinstance(error, str) else repr(error)


def _checked_error(error: Any) -> ErrorName:
    if isinstance(error, str):
        error = vars(builtins).get(error.removeprefix("builtins."), error)
    if isinstance(error, str):
        if "." in error and all(part.isidentifier() for part in error.split(".")):
            return error
        raise OptionError(f"{error!r} is no qualified class name; write 'module.Name'")
    if not isinstance(error, type) or not issubclass(error, BaseException):
        raise OptionError(f"{error!r} is neither an exception class nor the name of one")
    if issubclass(error, _NO_STEP_ERRORS):
        raise OptionError(f"{error.__qualname__} is no error of a step; no policy ever sees it")
    return error


def _checked_wait(value: object) -> timedelta | Backoff:
    if not callable(value):
        return duration(value)
    check_callable(value, "attempt", may_be_async=False)
    return value


def _checked_limit(value: Any) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise OptionError(f"{value!r} is no limit; give a whole number of at least 1, or None for none")


def _checked_terminal(value: object) -> PolicyAction:
    action = choice(value, PolicyAction)
    if action is PolicyAction.REATTEMPT:
        raise OptionError("'reattempt' would never end; choose pause, cancel or skip")
    return action


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "action": partial(choice, kind=PolicyAction),
    "wait": _checked_wait,
    "max_reattempts": _checked_limit,
    "terminal_action": _checked_terminal,
    "report": partial(choice, kind=Report),
}


def _check_combination(policy: Policy) -> None:
    if policy.action is None and policy.wait != ZERO:
        raise OptionError(
            "wait: without an action it is the method's verb that waits; "
            "write self.reattempt(wait=...) there"
        )
    if policy.action in {None, PolicyAction.REATTEMPT}:
        return
    for option, default in _REATTEMPT_ONLY.items():
        if getattr(policy, option) != default:
            raise OptionError(
                f"{option}: action {str(policy.action)!r} never reattempts; "
                f"leave {option} out, or use action='reattempt'"
            )
