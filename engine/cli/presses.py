"""A verb on one message, or on all that match: the words of both, and what is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.effects import tell_effect, tell_result
from pgbus.engine.cli.options import actor_option, json_option, reason_option
from pgbus.engine.insights import reading
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.jobs import bulk
from pgbus.engine.runner.bulk import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.bus import Pgbus
    from pgbus.engine.jobs.bulk import Press
    from pgbus.engine.jobs.control import Effect
    from pgbus.engine.runner.bulk import BulkResult

F = TypeVar("F", bound="Callable[..., Any]")

_FILTERS = ("queue", "job", "error_class")


def filter_options(command: F) -> F:
    """Return the command with `--queue`, `--job` and `--error`."""
    for option in (
        click.option("--error", "error_class", metavar="CLASS", help="Of its newest failure."),
        click.option("--job", metavar="DOTTED.NAME", help="Such as shop.mail.send_receipt."),
        click.option("--queue", metavar="NAME", help="As a job declares it: mail."),
    ):
        command = option(command)
    return command


def message_or_all(command: F) -> F:
    """Return the command with a message's place, or `--all`."""
    for option in (
        click.option("--yes", is_flag=True, help="With --all, which does nothing without."),
        click.option("--all", "every", is_flag=True, help="All that match, at most 500 at once."),
        click.argument("message_id", type=click.IntRange(1), metavar="ID", required=False),
        click.argument("of_queue", metavar="QUEUE", required=False),
    ):
        command = option(command)
    return command


def press_options(command: F) -> F:
    """Return the command with what every verb takes."""
    for option in (json_option, reason_option, actor_option, app_option()):
        command = option(command)
    return command


def pressed(given: dict[str, Any], verb: Callable[..., Effect], every: Press, done: str) -> None:
    """Ask the verb of the message that is given, or of all that match; print what came of it."""
    by = {name: given[name] for name in ("actor", "reason")}
    wanted = {name: given[name] for name in _FILTERS if given[name] is not None}
    queue, message_id = given["of_queue"], given["message_id"]
    if given["every"] == (queue is not None) or (queue is None) != (message_id is None):
        raise click.UsageError("Give QUEUE and ID as the list has them, or --all.")
    if given["every"] and not given["yes"]:
        raise click.UsageError("--all is for all that match: add --yes.")
    if queue is not None and wanted:
        raise click.UsageError("--queue, --job and --error narrow --all; one message needs none.")
    with opened(given["app"]) as bus:
        if queue is not None:
            effect = verb(bus.services, queue, message_id, **by)
            tell_effect(queue, message_id, effect, done.lower(), as_json=given["as_json"])
        else:
            result = _press(bus, every, JobFilter(**wanted), by)
            tell_result(result, done, as_json=given["as_json"])


def _press(bus: Pgbus, every: Press, wanted: JobFilter, by: dict[str, Any]) -> BulkResult:
    bus.check_schema()
    with reading.reading(bus.services) as connection:
        now = reading.now(connection)
    return bulk.act(bus.services, every, wanted, until=now, at_most=LIMIT + 1, **by)
