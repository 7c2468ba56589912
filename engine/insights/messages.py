"""Messages in the order of their queues, page by page: whatever their bodies are, for anybody can send one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, Self

from pgbus.engine.errors import MessageNotFound
from pgbus.engine.insights import cursors
from pgbus.engine.insights.documents import Document
from pgbus.engine.queues import DEFAULT_PRIORITY, PhysicalQueue, parse_physical_name
from pgbus.engine.storage.messages import IS_STEP, IS_TO_BE_RETRIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: Bytes of a body beyond which a list leaves it out.
INLINE = 2_000

#: So many messages of a queue are looked at at once, and so often while none of them is found. A page that
#: finds none leads on behind them.
_WINDOW = 10_000
_MOST_LOOKS = 10

_GREATEST_ID = 2**63 - 1


class MessageKind(StrEnum):
    """What a message is: a job, a batch's member, a run's step, or nothing that pgbus knows."""

    JOB = auto()
    MEMBER = auto()
    STEP = auto()
    UNKNOWN = auto()


class MessageState(StrEnum):
    """What a message waits for: a worker, the end of its job, its retry after a failure, or its time."""

    DUE = auto()
    IN_HAND = auto()
    RETRYING = auto()
    LATER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message by its queue's physical name and its id; `logical` is what people call the queue.

    `job` is the name it gives, cut to 300 characters, and `batch_id` that of a member. A step's belongs to
    the run `workflow_id`. It is delivered at `visible_at` unless somebody has it; `read_count` times it was.
    A list leaves a large `body` out; None: it has none.
    """

    queue: str
    logical: str
    priority: int
    message_id: int
    kind: MessageKind
    state: MessageState
    job: str | None
    batch_id: str | None
    workflow_id: str | None
    enqueued_at: datetime
    visible_at: datetime
    read_at: datetime | None
    read_count: int
    body: Document | None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in order; `following` and `preceding` are cursors for `after=` and `before=`, None at an end.

    A page that is short, or empty, may be followed by others: a search looks at so many messages at a time.
    """

    messages: tuple[Message, ...]
    following: str | None
    preceding: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a page, and where the next ones are."""

    rows: list[tuple[Any, ...]]
    following: str | None
    preceding: str | None


@dataclass(frozen=True, slots=True)
class Search:
    """Which messages of which queues, in their order: all that meet the `condition` over a message `m`.

    Within a queue the oldest come first, or the newest.
    """

    queues: Sequence[str]
    condition: str = "true"
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Just behind a message."""

    queue: str
    message_id: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the place that a text names; raise `BadCursor`."""
        queue, _, number = text.rpartition(":")
        if not (
            queue and number.isascii() and number.isdigit() and len(number) < len(str(_GREATEST_ID))
        ):
            raise cursors.no_place(text)
        return cls(queue, int(number))

    def __str__(self) -> str:
        return f"{self.queue}:{self.message_id}"


_QUEUES_MESSAGES = """
(SELECT {number} AS number, '{queue}' AS queue, p.*
   FROM (SELECT m.*, {condition} AS matches,
                row_number() OVER (ORDER BY m.msg_id {direction}) = CAST(:window AS integer) AS ends
           FROM (SELECT m.* FROM pgmq."q_{queue}" m WHERE {beside}
                  ORDER BY m.msg_id {direction} LIMIT CAST(:window AS integer)) m) p
  WHERE p.matches OR p.ends
  ORDER BY p.msg_id {direction} LIMIT CAST(:limit AS integer))
"""

_PAGE = """
SELECT m.queue, m.msg_id, m.matches, m.ends, {columns}
  FROM (SELECT * FROM ({messages}) b ORDER BY {order} LIMIT CAST(:limit AS integer)) m
 CROSS JOIN LATERAL (SELECT m.message::text AS body, octet_length(m.message::text) AS size) d
 ORDER BY {order}
"""

_ONE = """
SELECT m.queue, m.msg_id, true, false, {columns}
  FROM (SELECT '{queue}' AS queue, q.* FROM pgmq."q_{queue}" q WHERE q.msg_id = CAST(:message_id AS bigint)) m
 CROSS JOIN LATERAL (SELECT m.message::text AS body, octet_length(m.message::text) AS size) d
"""

#: What `message` makes a message of, after where it stands.
_COLUMNS = f"""
m.enqueued_at, m.vt, m.last_read_at, m.read_ct,
m.vt <= statement_timestamp(), {IS_TO_BE_RETRIED.replace("'{queue}'", "m.queue")},
CASE WHEN {IS_STEP} THEN m.message ->> 'workflow_id' END,
(SELECT o.batch_id::text FROM {{schema}}.member_of(m.message) o),
CASE jsonb_typeof(m.message -> 'job') WHEN 'string' THEN left(m.message ->> 'job', 300) END,
CASE WHEN (d.size <= CAST(:inline AS integer)) IS NOT false THEN d.body END, d.size
"""

#: How many columns of a row a message is made of.
WIDTH = 15


def page(
    connection: Connection,
    settings: Settings,
    search: Search,
    *,
    limit: int,
    after: str | None,
    before: str | None,
    **parameters: object,
) -> MessagePage:
    """Return a page of what is searched: the first, or that next to a cursor; raise `BadCursor`."""
    found = rows(
        connection, settings, search, "", limit=limit, after=after, before=before, **parameters
    )
    messages = tuple(message(settings, row) for row in found.rows)
    return MessagePage(messages, found.following, found.preceding)


def rows(
    connection: Connection,
    settings: Settings,
    search: Search,
    more_columns: str,
    *,
    limit: int,
    after: str | None,
    before: str | None,
    **parameters: object,
) -> Found:
    """Return the rows of a page, those of `message` with more columns at their end."""
    backwards = before is not None
    given = before if backwards else after
    place = None if given is None else Place.parse(given)
    seen: list[tuple[Any, ...]] = []
    end = place
    for _ in range(_MOST_LOOKS):
        statement = _statement(settings, search, more_columns, end, backwards=backwards)
        if statement is None:
            end = None
        else:
            parameters |= {"limit": limit + 1, "place": end and end.message_id}
            seen, end = _looked(connection, statement, limit, parameters)
        if seen or end is None:
            break
    begin = Place(*seen[0][:2]) if seen and place is not None else None
    if backwards:
        return Found(seen[::-1], _text(begin), _text(end))
    return Found(seen, _text(end), _text(begin))


def _looked(
    connection: Connection, statement: str, limit: int, parameters: dict[str, object]
) -> tuple[list[tuple[Any, ...]], Place | None]:
    """Return the first rows that were found, and where to go on; None at an end."""
    seen: list[tuple[Any, ...]] = []
    window = max(_WINDOW, limit + 1)
    for row in connection.rows(statement, window=window, inline=INLINE, **parameters):
        queue, message_id, matches, ends = row[:4]
        if len(seen) == limit:
            return seen, Place(*seen[-1][:2])
        if matches:
            seen.append(row)
        if ends:
            return seen, Place(queue, message_id)
    return seen, None


def one(
    connection: Connection, queue: str, message_id: int, more_columns: str = ""
) -> tuple[Any, ...]:
    """Return the row of one message of a queue that exists; raise `MessageNotFound`."""
    statement = _ONE.replace("{columns}", _COLUMNS + more_columns).replace("{queue}", queue)
    row = None
    if 0 <= message_id <= _GREATEST_ID:
        row = connection.row(statement, message_id=message_id, inline=None)
    if row is None:
        raise MessageNotFound(f"{queue} has no message {message_id} any more.")
    return row


def message(settings: Settings, row: Sequence[Any]) -> Message:
    """Return what a row tells."""
    queue, message_id, _, _, enqueued_at, visible_at, read_at, read_count, *told = row[:WIDTH]
    due, to_be_retried, workflow_id, batch_id, job, body, size = told
    parsed = parsed_name(settings, queue)
    return Message(
        queue=queue,
        logical=parsed.logical,
        priority=parsed.priority,
        message_id=message_id,
        kind=_kind(workflow_id, job, batch_id),
        state=_state(due=due, to_be_retried=to_be_retried, read=read_count > 0),
        job=job,
        batch_id=batch_id,
        workflow_id=workflow_id,
        enqueued_at=enqueued_at,
        visible_at=visible_at,
        read_at=read_at,
        read_count=read_count,
        body=Document.read(body, size),
    )


def parsed_name(settings: Settings, queue: str) -> PhysicalQueue:
    """Return what a queue's name stands for; one under another prefix stands for itself."""
    return parse_physical_name(settings.queue_prefix, queue) or PhysicalQueue(
        queue, DEFAULT_PRIORITY, is_dead_letter=False
    )


def in_order(settings: Settings, queues: Iterable[str]) -> list[str]:
    """Return queues by their logical names, and by priority."""
    return sorted(queues, key=lambda queue: _rank(settings, queue))


def _statement(
    settings: Settings,
    search: Search,
    more_columns: str,
    place: Place | None,
    *,
    backwards: bool,
) -> str | None:
    """Return the statement of a page; None when no queue is beside the place."""
    direction = "DESC" if search.newest_first != backwards else "ASC"
    parts = [
        _QUEUES_MESSAGES.replace("{condition}", search.condition)
        .replace("{beside}", where)
        .replace("{direction}", direction)
        .replace("{number}", str(number))
        .replace("{queue}", queue)
        for number, queue in enumerate(search.queues)
        if (where := beside(settings, queue, place, direction, backwards=backwards))
    ]
    if not parts:
        return None
    order = f"number {'DESC' if backwards else 'ASC'}, msg_id {direction}"
    return (
        _PAGE.replace("{columns}", _COLUMNS + more_columns)
        .replace("{messages}", " UNION ALL ".join(parts))
        .replace("{order}", order)
    )


def beside(
    settings: Settings,
    queue: str,
    place: Place | None,
    direction: str = "ASC",
    *,
    backwards: bool = False,
) -> str | None:
    """Return the condition on a queue's messages beyond the place; None when all are before it."""
    if place is None:
        return "true"
    if queue == place.queue:
        return f"m.msg_id {'>' if direction == 'ASC' else '<'} CAST(:place AS bigint)"
    is_later = _rank(settings, queue) > _rank(settings, place.queue)
    return "true" if is_later != backwards else None


def _rank(settings: Settings, queue: str) -> tuple[str, int, str]:
    parsed = parsed_name(settings, queue)
    return parsed.logical, parsed.priority, queue


def _kind(workflow_id: str | None, job: str | None, batch_id: str | None) -> MessageKind:
    if workflow_id is not None:
        return MessageKind.STEP
    if job is None:
        return MessageKind.UNKNOWN
    return MessageKind.JOB if batch_id is None else MessageKind.MEMBER


def _state(*, due: bool, to_be_retried: bool, read: bool) -> MessageState:
    if due:
        return MessageState.DUE
    if to_be_retried:
        return MessageState.RETRYING
    return MessageState.IN_HAND if read else MessageState.LATER


def _text(place: Place | None) -> str | None:
    return None if place is None else str(place)
