"""`--all`: a verb on every run that matches, each by itself, as it was when the command began."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager, nullcontext
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from pgbus.engine.cli.app import opened
from pgbus.engine.cli.effects import tell_result
from pgbus.engine.cli.failures import Refused
from pgbus.engine.cli.filters import class_hint, run_filters
from pgbus.engine.cli.options import Count
from pgbus.engine.insights import runs
from pgbus.engine.insights.reading import reading
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.runner import bulk
from pgbus.engine.states import TRANSITIONS, RunStatus, Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pgbus.engine.insights.runs import Tab

_QUESTIONS = {
    Verb.RESUME: "Resume {}?",
    Verb.RUN_NOW: "Run {} now?",
    Verb.CANCEL: "Cancel {} for good?",
}
_EFFECTS = {
    Verb.RESUME: "A failed step is tried again; one that ended while it was paused ends as it asked.",
    Verb.RUN_NOW: "A step that is scheduled for later runs now, too.",
    Verb.CANCEL: "A body that runs is not stopped, but its outcome is ignored.",
}
_DONE = {Verb.RESUME: "Resumed", Verb.RUN_NOW: "Sent to run now:", Verb.CANCEL: "Cancelled"}


ALL_HELP = (
    "With --all it is asked of every run that matches the filters when the command begins, each by "
    "itself; one that moves on meanwhile is left alone. Ctrl-C ends it after the run in hand."
)

#: The options that narrow --all, the status aside.
_FILTERS = ("workflow_class", "current_step", "error_class", "stuck", "subject_type", "subject_id")


def or_all(verb: Verb, command: Callable[..., None]) -> Callable[..., None]:
    """Return the command that asks the verb of one run, as `command` does, or of all that match."""
    statuses = _statuses(verb)

    def one_or_all(
        workflow_id: object,
        *,
        every: bool,
        status: str | None,
        limit: int,
        yes: bool,
        **given: Any,
    ) -> None:
        filters = {name: given.pop(name) for name in _FILTERS}
        narrowed = status is not None or any(value is not None for value in filters.values())
        if every is (workflow_id is not None):
            raise click.UsageError("Give the ID of a run, or --all.")
        if narrowed and not every:
            raise click.UsageError("Filters narrow --all; with the ID of a run there are none.")
        if not every:
            command(workflow_id, **given)
            return
        wanted = RunFilter(
            status=statuses[status] if status else next(iter(statuses.values())), **filters
        )
        _act(verb, wanted, limit=limit, asks=not yes, **given)

    options = [
        click.option("--yes", is_flag=True, help="With --all: do not ask."),
        click.option(
            "--limit",
            type=Count(),
            default=bulk.LIMIT,
            show_default=True,
            help="With --all: at most so many, those that were started first.",
        ),
        run_filters,
        click.option(
            "--status",
            type=click.Choice(list(statuses)),
            help=f"Of the runs; else {next(iter(statuses))}.",
        ),
        click.option("--all", "every", is_flag=True, help="All runs that match the filters."),
    ]
    for option in options:
        one_or_all = option(one_or_all)
    return one_or_all


def _statuses(verb: Verb) -> dict[str, Tab]:
    """Return by what the runs can be narrowed that the verb can be asked of, all of them first."""
    sources = [status for status in RunStatus if status in TRANSITIONS[verb].sources]
    each: dict[str, Tab] = {status.value: status for status in sources}
    return {"ongoing": "ongoing", **each} if len(sources) > 1 else each


def _act(
    verb: Verb,
    wanted: RunFilter,
    *,
    limit: int,
    asks: bool,
    app: str | None,
    actor: str,
    reason: str | None,
    as_json: bool,
) -> None:
    """Ask the verb of the runs that match now, and tell what came of it."""
    if asks and not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on; --yes goes on without asking.")
    with opened(app) as bus:
        bus.check_schema()
        with reading(bus.services) as connection:
            found = runs.oldest(connection, bus.settings, wanted, limit=limit + 1)
        if asks and found:
            _confirm(verb, min(len(found), limit), more=len(found) > limit)
        with _progress(min(len(found), limit), hidden=as_json or not found) as goes_on:
            result = bulk.on_runs(
                bus.services, found, verb, actor=actor, reason=reason, limit=limit, goes_on=goes_on
            )
    if found or as_json:
        tell_result(result, _DONE[verb], limit=limit, as_json=as_json)
        return
    click.echo("No run matches.")
    if hint := class_hint(wanted.workflow_class, app):
        click.echo(hint)


def _confirm(verb: Verb, number: int, *, more: bool) -> None:
    what = "1 run" if number == 1 else f"{number} runs"
    others = " More match; those that were started first are taken." if more else ""
    question = f"{_QUESTIONS[verb].format(what)} {_EFFECTS[verb]}{others}"
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        raise Refused("Nothing was done.")


@contextmanager
def _progress(number: int, *, hidden: bool) -> Iterator[Callable[[], bool]]:
    """Yield what moves a bar on the terminal by a run, and tells whether to go on to the next.

    Ctrl-C lets the run in hand come to its end; a second one does not.
    """
    interrupted = Event()
    usual = signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, usual)

    def goes_on() -> bool:
        if bar is not None:
            bar.update(1)
        return not interrupted.is_set()

    shown: AbstractContextManager[Any] = nullcontext()
    if sys.stderr.isatty() and not hidden:
        shown = click.progressbar(length=number, file=sys.stderr, show_pos=True)
    signal.signal(signal.SIGINT, note)
    try:
        with shown as bar:
            yield goes_on
    finally:
        signal.signal(signal.SIGINT, usual)
