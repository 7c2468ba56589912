"""`pgbus workflows`: look at runs, and act on them."""

from __future__ import annotations

import json
import re
import traceback
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

import click

from pgbus.engine import codec
from pgbus.engine.cli.answers import detail_text, oldest_first, page_text
from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.bulk import ALL_HELP
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.failures import Refused
from pgbus.engine.cli.filters import class_hint, run_filters
from pgbus.engine.cli.messages import placed
from pgbus.engine.cli.on_runs import or_all
from pgbus.engine.cli.options import Count, actor_option, json_option, reason_option
from pgbus.engine.cli.sentences import at, state_sentence, typed
from pgbus.engine.cli.tables import printable
from pgbus.engine.definition import options, registry
from pgbus.engine.definition.signal import Expectation
from pgbus.engine.errors import InvalidTransition, RunNotFound, StepNotDefined
from pgbus.engine.insights import runs, signals
from pgbus.engine.insights.detail import detail
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.runner.bulk import VERBS
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.runner.run import Run
from pgbus.engine.states import NEEDS_CLASS, RunStatus, Verb

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from pgbus.engine.bus import Pgbus
    from pgbus.engine.definition.signal import Signal
    from pgbus.engine.insights.runs import RunSummary

_LONGEST_PAGE = 1000
_STATUSES: dict[str, RunStatus | Literal["ongoing", "all"]] = {
    "ongoing": "ongoing",
    "all": "all",
    **{status.value: status for status in RunStatus},
}


def _moment(_ctx: click.Context, _parameter: click.Parameter, text: str) -> datetime:
    """Return the aware moment that the text says."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no ISO 8601 time, such as 2030-01-31T09:00+01:00."
        ) from None
    if moment.utcoffset() is None:
        raise click.BadParameter(f"{text!r} has no time zone; add its offset, or Z.")
    return moment


def _checked(check: Callable[[object], Any]) -> Callable[..., Any]:
    """Return the callback that gives an option's value as the check does."""

    def callback(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
        try:
            return check(text)
        except options.OptionError as error:
            raise click.BadParameter(f"{error}.") from None

    return callback


def _payload(
    _ctx: click.Context, _parameter: click.Parameter, text: str | None
) -> dict[str, Any] | None:
    """Return the object that the JSON text says."""
    try:
        payload = None if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise click.BadParameter(
            f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}."
        ) from None
    if text is not None and not isinstance(payload, dict):
        raise click.BadParameter(f"""{text} is no object, such as '{{"amount": 7}}'.""")
    return payload


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
    help="Of the run.",
)
@run_filters
@click.option("--id", "workflow_id", type=click.UUID, metavar="ID")
@click.option("--limit", type=Count(_LONGEST_PAGE), default=50, show_default=True)
@click.option("--after", metavar="CURSOR", help="Go on to older runs, from where a page ended.")
@click.option("--before", metavar="CURSOR", help="Go back to newer runs, from where a page began.")
@json_option
def list_command(
    app: str | None,
    status: str,
    workflow_id: UUID | None,
    limit: int,
    after: str | None,
    before: str | None,
    *,
    as_json: bool,
    **filters: Any,
) -> None:
    """List runs, newest first.

    Filters combine. Names of classes, steps and errors are whole ones.
    """
    of_run = None if workflow_id is None else str(workflow_id)
    wanted = RunFilter(status=_STATUSES[status], workflow_id=of_run, **filters)
    with placed(after, before), opened(app) as bus:
        bus.check_schema()
        with bus.services.database.autocommit() as connection:
            page = runs.page(
                connection, bus.settings, wanted, limit=limit, after=after, before=before
            )
            hides = (
                not as_json
                and status == "ongoing"
                and runs.hides_ended(connection, bus.settings, wanted)
            )
        zone = _zone(bus)
    click.echo(document(page) if as_json else page_text(page, zone, hides_ended=hides))
    if not (as_json or page.runs or hides) and (hint := class_hint(wanted.workflow_class, app)):
        click.echo(hint)


@workflows.command()
@click.argument("workflow_id", type=click.UUID, metavar="ID")
@app_option()
@click.option(
    "--limit",
    type=Count(10_000),
    default=100,
    show_default=True,
    help="At most this many of the newest attempts, signals and events.",
)
@json_option
def show(workflow_id: UUID, app: str | None, limit: int, *, as_json: bool) -> None:
    """Show a run with its attempts, its signals and its audit trail."""
    with opened(app) as bus:
        bus.check_schema()
        with bus.services.database.autocommit() as connection:
            found = detail(connection, bus.settings, str(workflow_id), limit=limit)
        told = oldest_first(found)
        click.echo(document(told) if as_json else detail_text(told, _zone(bus), app))


def _act(verb: Verb) -> Callable[..., None]:
    """Return the command that asks a verb of a run, and prints the run after it."""

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
            run = _found(bus, workflow_id)
            try:
                affected: Run = getattr(run, verb)(**arguments, actor=actor, reason=reason)
            except (InvalidTransition, StepNotDefined) as refusal:
                raise Refused(re.sub(rf"\b{verb}\b", typed(verb), str(refusal))) from refusal
            summary = _summary(bus, affected)
            text = f"{summary.workflow_id}: {state_sentence(summary, _zone(bus))}"
            click.echo(document({"run": summary}) if as_json else printable(text))

    return command


def _signal(
    workflow_id: UUID,
    app: str | None,
    name: str,
    payload: dict[str, Any] | None,
    idempotency_key: str | None,
    actor: str,
    reason: str | None,
    *,
    as_json: bool,
) -> None:
    with opened(app) as bus:
        run = _found(bus, workflow_id)
        try:
            signal = run.signal(name, payload, idempotency_key, actor=actor, reason=reason)
        except Exception as error:
            if not _is_of_matcher(error):
                raise
            raise Refused(_matcher_failed(run, error)) from error
        summary, zone = _summary(bus, run), _zone(bus)
    received = (
        f"was received before, at {at(signal.received_at, zone)}"
        if signal.duplicate_delivery
        else "received"
    )
    text = f"{summary.workflow_id}: {name} {received}; {state_sentence(summary, zone)}"
    hint = None if signal.duplicate_delivery else _signal_hint(run.workflow_class, name, app)
    answer = {"signal": _stored(signal), "run": summary, "hint": hint}
    click.echo(document(answer) if as_json else printable(text))
    if hint and not as_json:
        click.echo(printable(f"Hint: {hint}"))


def _is_of_matcher(error: Exception) -> bool:
    """Tell whether a step's matcher raised it: to whoever sends, it comes as it was raised."""
    asked = Expectation.matches.__code__
    return any(frame.f_code is asked for frame, _ in traceback.walk_tb(error.__traceback__))


def _matcher_failed(run: Run, error: Exception) -> str:
    entry = record_error(error, backtrace_lines=0)
    return (
        f"Nothing was stored: the matcher in wait_for of {run.workflow_class}, step "
        f"{run.reload().current_step!r}, raised {entry.error_class}: {entry.message}"
    )


def _signal_hint(workflow_class: str, name: str, app: str | None) -> str | None:
    """Tell what may be wrong with a signal that was stored, None when nothing is known."""
    definition = registry.find(workflow_class)
    if definition is not None:
        return signals.unexpected(definition, name)
    mend = f"let {app} import it" if app else "give --app"
    return f"the payload was not checked: {workflow_class} is not loaded; {mend}"


def _stored(signal: Signal) -> dict[str, Any]:
    """Return the signal as it is stored: the payload's types are JSON's."""
    told = {field: getattr(signal, field) for field in _SIGNAL_FIELDS}
    return told | {"payload": json.loads(codec.encode(dict(signal.payload), name="payload"))}


def _found(bus: Pgbus, workflow_id: UUID) -> Run:
    bus.check_schema()
    run = bus.find(str(workflow_id))
    if run is None:
        raise RunNotFound(f"There is no run {workflow_id}.")
    return run


def _summary(bus: Pgbus, run: Run) -> RunSummary:
    with bus.services.database.autocommit() as connection:
        return runs.summary(connection, bus.settings, run.workflow_id)


_SIGNAL_FIELDS = (
    "signal_id",
    "name",
    "idempotency_key",
    "actor",
    "reason",
    "received_at",
    "duplicate_delivery",
)

#: What a verb asks for besides the run, by the name of its parameter.
_PARAMETERS: dict[Verb, list[Callable[..., Any]]] = {
    Verb.RESUME_AT: [click.argument("step")],
    Verb.RESCHEDULE: [click.argument("at", callback=_moment)],
    Verb.SIGNAL: [
        click.argument("name", callback=_checked(options.signal_name)),
        click.option(
            "--payload",
            callback=_payload,
            metavar="JSON",
            help="An object; none is {} to the step.",
        ),
        click.option(
            "--idempotency-key",
            callback=_checked(options.idempotency_key),
            metavar="KEY",
            help="With one used before, nothing is stored.",
        ),
    ],
}


#: In the list of commands, where a line has room for no more.
_SHORT_HELP = {
    Verb.PAUSE: "Let nothing more of a run start.",
    Verb.RESUME: "Let a paused run go on, or all that match.",
    Verb.RESUME_AT: "Let a paused run go on with another step.",
    Verb.CANCEL: "End a run, or all that match.",
    Verb.SKIP: "Leave out the step a paused run is on.",
    Verb.RUN_NOW: "Run the scheduled step at once, of a run or all that match.",
    Verb.RESCHEDULE: "Move the scheduled step to a moment.",
    Verb.SIGNAL: "Send a signal to a run.",
    Verb.RERUN: "Start an ended run anew.",
}


def _add_command(verb: Verb) -> None:
    command = _signal if verb is Verb.SIGNAL else _act(verb)
    of_many = verb in VERBS
    if of_many:
        command = or_all(verb, command)
    run_argument = click.argument(
        "workflow_id", type=click.UUID, metavar="[ID]" if of_many else "ID", required=not of_many
    )
    parameters = [
        json_option,
        reason_option,
        actor_option,
        app_option(
            why=f"{typed(verb)} must know the steps of the run's class"
            if verb in NEEDS_CLASS
            else None
        ),
        *reversed(_PARAMETERS.get(verb, [])),
        run_argument,
    ]
    for parameter in parameters:
        command = parameter(command)
    help_text = getattr(Run, verb).__doc__.partition("\n")[0]
    if of_many:
        help_text += f"\n\n{ALL_HELP}"
    workflows.command(typed(verb), help=help_text, short_help=_SHORT_HELP[verb])(command)


for each in Verb:
    _add_command(each)


def _zone(bus: Pgbus) -> ZoneInfo:
    return ZoneInfo(bus.settings.time_zone)
