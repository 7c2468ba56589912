"""How full the queues are, which are paused, and what waits in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import QueueNotFound
from pgbus.engine.insights import messages as listing
from pgbus.engine.insights.messages import Search, parsed_name
from pgbus.engine.storage import messages
from pgbus.engine.storage.messages import IS_TO_BE_RETRIED
from pgbus.engine.storage.revision import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pgbus.engine.insights.messages import Message, MessagePage
    from pgbus.engine.queues import PhysicalQueue
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: Counts of messages stop here; one more stands for any number beyond.
CAP = 10_000

#: So many names are told where one is not found.
_MOST_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """How many messages of a queue, by its physical name, are due, in hand, and not due yet.

    Those in hand are counted among the first `CAP` to become visible, so that none is missed
    unless more than that are. `due_since` is when the one became visible that has been longest.
    """

    queue: str
    logical: str
    priority: int
    visible: int
    in_flight: int
    later: int
    due_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """How many dead letters there are under a logical name, and when the newest came."""

    queue: str
    logical: str
    messages: int
    newest_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueuePause:
    """By whom a logical queue was paused, why (None: no reason was given), and since when."""

    actor: str
    reason: str | None
    since: datetime


#: A message that failed is hidden until its retry: in hand again once it is delivered once more.
_DEPTH = """
SELECT '{queue}',
       (SELECT count(*) FROM (SELECT FROM {table} WHERE vt <= statement_timestamp()
                               LIMIT CAST(:most AS integer)) m),
       (SELECT count(*) FROM (SELECT msg_id, read_ct FROM {table} WHERE vt > statement_timestamp()
                               ORDER BY vt LIMIT CAST(:most AS integer)) m
         WHERE m.read_ct > 0 AND NOT {is_to_be_retried}),
       (SELECT count(*) FROM (SELECT FROM {table} m
                               WHERE vt > statement_timestamp() AND (m.read_ct = 0 OR {is_to_be_retried})
                               LIMIT CAST(:most AS integer)) m),
       (SELECT min(vt) FROM {table} WHERE vt <= statement_timestamp())
"""

_DEAD_LETTERS = """
SELECT '{queue}', (SELECT count(*) FROM (SELECT FROM {table} LIMIT CAST(:most AS integer)) m),
       (SELECT enqueued_at FROM {table} ORDER BY msg_id DESC LIMIT 1)
"""

#: A pause is of all priorities, at one moment.
_PAUSES = "SELECT queue, actor, reason, paused_at FROM {schema}.queues ORDER BY queue"


def depths(connection: Connection, settings: Settings) -> tuple[QueueDepth, ...]:
    """Return how full each queue is, by name; those of the dead letters are not among them."""
    statement = _DEPTH.replace("{is_to_be_retried}", IS_TO_BE_RETRIED)
    return tuple(
        QueueDepth(
            queue=queue,
            logical=parsed.logical,
            priority=parsed.priority,
            visible=visible,
            in_flight=in_flight,
            later=later,
            due_since=due_since,
        )
        for parsed, (queue, visible, in_flight, later, due_since) in _asked(
            connection, settings, statement, dead_letters=False
        )
    )


def dead_letters(connection: Connection, settings: Settings) -> tuple[DeadLetters, ...]:
    """Return what each queue of dead letters holds, by name."""
    return tuple(
        DeadLetters(queue=queue, logical=parsed.logical, messages=number, newest_at=newest_at)
        for parsed, (queue, number, newest_at) in _asked(
            connection, settings, _DEAD_LETTERS, dead_letters=True
        )
    )


def pauses(connection: Connection, settings: Settings) -> dict[str, QueuePause]:
    """Return the pause of each queue that is paused, by its logical name."""
    return {
        parsed_name(settings, queue).logical: QueuePause(*pause)
        for queue, *pause in connection.rows(_PAUSES)
    }


def waiting(
    connection: Connection,
    settings: Settings,
    logical: str,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> MessagePage:
    """Return a page of a queue's messages, the next to be delivered first: by priority, then by age.

    Raise `QueueNotFound`, and `BadCursor` for a text that is no place.
    """
    search = Search(of_logical(connection, settings, logical))
    return listing.page(connection, settings, search, limit=limit, after=after, before=before)


def message(connection: Connection, settings: Settings, queue: str, message_id: int) -> Message:
    """Return a message of a queue, by its physical name, with all its body.

    Raise `QueueNotFound` or `MessageNotFound`.
    """
    check_holds_work(connection, settings, queue)
    return listing.message(settings, listing.one(connection, queue, message_id))


def of_logical(connection: Connection, settings: Settings, logical: str) -> list[str]:
    """Return the queues that a logical name stands for, by priority; raise `QueueNotFound`."""
    known = with_work(connection, settings)
    queues = [queue for queue in known if parsed_name(settings, queue).logical == logical]
    if not queues:
        raise _not_found(logical, {parsed_name(settings, queue).logical for queue in known})
    return queues


def with_work(connection: Connection, settings: Settings) -> list[str]:
    """Return the queues that workers read, in order; those of the dead letters are not among them."""
    return _of_kind(connection, settings, dead_letters=False)


def with_dead_letters(connection: Connection, settings: Settings) -> list[str]:
    """Return the queues of the dead letters, in order."""
    return _of_kind(connection, settings, dead_letters=True)


def check_holds_work(connection: Connection, settings: Settings, queue: str) -> None:
    """Raise `QueueNotFound` unless it is the physical name of a queue that workers read."""
    if queue not in (known := with_work(connection, settings)):
        raise _not_found(queue, known)


def check_holds_dead_letters(connection: Connection, settings: Settings, queue: str) -> None:
    """Raise `QueueNotFound` unless it is the physical name of a queue of dead letters."""
    if queue not in (known := with_dead_letters(connection, settings)):
        raise _not_found(queue, known)


def _of_kind(connection: Connection, settings: Settings, *, dead_letters: bool) -> list[str]:
    return listing.in_order(
        settings,
        (
            queue
            for queue in messages.queues(connection)
            if parsed_name(settings, queue).is_dead_letter is dead_letters
        ),
    )


def _not_found(name: str, known: Iterable[str]) -> QueueNotFound:
    names = sorted(known)
    told = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return QueueNotFound(f"There is no queue {name!r} here; there are: {told or 'none yet'}.")


def _asked(
    connection: Connection, settings: Settings, statement: str, *, dead_letters: bool
) -> list[tuple[PhysicalQueue, tuple[Any, ...]]]:
    """Ask all queues of one kind in one statement: of many, each would cost a round trip."""
    parsed = {queue: parsed_name(settings, queue) for queue in sorted(messages.queues(connection))}
    asked = [
        statement.replace("{queue}", queue).replace("{table}", f"pgmq.{quoted(f'q_{queue}')}")
        for queue, one in parsed.items()
        if one.is_dead_letter is dead_letters
    ]
    if not asked:
        return []
    rows = connection.rows(" UNION ALL ".join(asked), most=CAP + 1)
    return [(parsed[row[0]], row) for row in rows]
