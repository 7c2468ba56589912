"""`--all`: a verb on each of many, as they were when the command began: what is asked, shown and told."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from pgbus.engine.cli.app import opened
from pgbus.engine.cli.effects import tell_result
from pgbus.engine.cli.failures import DatabaseAway, Incomplete, Refused
from pgbus.engine.cli.options import Count
from pgbus.engine.runner.bulk import LIMIT
from pgbus.engine.storage.database import cause_of, is_passing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pgbus.engine.runner.bulk import BulkResult

F = TypeVar("F", bound="Callable[..., Any]")

ALL_HELP = (
    "With --all it is asked of each that matches the filters when the command begins, one by one; "
    "one that moves on meanwhile is left alone. Ctrl-C ends it after the one in hand."
)

#: All that are taken are found first.
_MOST = 1_000_000

_ENDING = b"\nEnding after what is in hand; Ctrl-C again ends it at once.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What is said of a verb on many.

    `question` has a place for how many of `nouns` (one, several) there are, `effect` says what becomes of them,
    `first` which are taken where there are more, `done` what was done.
    """

    question: str
    nouns: tuple[str, str]
    effect: str
    first: str
    done: str


def all_options(command: F) -> F:
    """Return the command with `--all`, given to it as `every`, and what goes with it."""
    for option in (
        click.option("--yes", is_flag=True, help="With --all: do not ask."),
        click.option(
            "--limit",
            type=Count(_MOST),
            default=LIMIT,
            show_default=True,
            help="With --all: at most so many.",
        ),
        click.option("--all", "every", is_flag=True, help="All that match the filters."),
    ):
        command = option(command)
    return command


def on_all(
    words: Words,
    find: Callable[..., Sequence[Any]],
    press: Callable[..., BulkResult],
    *,
    app: str | None,
    limit: int,
    yes: bool,
    as_json: bool,
) -> bool:
    """Ask the verb of those that are found now, and tell what came of it; return whether there were any.

    `find(services, limit=)` returns them, `press(services, found, limit=, goes_on=)` asks them.
    """
    check_can_ask(yes=yes)
    with opened(app) as bus:
        bus.check_schema()
        found = find(bus.services, limit=limit + 1)
        number = min(len(found), limit)
        if found and not yes:
            confirm(_question(words, number, more=len(found) > limit))
        with progress(number, hidden=as_json) as shown:
            result = press(bus.services, found, limit=limit, goes_on=shown.goes_on)
    if found or as_json:
        tell_result(result, words.done, limit=limit, as_json=as_json)
    else:
        click.echo(f"No {words.nouns[0]} matches.")
    return bool(found)


def _question(words: Words, number: int, *, more: bool) -> str:
    question = words.question.format(counted(number, words.nouns))
    others = f" More match; {words.first} are taken." if more else ""
    return f"{question} {words.effect}{others}"


def counted(number: int, nouns: tuple[str, str]) -> str:
    """Return how many there are of what is called so, one or several."""
    return f"{number} {nouns[number != 1]}"


def check_of_all(*, every: bool) -> None:
    """Refuse, without `--all`, what goes with it."""
    source = click.get_current_context().get_parameter_source
    if not every and ParameterSource.COMMANDLINE in (source("limit"), source("yes")):
        raise click.UsageError("--limit and --yes go with --all.")


def check_can_ask(*, yes: bool) -> None:
    """Refuse to begin what would have to ask and cannot."""
    if not (yes or sys.stdin.isatty()):
        raise click.UsageError("There is no terminal to ask on; --yes goes on without asking.")


def confirm(question: str) -> None:
    """Raise `Refused` unless somebody on the terminal says yes."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        raise Refused("Nothing was done.")


@dataclass(slots=True)
class Progress:
    """How far it is, on a bar of the terminal if there is one; it ends when somebody presses Ctrl-C."""

    taken: int = 0
    interrupted: bool = False
    bar: Any = None

    def goes_on(self, taken: int) -> bool:
        """Note that so many more were taken; tell whether to go on to the next."""
        self.taken += taken
        if self.bar is not None:
            self.bar.update(taken)
        return not self.interrupted


@contextmanager
def progress(number: int, *, hidden: bool) -> Iterator[Progress]:
    """Show how many of the number are taken; `hidden` or without a terminal, only note it.

    Ctrl-C lets what is in hand come to its end. A second one does not, nor does an outage that is raised:
    raise `Incomplete` or `DatabaseAway` with how many had been taken.
    """
    shown, usual = Progress(), signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: object) -> None:
        shown.interrupted = True
        signal.signal(signal.SIGINT, usual)
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), _ENDING)  # it may have come in the middle of a write

    on_terminal: AbstractContextManager[Any] = nullcontext()
    if number and not hidden and sys.stderr.isatty():
        on_terminal = click.progressbar(length=number, file=sys.stderr, show_pos=True)
    in_doubt = "nobody knows whether what was in hand is done"
    try:
        signal.signal(signal.SIGINT, note)
        with on_terminal as shown.bar:
            yield shown
    except KeyboardInterrupt:
        raise Incomplete(f"Interrupted after {shown.taken}: {in_doubt}.") from None
    except Exception as error:
        if not is_passing(error):
            raise
        told = f"PostgreSQL went away after {shown.taken}: {in_doubt} ({cause_of(error)})."
        raise DatabaseAway(told) from error
    finally:
        signal.signal(signal.SIGINT, usual)
