"""`--app module:attribute`: the bus that the host's code makes."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgbus.engine.bus import Pgbus
from pgbus.engine.cli.tables import printable
from pgbus.engine.errors import InvalidSetting
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

F = TypeVar("F", bound="Callable[..., Any]")

_BACKTRACE_LINES = 10


class AppFailure(click.ClickException):
    """The host's code raised when it was loaded: the error, and the host's lines that led to it."""

    exit_code = 2

    def __init__(self, app: str, error: Exception) -> None:
        entry = record_error(error, backtrace_lines=_BACKTRACE_LINES)
        told = f"{app} cannot be loaded: {entry.error_class}: {entry.message}"
        lines = [told, *(f"  {line}" for line in json.loads(entry.document)["backtrace"])]
        super().__init__("\n".join(map(printable, lines)))


def app_option(*, why: str | None = None) -> Callable[[F], F]:
    """Return the option `--app` that gives a command `app`; `why` says what cannot do without."""

    def check(_ctx: click.Context, _option: click.Parameter, app: str | None) -> str | None:
        if why and not app:
            raise click.UsageError(
                f"{why}: give --app module:attribute, such as shop.app:bus, or set PGBUS_APP."
            )
        return app

    return click.option(
        "--app",
        envvar="PGBUS_APP",
        show_envvar=True,
        callback=check,
        metavar="MODULE:ATTRIBUTE",
        help=f"Your application's Pgbus, or a callable that returns it.{' Required.' if why else ''}",
    )


@contextmanager
def opened(app: str | None) -> Iterator[Pgbus]:
    """Open the application's bus, else that of the `PGBUS_*` variables; close it at the end."""
    bus = load(app) if app else Pgbus()
    try:
        yield bus
    finally:
        bus.close()


def load(app: str) -> Pgbus:
    """Return the bus that `app` names; its module, and what that imports, is loaded then."""
    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise _refusal(f"{app!r} is not of the form module:attribute, such as shop.app:bus.")
    with _hosts_errors(app):
        module = _imported(module_name)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise _refusal(_without(module, attribute)) from None
    with _hosts_errors(app):
        is_factory = _is_factory(found)
        bus = found() if is_factory else found
    if not isinstance(bus, Pgbus):
        kind = f"{'returns' if is_factory else 'is'} a {type(bus).__qualname__}"
        raise _refusal(f"{app} {kind}, which is no Pgbus; {_beside(module)}")
    return bus


def _is_factory(found: object) -> bool:
    """Tell whether it can be called without arguments, unlike the application of a web framework."""
    if not callable(found):
        return False
    try:
        inspect.signature(found).bind()
    except TypeError:
        return False
    except ValueError:  # some builtins do not tell
        return True
    return True


def _beside(module: ModuleType) -> str:
    """Return the mend: the module's buses, if it has any."""
    buses = [name for name, value in vars(module).items() if isinstance(value, Pgbus)]
    if buses:
        return f"did you mean {' or '.join(f'{module.__name__}:{name}' for name in buses)}?"
    return (
        "name the attribute that holds your Pgbus(...), or a callable that returns it without "
        "arguments."
    )


def import_module(name: str) -> ModuleType:
    """Return the host's module; it is looked for in the current folder, too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # One that the host's own module misses is the host's error.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _refusal(
            f"There is no module {error.name}; it is looked for in the current folder and among "
            "the installed packages."
        ) from None


@contextmanager
def _hosts_errors(app: str) -> Iterator[None]:
    """Turn what the host's code raises into an `AppFailure`; what one line says all about stays."""
    try:
        yield
    except (click.ClickException, InvalidSetting):
        raise
    except Exception as error:
        if is_passing(error):
            raise
        raise AppFailure(app, error) from error


def _without(module: ModuleType, attribute: str) -> str:
    close = get_close_matches(attribute, vars(module), n=1)
    mend = f"did you mean {close[0]}?" if close else "name the one that holds your Pgbus(...)."
    return f"Module {module.__name__} has no attribute {attribute}; {mend}"


def _refusal(problem: str) -> click.BadParameter:
    return click.BadParameter(problem, param_hint="--app")
