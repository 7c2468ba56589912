"""`pgbus jobs`: those that wait, and those that failed and are tried again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.messages import cursor_options, messages_text, paged, placed
from pgbus.engine.cli.on_messages import filter_options, message_verb, pressed
from pgbus.engine.cli.options import Count, json_option
from pgbus.engine.cli.sentences import at
from pgbus.engine.cli.tables import shortened, table
from pgbus.engine.insights import jobs as insights
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.insights.reading import reading
from pgbus.engine.jobs import control
from pgbus.engine.jobs.bulk import Press

if TYPE_CHECKING:
    from pgbus.engine.insights.jobs import FailedJob, FailedPage
    from pgbus.engine.insights.messages import MessagePage

_ERROR_WIDTH = 80

_enqueued_option = click.option(
    "--enqueued",
    is_flag=True,
    help="All that wait, not only those that failed and are tried again.",
)


def _check_error(error_class: str | None, *, enqueued: bool) -> None:
    if enqueued and error_class is not None:
        raise click.UsageError(
            "--error narrows those that failed; --enqueued is for all that wait."
        )


@click.group()
def jobs() -> None:
    """Look at jobs; retry or discard them."""


@jobs.command("list")
@app_option()
@_enqueued_option
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
    enqueued: bool,
    as_json: bool,
    **filters: str | None,
) -> None:
    """List failed jobs, the newest failure first.

    With --enqueued all that wait, in the order of their queues.
    """
    _check_error(filters["error_class"], enqueued=enqueued)
    wanted = JobFilter(**filters)
    place: dict[str, Any] = {"limit": limit, "after": after, "before": before}
    with opened(app) as bus:
        bus.check_schema()
        with placed(after, before), reading(bus.services) as connection:
            page: FailedPage | MessagePage
            if enqueued:
                page = waiting = insights.enqueued(connection, bus.settings, wanted, **place)
                text = partial(messages_text, waiting)
            else:
                page = failed = insights.failed(connection, bus.settings, wanted, **place)
                text = partial(_failed_text, failed)
        zone = ZoneInfo(bus.settings.time_zone)
    click.echo(document(page) if as_json else text(zone))


@message_verb(jobs)
def retry(**given: Any) -> None:
    """Let a job run now, or all failed ones that match.

    It is one that waits for its retry or its time.
    """
    pressed(given, control.retry_job, Press.RETRY_FAILED)


@message_verb(jobs)
@_enqueued_option
def discard(*, enqueued: bool, **given: Any) -> None:
    """Archive a job that is not to run (again), or all that match.

    A batch counts its job as discarded. Jobs that a worker has in hand are left alone.
    """
    _check_error(given["error_class"], enqueued=enqueued)
    every = Press.DISCARD_ENQUEUED if enqueued else Press.DISCARD_FAILED
    pressed(given, control.discard_job, every)


def _failed_text(page: FailedPage, zone: ZoneInfo) -> str:
    head = ("queue", "id", "job", "deliveries", "failed at", "next try", "error")
    rows = [_row(one, zone) for one in page.jobs]
    return paged(table(head, rows) if rows else "", page.older, page.newer)


def _row(job: FailedJob, zone: ZoneInfo) -> tuple[str, ...]:
    return (
        job.queue,
        str(job.message_id),
        job.job,
        str(job.read_count),
        at(job.failed_at, zone),
        at(job.next_try_at, zone) if job.next_try_at else "none",
        shortened(f"{job.error_class}: {job.error_message}", _ERROR_WIDTH),
    )
