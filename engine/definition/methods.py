"""Methods of a workflow class, called by name: a subclass's override is the one that runs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pgbus.engine.definition.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable


def call_by_name(name: str) -> Callable[..., Any]:
    """Return a function that calls the method of this name of the instance it is given."""

    def call(workflow: Any, *arguments: Any) -> Any:
        return getattr(workflow, name)(*arguments)

    call.__name__ = call.__qualname__ = name
    return call


def find_method(owner: type, name: str) -> Callable[..., Any]:
    """Return what `owner` calls `name`, not bound; refuse what is no method."""
    method: Callable[..., Any] | None = getattr(owner, name, None)
    if method is None or not callable(method):
        raise OptionError(f"{owner.__qualname__} has no method {name!r}; define it")
    return method


def asked_of_instance(owner: type, value: object) -> Callable[[Any], Any]:
    """Return the function behind an option given as a callable of the instance or by name."""
    if isinstance(value, str):
        check_callable(find_method(owner, value), "self", may_be_async=False)
        return call_by_name(value)
    if not callable(value):
        raise OptionError(f"{value!r} is neither a callable nor the name of a method")
    check_callable(value, "self", may_be_async=False)
    return value


def check_callable(
    function: Callable[..., Any], *parameters: str, may_be_async: bool, mend: str = ""
) -> None:
    """Refuse a function that cannot be called with these, or whose call would run nothing."""
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise OptionError(f"{name} is a generator and would never run; take out its yield")
    if not may_be_async and inspect.iscoroutinefunction(function):
        raise OptionError(f"{name} is async and would never run; write a plain def")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some builtins do not tell
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise OptionError(
            f"{name}{signature} is called with ({', '.join(parameters)}); {error}{mend and f'; {mend}'}"
        ) from error
