"""`pgbus queues`: how full they are, and whether they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.bulk import check_can_ask, confirm, counted, progress
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.failures import Incomplete
from pgbus.engine.cli.messages import cursor_options, messages_text, placed
from pgbus.engine.cli.options import Count, actor_option, json_option, reason_option
from pgbus.engine.cli.sentences import at
from pgbus.engine.cli.tables import printable, table
from pgbus.engine.insights import queues as insights
from pgbus.engine.insights.reading import reading
from pgbus.engine.jobs import control

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Any

    from pgbus.engine.insights.queues import DeadLetters, QueueDepth, QueuePause
    from pgbus.engine.jobs.control import Purged

_JOBS = ("job", "jobs")
_PURGE_EFFECT = (
    "Each goes to the archive; a batch counts its job as discarded. Messages of runs stay."
)

_name_argument = click.argument("queue", metavar="NAME")


@click.group()
def queues() -> None:
    """Look at queues; let workers read one no more, or again."""


@queues.command("list")
@app_option()
@json_option
def list_command(app: str | None, *, as_json: bool) -> None:
    """List the queues, what waits in them, and the dead letters."""
    with opened(app) as bus:
        bus.check_schema()
        with reading(bus.services) as connection:
            depths = insights.depths(connection, bus.settings)
            pauses = insights.pauses(connection, bus.settings)
            letters = insights.dead_letters(connection, bus.settings)
        zone = ZoneInfo(bus.settings.time_zone)
    if as_json:
        click.echo(document({"queues": depths, "pauses": pauses, "dead_letters": letters}))
    elif not depths:
        click.echo("There is no queue yet.")
    else:
        rows = [_row(one, pauses.get(one.logical), zone) for one in depths]
        click.echo(table(("queue", "due", "in hand", "later", "due since", "pause"), rows))
        dead = [_letters(one, zone) for one in letters if one.messages]
        if dead:
            click.echo(f"\n{table(('dead letters', 'messages', 'newest'), dead)}")


@queues.command()
@_name_argument
@app_option()
@click.option("--limit", type=Count(1000), default=50, show_default=True)
@cursor_options
@json_option
def show(
    queue: str, app: str | None, limit: int, after: str | None, before: str | None, *, as_json: bool
) -> None:
    """Show a queue's messages, the next to be delivered first."""
    with opened(app) as bus:
        bus.check_schema()
        with placed(after, before), reading(bus.services) as connection:
            pause = insights.pauses(connection, bus.settings).get(queue)
            page = insights.waiting(
                connection, bus.settings, queue, limit=limit, after=after, before=before
            )
        zone = ZoneInfo(bus.settings.time_zone)
    if as_json:
        click.echo(document({"pause": pause, "page": page}))
        return
    if pause:
        click.echo(printable(f"{queue}: {_paused(pause, zone)}"))
    click.echo(messages_text(page, zone))


def _verb(command: Callable[..., None]) -> click.Command:
    """Return the command of a verb on a queue."""
    for option in (json_option, reason_option, actor_option, app_option(), _name_argument):
        command = option(command)
    return queues.command()(command)


@_verb
def pause(queue: str, app: str | None, *, as_json: bool, **by: Any) -> None:
    """Let workers read a queue no more; what they have in hand goes on.

    Of one that is paused already it tells by whom.
    """
    with opened(app) as bus:
        result = control.pause_queue(bus.services, queue, **by)
        told = _paused(result.pause, ZoneInfo(bus.settings.time_zone))
    before = "" if result.done else "was before: "
    click.echo(document(result) if as_json else printable(f"{queue}: {before}{told}"))


@_verb
def resume(queue: str, app: str | None, *, as_json: bool, **by: Any) -> None:
    """Let workers read a queue again."""
    with opened(app) as bus:
        ended = control.resume_queue(bus.services, queue, **by)
        zone = ZoneInfo(bus.settings.time_zone)
    told = f"is read again; it was {_paused(ended, zone)}" if ended else "was not paused"
    click.echo(document({"ended": ended}) if as_json else printable(f"{queue}: {told}"))


@_verb
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(queue: str, app: str | None, *, as_json: bool, yes: bool, **by: Any) -> None:
    """Discard the jobs that wait in a queue when the command begins.

    Runs' messages stay, and what workers have in hand. The messages are kept in the queue's archive for a while.
    Ctrl-C ends it after the transaction in hand.
    """
    check_can_ask(yes=yes)
    with opened(app) as bus:
        found = control.purgeable(bus.services, queue)
        if found.jobs and not yes:
            confirm(f"Discard {counted(found.jobs, _JOBS)} of {queue}? {_PURGE_EFFECT}")
        with progress(found.jobs, hidden=as_json) as shown:
            purged = control.purge_queue(
                bus.services, queue, found=found, goes_on=shown.goes_on, **by
            )
    stopped = shown.interrupted and purged.may_be_more
    text = f"{queue}: {_purged(purged, stopped=stopped)}"
    click.echo(document(purged) if as_json else printable(text))
    if stopped:
        click.get_current_context().exit(Incomplete.exit_code)


def _row(depth: QueueDepth, pause: QueuePause | None, zone: ZoneInfo) -> tuple[str, ...]:
    return (
        depth.queue,
        _number(depth.visible),
        _number(depth.in_flight),
        _number(depth.later),
        _moment(depth.due_since, zone),
        _paused(pause, zone) if pause else "",
    )


def _letters(letters: DeadLetters, zone: ZoneInfo) -> tuple[str, ...]:
    return letters.queue, _number(letters.messages), _moment(letters.newest_at, zone)


def _paused(pause: QueuePause, zone: ZoneInfo) -> str:
    because = f": {pause.reason}" if pause.reason else ""
    return f"paused by {pause.actor} since {at(pause.since, zone)}{because}"


def _purged(purged: Purged, *, stopped: bool) -> str:
    left = [
        f"{_number(number)} {what} stay"
        for number, what in ((purged.steps, "of runs"), (purged.in_hand, "in workers' hands"))
        if number
    ]
    more = "stopped before all were taken" if stopped else "there may be more; ask again"
    done = f"{counted(purged.discarded, _JOBS)} discarded"
    return "; ".join([done, *left, *([more] if purged.may_be_more else [])])


def _number(number: int) -> str:
    return f"{insights.CAP}+" if number > insights.CAP else str(number)


def _moment(moment: datetime | None, zone: ZoneInfo) -> str:
    return at(moment, zone) if moment else ""
