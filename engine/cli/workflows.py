"""`pgbus workflows`: look at runs, and act on them."""

from __future__ import annotations

import getpass
import os
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.sentences import at, duration, event_sentence, state_sentence
from pgbus.engine.cli.tables import aligned, printable, table
from pgbus.engine.errors import RunNotFound
from pgbus.engine.insights import runs
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.runner.run import Run
from pgbus.engine.states import NEEDS_CLASS, RunStatus, Verb

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from pgbus.engine.bus import Pgbus
    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.runs import RunDetail, RunPage, RunSummary

_LONGEST_PAGE = 1000
_STATUSES: dict[str, RunStatus | Literal["ongoing", "all"]] = {
    "ongoing": "ongoing",
    "all": "all",
    **{status.value: status for status in RunStatus},
}


def _moment(_ctx: click.Context, _parameter: click.Parameter, text: str) -> datetime:
    """The aware moment that the text says."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no ISO 8601 time, such as 2030-01-31T09:00+01:00."
        ) from None
    if moment.utcoffset() is None:
        raise click.BadParameter(f"{text!r} has no time zone; add its offset, or Z.")
    return moment


_run_argument = click.argument("workflow_id", type=click.UUID, metavar="ID")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def workflows() -> None:
    """Look at runs, and act on them."""


@workflows.command("list")
@app_option()
@click.option(
    "--status",
    type=click.Choice(list(_STATUSES)),
    default="ongoing",
    show_default=True,
)
@click.option("--class", "workflow_class", metavar="DOTTED.NAME")
@click.option("--step", "current_step", metavar="NAME", help="The step a run is on.")
@click.option("--error", "error_class", metavar="CLASS", help="Of a run's newest attempt.")
@click.option("--subject-type", metavar="TYPE")
@click.option("--subject-id", metavar="ID")
@click.option("--id", "workflow_id", type=click.UUID, metavar="ID")
@click.option("--limit", type=click.IntRange(1, _LONGEST_PAGE), default=50, show_default=True)
@click.option("--after", type=click.UUID, metavar="ID", help="Runs older than this one.")
@click.option("--before", type=click.UUID, metavar="ID", help="Runs newer than this one.")
@_json_option
def list_command(
    app: str | None,
    status: str,
    limit: int,
    after: UUID | None,
    before: UUID | None,
    *,
    as_json: bool,
    **filters: Any,
) -> None:
    """List runs, newest first.

    Filters combine. Names of classes, steps and errors are whole ones.
    """
    if after and before:
        raise click.UsageError("--after and --before exclude each other.")
    texts = {name: _text(value) for name, value in filters.items()}
    wanted = RunFilter(status=_STATUSES[status], **texts)
    with opened(app) as bus:
        bus.check_schema()
        with bus.services.database.autocommit() as connection:
            page = runs.page(
                connection, wanted, limit=limit, after=_text(after), before=_text(before)
            )
        click.echo(document(page) if as_json else _page_text(page, _zone(bus)))


@workflows.command()
@_run_argument
@app_option()
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="At most this many of the newest attempts, and of the newest events.",
)
@_json_option
def show(workflow_id: UUID, app: str | None, limit: int, *, as_json: bool) -> None:
    """Show a run with its attempts and its audit trail."""
    with opened(app) as bus:
        bus.check_schema()
        with bus.services.database.autocommit() as connection:
            detail = runs.detail(connection, str(workflow_id), limit=limit)
        click.echo(document(detail) if as_json else _detail_text(detail, _zone(bus)))


def _act(verb: Verb) -> Callable[..., None]:
    """The command that asks a verb of a run; what it prints is the run after it."""

    def command(
        workflow_id: UUID,
        app: str | None,
        actor: str,
        reason: str | None,
        *,
        as_json: bool,
        **arguments: Any,
    ) -> None:
        with opened(app) as bus:
            bus.check_schema()
            run = bus.find(str(workflow_id))
            if run is None:
                raise RunNotFound(f"There is no run {workflow_id}.")
            affected: Run = getattr(run, verb)(**arguments, actor=actor, reason=reason)
            with bus.services.database.autocommit() as connection:
                summary = runs.summary(connection, affected.workflow_id)
            text = f"{summary.workflow_id}: {state_sentence(summary, _zone(bus))}"
            click.echo(document({"run": summary}) if as_json else printable(text))

    return command


def _default_actor() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"cli:{user}"


#: What a verb asks for besides the run, by the name of its parameter.
_ARGUMENTS = {
    Verb.RESUME_AT: click.argument("step"),
    Verb.RESCHEDULE: click.argument("at", callback=_moment),
}


def _add_command(verb: Verb) -> None:
    command = _act(verb)
    options = [
        _json_option,
        click.option("--reason", metavar="TEXT", help="Why; it goes on the audit trail."),
        click.option("--actor", default=_default_actor, metavar="NAME", help="Who; cli:<you>."),
        app_option(required=verb in NEEDS_CLASS),
        *([_ARGUMENTS[verb]] if verb in _ARGUMENTS else []),
        _run_argument,
    ]
    for option in options:
        command = option(command)
    help_text = getattr(Run, verb).__doc__.partition("\n")[0]
    workflows.command(_typed(verb), help=help_text)(command)


def _typed(verb: Verb) -> str:
    """The verb as an operator types it."""
    return verb.replace("_", "-")


for each in Verb:
    _add_command(each)


def _page_text(page: RunPage, zone: ZoneInfo) -> str:
    if not page.runs:
        return "No run matches."
    head = ("run", "class", "subject", "status", "what it does", "started", "last activity")
    parts = [table(head, [_row(run, zone) for run in page.runs])]
    if page.newer:
        parts.append(f"Newer: --before {page.newer}")
    if page.older:
        parts.append(f"Older: --after {page.older}")
    return "\n".join(parts)


def _row(run: RunSummary, zone: ZoneInfo) -> tuple[str, ...]:
    return (
        run.workflow_id,
        run.workflow_class,
        _subject(run),
        run.status,
        state_sentence(run, zone),
        at(run.created_at, zone),
        at(run.updated_at, zone),
    )


def _detail_text(detail: RunDetail, zone: ZoneInfo) -> str:
    sections = [
        aligned(_facts(detail, zone)),
        table(
            ("step", "attempt", "status", "waited", "queued", "ran", "worker", "error"),
            [_attempt_row(attempt) for attempt in detail.attempts],
        ),
        aligned([(at(event.created_at, zone), event_sentence(event)) for event in detail.events]),
    ]
    if detail.truncated:
        sections.append("Older attempts or events are left out; --limit shows more.")
    return "\n\n".join(sections)


def _facts(detail: RunDetail, zone: ZoneInfo) -> list[tuple[str, str]]:
    run = detail.run
    actions = ", ".join(map(_typed, detail.available_actions))
    facts = [
        ("run", run.workflow_id),
        ("class", run.workflow_class),
        ("subject", _subject(run)),
        ("now", state_sentence(run, zone)),
        ("arguments", detail.encoded_arguments),
        ("started", at(run.created_at, zone)),
        ("last activity", at(run.updated_at, zone)),
        ("actions", actions if detail.class_loaded else f"{actions}; more with --app"),
    ]
    optional = [
        ("idempotency key", detail.idempotency_key),
        ("rerun of", detail.rerun_of),
        ("reruns", ", ".join(detail.reruns)),
    ]
    return [*facts, *((name, value) for name, value in optional if value)]


def _attempt_row(attempt: Attempt) -> tuple[str, ...]:
    error = f"{attempt.error_class}: {attempt.error_message}" if attempt.error_class else ""
    return (
        attempt.step_name,
        str(attempt.attempt),
        attempt.status,
        duration(attempt.waited_seconds),
        duration(attempt.queued_seconds),
        duration(attempt.ran_seconds),
        attempt.worker or "",
        error,
    )


def _subject(run: RunSummary) -> str:
    return f"{run.subject_type} {run.subject_id}" if run.subject_type else "-"


def _text(value: UUID | str | None) -> str | None:
    return None if value is None else str(value)


def _zone(bus: Pgbus) -> ZoneInfo:
    return ZoneInfo(bus.settings.time_zone)
