"""Signals: what a step waits for, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pgbus.engine.codec import storable
from pgbus.engine.definition.methods import check_callable
from pgbus.engine.definition.options import OptionError, declared_in, signal_name
from pgbus.engine.definition.payload import Reader, reader_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from pgbus.engine.definition.start import HostSession

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A named message to a run, as it is stored.

    `payload` is {} for none; `value` is the payload's instance in a step that waits for a
    `signal_type`. `duplicate_delivery` tells a sender that its key was used before.
    """

    signal_id: int
    name: str
    payload: Mapping[str, Any]
    idempotency_key: str | None
    actor: str
    reason: str | None
    received_at: datetime
    value: Any = None
    duplicate_delivery: bool = False


@dataclass(frozen=True, slots=True)
class Sending:
    """A signal as a caller sends it, and who, why and in which host transaction (None: one of its own).

    With `seen`, the run's `updated_at` as the caller knows it, it is refused once the run moved.
    """

    name: str
    payload: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    actor: str = "app"
    reason: str | None = None
    session: HostSession | None = None
    seen: datetime | None = None


class Matcher(Protocol):
    """What may stand in `wait_for`: it is asked under the run's row lock, so fast and harmless."""

    def matches(self, signal: Signal, /) -> object:
        """Return something true for a signal that the step takes."""


@dataclass(frozen=True, slots=True)
class SignalMatcher:
    """Signals of a name whose payload the predicate, if any, finds true."""

    name: str
    predicate: Callable[[Mapping[str, Any]], object] | None = None

    def __post_init__(self) -> None:
        """Refuse what could match nothing."""
        with declared_in(f"SignalMatcher({self.name!r})"):
            signal_name(self.name)
            if self.predicate is not None:
                _check_predicate(self.predicate)

    def matches(self, signal: Signal, /) -> bool:
        """Tell whether the signal is one of them."""
        if signal.name != self.name:
            return False
        return self.predicate is None or bool(self.predicate(signal.payload))


@dataclass(frozen=True, slots=True)
class TypedSignal(Generic[P]):
    """Signals of a name whose payload is a `payload_class`; what `signal_type` returns."""

    name: str
    payload_class: type[P]
    _read: Reader = field(repr=False, compare=False)

    def matches(self, signal: Signal, /) -> bool:
        """Tell whether the signal has the name; its payload was checked when it was sent."""
        return signal.name == self.name

    def value_of(self, payload: Mapping[str, Any]) -> P:
        """Return the payload's instance; `PayloadError` with the path of what does not fit."""
        value: P = self._read(payload, "payload")
        return value


def signal_type(name: str, payload_class: type[P]) -> TypedSignal[P]:
    """Return a `wait_for` whose payload is a dataclass or pydantic model.

    A sender whose payload is none gets the `PayloadError`, and nothing is stored; the step has
    the instance as `self.received_signal.value`.
    """
    with declared_in(f"signal_type({name!r}, {payload_class!r})"):
        return TypedSignal(signal_name(name), payload_class, reader_of(payload_class))


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a step waits for; `name` is `None` when signals of any name may match."""

    description: str
    name: str | None
    matcher: Matcher

    @property
    def typed(self) -> TypedSignal[Any] | None:
        """The `signal_type` that the step waits for, `None` when it waits for another thing."""
        return self.matcher if isinstance(self.matcher, TypedSignal) else None

    def matches(self, signal: Signal) -> bool:
        """Tell whether the step takes this signal."""
        return bool(self.matcher.matches(signal))

    def received(self, signal: Signal) -> Signal:
        """Return the signal as the step's body gets it, with the `value` of a typed payload."""
        typed = self.typed
        return replace(signal, value=typed.value_of(signal.payload)) if typed else signal


def expectation(value: Any) -> Expectation:
    """Return what a step's `wait_for` comes to: a name, or an object with `matches(signal)`."""
    matcher = SignalMatcher(signal_name(value)) if isinstance(value, str) else value
    if isinstance(matcher, type) or not callable(getattr(matcher, "matches", None)):
        raise OptionError(
            f"{value!r} is neither a signal's name nor an object with matches(signal); give a name, "
            "a SignalMatcher, a signal_type or an instance of a class of yours"
        )
    check_callable(matcher.matches, "signal", may_be_async=False)
    named = isinstance(matcher, (SignalMatcher, TypedSignal))
    name = signal_name(matcher.name) if named else None
    return Expectation(_description(matcher), name, matcher)


def _description(matcher: Any) -> str:
    """Return the matcher's name, else its class's: the same in every process, unlike a repr."""
    name = getattr(matcher, "name", None)
    return storable(name if isinstance(name, str) else type(matcher).__qualname__)


def _check_predicate(predicate: Any) -> None:
    if not callable(predicate):
        raise OptionError(
            f"predicate: {predicate!r} cannot be called; give a function of the payload"
        )
    check_callable(predicate, "payload", may_be_async=False)
