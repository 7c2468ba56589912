"""How full the queues are, and what became dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.queues import DEFAULT_PRIORITY, PhysicalQueue, parse_physical_name
from pgbus.engine.storage import messages
from pgbus.engine.storage.revision import quoted

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: Counts of messages stop here; one more stands for any number beyond.
CAP = 10_000


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

_IS_TO_BE_RETRIED = """
EXISTS (SELECT FROM {schema}.failed_jobs f
         WHERE f.queue = '{queue}' AND f.message_id = m.msg_id AND f.read_count = m.read_ct)
"""

_DEAD_LETTERS = """
SELECT '{queue}', (SELECT count(*) FROM (SELECT FROM {table} LIMIT CAST(:most AS integer)) m),
       (SELECT enqueued_at FROM {table} ORDER BY msg_id DESC LIMIT 1)
"""


def depths(connection: Connection, settings: Settings) -> tuple[QueueDepth, ...]:
    """Return how full each queue is, by name; those of the dead letters are not among them."""
    statement = _DEPTH.replace("{is_to_be_retried}", _IS_TO_BE_RETRIED)
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


def _asked(
    connection: Connection, settings: Settings, statement: str, *, dead_letters: bool
) -> list[tuple[PhysicalQueue, tuple[Any, ...]]]:
    """Ask all queues of one kind in one statement: of many, each would cost a round trip."""
    parsed = {queue: _parsed(settings, queue) for queue in sorted(messages.queues(connection))}
    asked = [
        statement.replace("{queue}", queue).replace("{table}", f"pgmq.{quoted(f'q_{queue}')}")
        for queue, one in parsed.items()
        if one.is_dead_letter is dead_letters
    ]
    if not asked:
        return []
    rows = connection.rows(" UNION ALL ".join(asked), most=CAP + 1)
    return [(parsed[row[0]], row) for row in rows]


def _parsed(settings: Settings, queue: str) -> PhysicalQueue:
    """Return what the name stands for; one under another prefix stands for itself."""
    return parse_physical_name(settings.queue_prefix, queue) or PhysicalQueue(
        queue, DEFAULT_PRIORITY, is_dead_letter=False
    )
