"""A verb on one run, or with `--all` on all that match."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pgbus.engine.cli.bulk import Words, all_options, check_of_all, on_all
from pgbus.engine.cli.filters import class_hint, run_filters
from pgbus.engine.insights import runs
from pgbus.engine.insights.reading import reading
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.runner import bulk
from pgbus.engine.states import TRANSITIONS, RunStatus, Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgbus.engine.insights.runs import Tab
    from pgbus.engine.insights.stuck import Member
    from pgbus.engine.runner.services import Services

_RUNS = partial(Words, nouns=("run", "runs"), first="those that were started first")

_WORDS = {
    Verb.RESUME: _RUNS(
        question="Resume {}?",
        effect="A failed step is tried again; one that ended while it was paused ends as it asked.",
        done="Resumed",
    ),
    Verb.RUN_NOW: _RUNS(
        question="Run {} now?",
        effect="A step that is scheduled for later runs now, too.",
        done="Sent to run now:",
    ),
    Verb.CANCEL: _RUNS(
        question="Cancel {} for good?",
        effect="A body that runs is not stopped, but its outcome is ignored.",
        done="Cancelled",
    ),
}

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
        check_of_all(every=every)
        if not every:
            command(workflow_id, **given)
            return
        wanted = RunFilter(
            status=statuses[status] if status else next(iter(statuses.values())), **filters
        )
        _act(verb, wanted, limit=limit, yes=yes, **given)

    status_option = click.option(
        "--status",
        type=click.Choice(list(statuses)),
        help=f"Of the runs; else {next(iter(statuses))}.",
    )
    return all_options(status_option(run_filters(one_or_all)))


def _statuses(verb: Verb) -> dict[str, Tab]:
    """Return by what the runs can be narrowed that the verb can be asked of, all of them first."""
    sources = [status for status in RunStatus if status in TRANSITIONS[verb].sources]
    each: dict[str, Tab] = {status.value: status for status in sources}
    return {"ongoing": "ongoing", **each} if len(sources) > 1 else each


def _act(
    verb: Verb, wanted: RunFilter, *, app: str | None, actor: str, reason: str | None, **how: Any
) -> None:
    found_any = on_all(
        _WORDS[verb],
        partial(_found, wanted=wanted),
        partial(bulk.on_runs, verb=verb, actor=actor, reason=reason),
        app=app,
        **how,
    )
    if not (found_any or how["as_json"]) and (hint := class_hint(wanted.workflow_class, app)):
        click.echo(hint)


def _found(services: Services, *, wanted: RunFilter, limit: int) -> Sequence[Member]:
    with reading(services) as connection:
        return runs.oldest(connection, services.settings, wanted=wanted, limit=limit)
