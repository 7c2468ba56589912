"""`pgbus dead-letters`: what failed too often, or was never a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.messages import cursor_options, paged, placed
from pgbus.engine.cli.on_messages import filter_options, message_verb, pressed
from pgbus.engine.cli.options import Count, json_option
from pgbus.engine.cli.sentences import at
from pgbus.engine.cli.tables import shortened, table
from pgbus.engine.insights import dead_letters as insights
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.insights.reading import reading
from pgbus.engine.jobs import control
from pgbus.engine.jobs.bulk import Press

if TYPE_CHECKING:
    from pgbus.engine.insights.dead_letters import DeadLetter

_ERROR_WIDTH = 80


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at dead letters; retry or discard them."""


@dead_letters.command("list")
@app_option()
@filter_options
@click.option("--limit", type=Count(1000), default=50, show_default=True)
@cursor_options
@json_option
def list_command(
    app: str | None,
    limit: int,
    after: str | None,
    before: str | None,
    *,
    as_json: bool,
    **filters: str | None,
) -> None:
    """List dead letters by queue, the newest of each first."""
    with opened(app) as bus:
        bus.check_schema()
        with placed(after, before), reading(bus.services) as connection:
            page = insights.page(
                connection,
                bus.settings,
                JobFilter(**filters),
                limit=limit,
                after=after,
                before=before,
            )
        zone = ZoneInfo(bus.settings.time_zone)
    if as_json:
        click.echo(document(page))
        return
    head = ("queue", "id", "job", "from", "deliveries", "died", "error")
    rows = [_row(letter, zone) for letter in page.letters]
    click.echo(paged(table(head, rows) if rows else "", page.following, page.preceding))


@message_verb(dead_letters)
def retry(**given: Any) -> None:
    """Send a dead letter anew, or all that match.

    It goes to the queue that it came from. What its batch has counted stays counted.
    """
    pressed(given, control.retry_dead_letter, Press.RETRY_DEAD_LETTERS)


@message_verb(dead_letters)
def discard(**given: Any) -> None:
    """Archive a dead letter, or all that match."""
    pressed(given, control.discard_dead_letter, Press.DISCARD_DEAD_LETTERS)


def _row(letter: DeadLetter, zone: ZoneInfo) -> tuple[str, ...]:
    message = letter.message
    error = f"{letter.error_class}: {letter.error_message}" if letter.error_class else ""
    return (
        message.queue,
        str(message.message_id),
        message.job or "no job",
        letter.source or "",
        "" if letter.deliveries is None else str(letter.deliveries),
        at(message.enqueued_at, zone),
        shortened(error, _ERROR_WIDTH),
    )
