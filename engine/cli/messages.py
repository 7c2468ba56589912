"""Messages as tables, and the places between their pages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgbus.engine.cli.sentences import at
from pgbus.engine.cli.tables import shortened, table
from pgbus.engine.errors import BadCursor
from pgbus.engine.insights.messages import MessageState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from zoneinfo import ZoneInfo

    from pgbus.engine.insights.messages import Message, MessagePage

F = TypeVar("F", bound="Callable[..., Any]")

_BODY_WIDTH = 80

_STATES = {
    MessageState.DUE: "due",
    MessageState.IN_HAND: "in hand until {}",
    MessageState.RETRYING: "failed, again at {}",
    MessageState.LATER: "due at {}",
}


def cursor_options(command: F) -> F:
    """Return the command with `--after` and `--before`."""
    after = click.option("--after", metavar="CURSOR", help="Go on, from where a page ended.")
    before = click.option("--before", metavar="CURSOR", help="Go back, from where a page began.")
    return after(before(command))


@contextmanager
def placed(after: str | None, before: str | None) -> Iterator[None]:
    """Refuse both cursors at once, and a text that is none."""
    if after is not None and before is not None:
        raise click.UsageError("--after and --before exclude each other.")
    try:
        yield
    except BadCursor as error:
        raise click.BadParameter(str(error), param_hint="--after, --before") from None


def messages_text(page: MessagePage, zone: ZoneInfo) -> str:
    """Return a page of messages as a table, with its neighbours."""
    head = ("queue", "id", "what", "state", "deliveries", "enqueued", "body")
    rows = [_row(one, zone) for one in page.messages]
    return paged(table(head, rows) if rows else "", page.following, page.preceding)


def paged(text: str, following: str | None, preceding: str | None) -> str:
    """Return the text of a page with the ways to its neighbours; an empty one says so."""
    parts = [text or ("Nothing here; see further on." if following else "Nothing matches.")]
    if preceding:
        parts.append(f"Before: --before {preceding}")
    if following:
        parts.append(f"After: --after {following}")
    return "\n".join(parts)


def _row(message: Message, zone: ZoneInfo) -> tuple[str, ...]:
    body = message.body.encoded if message.body else None
    return (
        message.queue,
        str(message.message_id),
        f"run {message.workflow_id}" if message.workflow_id else message.job or "no job",
        _STATES[message.state].format(at(message.visible_at, zone)),
        str(message.read_count),
        at(message.enqueued_at, zone),
        shortened(body or "", _BODY_WIDTH),
    )
