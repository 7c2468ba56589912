"""Guards: what is asked, under the run's lock, before a step's body runs."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from pgbus.engine.definition.methods import call_by_name, check_callable, find_method
from pgbus.engine.definition.options import declared_in
from pgbus.engine.errors import DefinitionError

Guard = Callable[[Any], object]
G = TypeVar("G", bound=Guard)

_MARK = "__pgbus_cancel_if__"


def cancel_if(method: G) -> G:
    """Make a method a guard of every step: when it returns something true, the run is cancelled.

    It runs under the run's row lock; its queries go through `self.session`, rolled back after it.
    """
    if not isinstance(method, FunctionType):
        raise DefinitionError(
            f"cancel_if takes a method, not {method!r}; write @cancel_if on a def"
        )
    setattr(method, _MARK, True)
    return method


def is_guard(attribute: object) -> bool:
    """Tell whether `cancel_if` stands on this attribute of a class."""
    return isinstance(attribute, FunctionType) and hasattr(attribute, _MARK)


def cancel_guards(owner: type) -> tuple[Guard, ...]:
    """Return the class's guards, those of its bases first."""
    names = dict.fromkeys(
        name
        for cls in reversed(owner.__mro__)
        for name, attribute in vars(cls).items()
        if is_guard(attribute)
    )
    for name in names:
        with declared_in(f"{owner.__qualname__}, cancel_if {name!r}"):
            check_callable(find_method(owner, name), "self", may_be_async=False)
    return tuple(call_by_name(name) for name in names)
