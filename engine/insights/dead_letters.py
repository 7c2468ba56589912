"""Dead letters: what failed too often, or was never a job, with why; whatever their headers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.insights import messages as listing
from pgbus.engine.insights import queues
from pgbus.engine.insights.documents import Document
from pgbus.engine.insights.jobs import LONGEST_MESSAGE, JobFilter
from pgbus.engine.insights.matches import matches
from pgbus.engine.insights.messages import Search
from pgbus.engine.queues import dead_letter_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pgbus.engine.insights.matches import Matches
    from pgbus.engine.insights.messages import Message
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter and why it became one, as its header tells; None where that does not.

    `message.enqueued_at` is when it did. It came from the queue `source`, delivered `deliveries` times.
    In a list the error's message is cut to 1,000 characters.
    """

    message: Message
    source: str | None
    deliveries: int | None
    error_class: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters by queue, the newest of each first; cursors as those of a `MessagePage`."""

    letters: tuple[DeadLetter, ...]
    following: str | None
    preceding: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterDetail:
    """A dead letter with its error, with backtrace and causes, and all its headers."""

    letter: DeadLetter
    error: Document | None
    headers: Document | None


_HEADER = "m.headers -> 'dead_letter'"
_READ_COUNT = f"{_HEADER} ->> 'read_count'"
_MESSAGE = f"{_HEADER} ->> 'error_message'"
_CUT = f"left({_MESSAGE}, {LONGEST_MESSAGE})"

_TOLD = f"""
, left({_HEADER} ->> 'queue', 300),
CASE WHEN {_READ_COUNT} ~ '^[0-9]{{1,9}}$' THEN ({_READ_COUNT})::integer END,
left({_HEADER} ->> 'error_class', 300), {_CUT}
"""

_WHOLE = f"""{_TOLD.replace(_CUT, _MESSAGE)}
, ({_HEADER} -> 'error')::text, octet_length(({_HEADER} -> 'error')::text),
m.headers::text, octet_length(m.headers::text)
"""

_CONDITIONS = {
    "job": "m.message ->> 'job' = CAST(:job AS text)",
    "error_class": f"{_HEADER} ->> 'error_class' = CAST(:error_class AS text)",
}

_UNTIL = "m.enqueued_at <= CAST(:until AS timestamptz)"


def page(
    connection: Connection,
    settings: Settings,
    wanted: JobFilter,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> DeadLetterPage:
    """Return a page of dead letters: the first, or that next to a cursor.

    `wanted.queue` is the logical name of where they came from. Raise `QueueNotFound`, and `BadCursor` for a
    text that is no place.
    """
    search = Search(_queues(connection, settings, wanted), _condition(wanted), newest_first=True)
    found = listing.rows(
        connection,
        settings,
        search,
        _TOLD,
        limit=limit,
        after=after,
        before=before,
        job=wanted.job,
        error_class=wanted.error_class,
    )
    return DeadLetterPage(
        tuple(_letter(settings, row) for row in found.rows), found.following, found.preceding
    )


def one(
    connection: Connection, settings: Settings, queue: str, message_id: int
) -> DeadLetterDetail:
    """Return a dead letter by its queue's physical name, with all its body.

    Raise `QueueNotFound` or `MessageNotFound`.
    """
    queues.check_holds_dead_letters(connection, settings, queue)
    row = listing.one(connection, queue, message_id, _WHOLE)
    error, error_size, headers, size = row[-4:]
    return DeadLetterDetail(
        _letter(settings, row), Document.read(error, error_size), Document.read(headers, size)
    )


def until(
    connection: Connection,
    settings: Settings,
    wanted: JobFilter,
    *,
    until: datetime,
    limit: int,
    after: str | None = None,
) -> Matches:
    """Return the dead letters that match and were there at the moment, the oldest of each queue first.

    Raise `QueueNotFound`, and `BadCursor` for a text that is no place.
    """
    return matches(
        connection,
        settings,
        _queues(connection, settings, wanted),
        f"{_UNTIL} AND {_condition(wanted)}",
        limit=limit,
        after=after,
        until=until,
        job=wanted.job,
        error_class=wanted.error_class,
    )


def _queues(connection: Connection, settings: Settings, wanted: JobFilter) -> list[str]:
    if wanted.queue is None:
        return queues.with_dead_letters(connection, settings)
    queues.of_logical(connection, settings, wanted.queue)
    name = dead_letter_name(settings.queue_prefix, wanted.queue)
    return [queue for queue in queues.with_dead_letters(connection, settings) if queue == name]


def _condition(wanted: JobFilter) -> str:
    asked = [text for name, text in _CONDITIONS.items() if getattr(wanted, name) is not None]
    return " AND ".join(asked) or "true"


def _letter(settings: Settings, row: Sequence[Any]) -> DeadLetter:
    source, deliveries, error_class, error_message = row[listing.WIDTH : listing.WIDTH + 4]
    return DeadLetter(
        message=listing.message(settings, row),
        source=source,
        deliveries=deliveries,
        error_class=error_class,
        error_message=error_message,
    )
