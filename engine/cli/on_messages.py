"""A verb on one job or dead letter, or with `--all` on all that match."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.bulk import ALL_HELP, Words, all_options, check_of_all, on_all
from pgbus.engine.cli.effects import tell_effect
from pgbus.engine.cli.options import actor_option, json_option, reason_option
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.insights.reading import now, reading
from pgbus.engine.jobs import bulk
from pgbus.engine.jobs.bulk import Press

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgbus.engine.insights.matches import JobKey
    from pgbus.engine.jobs.control import Effect
    from pgbus.engine.runner.services import Services

F = TypeVar("F", bound="Callable[..., Any]")

_FILTERS = ("queue", "job", "error_class")

_FAILED = partial(Words, nouns=("failed job", "failed jobs"), first="those that failed first")
_BY_QUEUE = partial(Words, first="those of the first queues, the oldest of each first,")
_LETTERS = partial(_BY_QUEUE, nouns=("dead letter", "dead letters"))
_ARCHIVED = "Each goes to the archive of its queue"

_WORDS = {
    Press.RETRY_FAILED: _FAILED(
        question="Retry {} now?",
        effect="Each runs as soon as a worker is free, whatever its delay was.",
        done="Retried",
    ),
    Press.DISCARD_FAILED: _FAILED(
        question="Discard {}?",
        effect=f"{_ARCHIVED}; a batch counts its job as discarded.",
        done="Discarded",
    ),
    Press.DISCARD_ENQUEUED: _BY_QUEUE(
        nouns=("enqueued job", "enqueued jobs"),
        question="Discard {}?",
        effect=f"{_ARCHIVED}; a batch counts its job as discarded.",
        done="Discarded",
    ),
    Press.RETRY_DEAD_LETTERS: _LETTERS(
        question="Send {} anew?",
        effect="Each goes to the queue that it came from.",
        done="Sent anew",
    ),
    Press.DISCARD_DEAD_LETTERS: _LETTERS(
        question="Discard {}?", effect=f"{_ARCHIVED}.", done="Discarded"
    ),
}


def filter_options(command: F) -> F:
    """Return the command with `--queue`, `--job` and `--error`."""
    for option in (
        click.option("--error", "error_class", metavar="CLASS", help="Of its newest failure."),
        click.option("--job", metavar="DOTTED.NAME", help="Such as shop.mail.send_receipt."),
        click.option("--queue", metavar="NAME", help="As a job declares it: mail."),
    ):
        command = option(command)
    return command


def message_verb(group: click.Group) -> Callable[[Callable[..., None]], click.Command]:
    """Add the group's command of a verb on a message, by its place, or on all that match."""

    def added(command: Callable[..., None]) -> click.Command:
        help_text = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{ALL_HELP}"
        for option in (
            *(json_option, reason_option, actor_option, app_option()),
            *(filter_options, all_options),
            click.argument("message_id", type=click.IntRange(1), metavar="[ID]", required=False),
            click.argument("of_queue", metavar="[QUEUE]", required=False),
        ):
            command = option(command)
        return group.command(help=help_text)(command)

    return added


def pressed(given: dict[str, Any], verb: Callable[..., Effect], every: Press) -> None:
    """Ask the verb of the message that is given, or of all that match; print what came of it."""
    filters = {name: given.pop(name) for name in _FILTERS}
    queue, message_id = given.pop("of_queue"), given.pop("message_id")
    of_all = given.pop("every")
    if of_all == (queue is not None) or (queue is None) != (message_id is None):
        raise click.UsageError("Give QUEUE and ID as the list has them, or --all.")
    if not of_all and any(value is not None for value in filters.values()):
        raise click.UsageError("--queue, --job and --error narrow --all; one message needs none.")
    check_of_all(every=of_all)
    by = {name: given.pop(name) for name in ("actor", "reason")}
    words = _WORDS[every]
    if of_all:
        find = partial(_found, press=every, wanted=JobFilter(**filters))
        on_all(words, find, partial(bulk.on_messages, verb=every, **by), **given)
        return
    with opened(given["app"]) as bus:
        effect = verb(bus.services, queue, message_id, **by)
    tell_effect(queue, message_id, effect, words.done.lower(), as_json=given["as_json"])


def _found(services: Services, *, press: Press, wanted: JobFilter, limit: int) -> Sequence[JobKey]:
    """Return those that match now, however many others are before them: each search has its own deadline."""
    keys: list[JobKey] = []
    until = after = None
    while True:
        with reading(services) as connection:
            until = until or now(connection)
            found = bulk.found(
                connection,
                services.settings,
                press,
                wanted,
                until=until,
                limit=limit - len(keys),
                after=after,
            )
        keys.extend(found.keys)
        after = found.further
        if after is None or len(keys) >= limit:
            return keys
