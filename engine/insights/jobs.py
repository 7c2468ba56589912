"""Jobs as an operator looks for them: those that are enqueued, and those that failed and are tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pgbus.engine.errors import MessageNotFound
from pgbus.engine.insights import cursors, queues
from pgbus.engine.insights import messages as listing
from pgbus.engine.insights.documents import Document
from pgbus.engine.insights.matches import JobKey, matches
from pgbus.engine.insights.messages import MessageState, Search
from pgbus.engine.storage.messages import IS_IN_HAND, IS_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from pgbus.engine.insights.matches import Matches
    from pgbus.engine.insights.messages import Message, MessagePage
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: As much of an error's message comes along in a list.
LONGEST_MESSAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs: those that match everything given. `queue` is a logical name.

    `error_class` is of the failed ones and the dead letters.
    """

    queue: str | None = None
    job: str | None = None
    error_class: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedJob:
    """A job that failed and is tried again, with its newest error; in a list, cut to 1,000 characters.

    `read_count` is how often it was delivered then. `state` and `next_try_at` are those of its message; None:
    it is not there any more, because somebody deleted it past pgbus.
    """

    queue: str
    logical: str
    priority: int
    message_id: int
    job: str
    read_count: int
    error_class: str
    error_message: str
    failed_at: datetime
    state: MessageState | None
    next_try_at: datetime | None


@dataclass(frozen=True, slots=True)
class FailedPage:
    """Failed jobs, newest failure first; `older` and `newer` are cursors for `after=` and `before=`."""

    jobs: tuple[FailedJob, ...]
    older: str | None
    newer: str | None


@dataclass(frozen=True, slots=True)
class FailedJobDetail:
    """A failed job with its message, None when that is gone, and its error with backtrace and causes."""

    failed: FailedJob
    message: Message | None
    error: Document | None


@dataclass(frozen=True, slots=True)
class EnqueuedCount:
    """How many jobs were counted; with `at_least` messages were left that nobody looked at."""

    number: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Just behind a failed job."""

    failed_at: datetime
    queue: str
    message_id: int

    @classmethod
    def of(cls, job: FailedJob) -> Self:
        return cls(job.failed_at, job.queue, job.message_id)

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            failed_at, raw = cursors.decode(text)
            message_id, queue = int.from_bytes(raw[:8], signed=True), raw[8:].decode("ascii")
        except (ValueError, OverflowError):
            queue = ""
        if not (queue and queue.isprintable()):
            raise cursors.no_place(text)
        return cls(failed_at, queue, message_id)

    def __str__(self) -> str:
        number = self.message_id.to_bytes(8, signed=True)
        return cursors.encode(self.failed_at, number + self.queue.encode())


_IS_OF_JOB = "m.message ->> 'job' = CAST(:job AS text)"

_FAILED = """
SELECT f.queue, f.message_id, f.job, f.read_count, f.error_class, {message}, f.failed_at{more}
  FROM {schema}.failed_jobs f WHERE {conditions}
 ORDER BY f.failed_at {direction}, f.queue {direction}, f.message_id {direction}
 LIMIT CAST(:limit AS integer)
"""

_CONDITIONS = {
    "queue": "f.queue = ANY (CAST(:queues AS text[]))",
    "job": "f.job = CAST(:job AS text)",
    "error_class": "f.error_class = CAST(:error_class AS text)",
    "after": "(f.failed_at, f.queue, f.message_id) < ({cursor})",
    "before": "(f.failed_at, f.queue, f.message_id) > ({cursor})",
    "until": "f.failed_at <= CAST(:until AS timestamptz)",
    "one": "f.queue = CAST(:queue AS text) AND f.message_id = CAST(:message_id AS bigint)",
}
_CURSOR = "CAST(:failed_at AS timestamptz), CAST(:queue AS text), CAST(:message_id AS bigint)"

#: Those of the messages that are in one of the queues.
_MESSAGES = """
SELECT '{queue}', m.msg_id, m.vt, m.vt <= statement_timestamp(), m.read_ct FROM pgmq."q_{queue}" m
 WHERE m.msg_id = ANY (ARRAY(SELECT o.message_id
                               FROM unnest(CAST(:queues AS text[]), CAST(:message_ids AS bigint[]))
                                    AS o (queue, message_id)
                              WHERE o.queue = '{queue}'))
"""

_COUNT = "SELECT count(*) FROM (SELECT FROM {schema}.failed_jobs LIMIT CAST(:limit AS integer)) f"

#: Of the oldest messages of a queue: how many are jobs, and how many they are.
_COUNT_ENQUEUED = f"""
SELECT count(*) FILTER (WHERE NOT m.is_step), count(*)
  FROM (SELECT {IS_STEP} AS is_step FROM pgmq."q_{{queue}}" m
         ORDER BY m.msg_id LIMIT CAST(:limit AS integer)) m
"""

#: Jobs that nobody has in hand.
_FREE = f"NOT {IS_STEP} AND NOT {IS_IN_HAND} AND m.enqueued_at <= CAST(:until AS timestamptz)"


def enqueued(
    connection: Connection,
    settings: Settings,
    wanted: JobFilter,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> MessagePage:
    """Return a page of what waits in the queues and is no run's, in the order of the queues and their messages.

    Raise `QueueNotFound`, and `BadCursor` for a text that is no place.
    """
    condition = f"NOT {IS_STEP}" + (f" AND {_IS_OF_JOB}" if wanted.job is not None else "")
    search = Search(_queues(connection, settings, wanted), condition)
    return listing.page(
        connection, settings, search, limit=limit, after=after, before=before, job=wanted.job
    )


def failed(
    connection: Connection,
    settings: Settings,
    wanted: JobFilter,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> FailedPage:
    """Return a page of failed jobs, newest failure first: the newest, or those next to a cursor.

    Raise `QueueNotFound`, and `BadCursor` for a text that is no place.
    """
    backwards = before is not None
    given = before if backwards else after
    cursor = None if given is None else _Cursor.parse(given)
    place = {"before" if backwards else "after"} if cursor else set()
    rows = connection.rows(
        _failed_statement({*_given(wanted), *place}, newest_first=not backwards),
        limit=limit + 1,
        failed_at=cursor and cursor.failed_at,
        queue=cursor and cursor.queue,
        message_id=cursor and cursor.message_id,
        **_parameters(connection, settings, wanted),
    )
    more, found = len(rows) > limit, _failed(connection, settings, rows[:limit])
    if backwards:
        found.reverse()
    return FailedPage(
        tuple(found),
        older=str(_Cursor.of(found[-1])) if found and (more or backwards) else None,
        newer=str(_Cursor.of(found[0])) if found and (more if backwards else after) else None,
    )


def failed_job(
    connection: Connection, settings: Settings, queue: str, message_id: int
) -> FailedJobDetail:
    """Return a failed job by its queue's physical name; raise `MessageNotFound` when none has failed."""
    statement = _failed_statement({"one"}, newest_first=True, whole=True)
    rows = connection.rows(statement, queue=queue, message_id=message_id, limit=1)
    if not rows:
        raise MessageNotFound(f"No job {message_id} of {queue} has failed, or it is over by now.")
    *row, encoded, size = rows[0]
    [job] = _failed(connection, settings, [tuple(row)])
    stored = None
    if job.state is not None:
        stored = listing.message(settings, listing.one(connection, queue, message_id))
    return FailedJobDetail(job, stored, Document.read(encoded, size))


def count_failed(connection: Connection, *, cap: int = queues.CAP) -> int:
    """Count the failed jobs; more than `cap` come back as one more than that."""
    ((number,),) = connection.rows(_COUNT, limit=cap + 1)
    return int(number)


def count_enqueued(
    connection: Connection, settings: Settings, *, cap: int = queues.CAP
) -> EnqueuedCount:
    """Count what waits in the queues and is no run's, among the `cap` oldest messages of each and one more."""
    asked = [
        _COUNT_ENQUEUED.replace("{queue}", queue)
        for queue in _queues(connection, settings, JobFilter())
    ]
    counted = connection.rows(" UNION ALL ".join(asked), limit=cap + 1) if asked else []
    return EnqueuedCount(
        sum(number for number, _ in counted), at_least=any(seen > cap for _, seen in counted)
    )


def failed_until(
    connection: Connection, settings: Settings, wanted: JobFilter, *, until: datetime, limit: int
) -> list[JobKey]:
    """Return the failed jobs that match and had failed by the moment, the oldest failures first."""
    rows = connection.rows(
        _failed_statement({*_given(wanted), "until"}, newest_first=False),
        limit=limit,
        until=until,
        **_parameters(connection, settings, wanted),
    )
    return [JobKey(queue, message_id, read_count) for queue, message_id, _, read_count, *_ in rows]


def enqueued_until(
    connection: Connection,
    settings: Settings,
    wanted: JobFilter,
    *,
    until: datetime,
    limit: int,
    after: str | None = None,
) -> Matches:
    """Return the jobs that match, were enqueued by the moment and are in nobody's hands, in order.

    Raise `QueueNotFound`, and `BadCursor` for a text that is no place.
    """
    return matches(
        connection,
        settings,
        _queues(connection, settings, wanted),
        _FREE if wanted.job is None else f"{_FREE} AND {_IS_OF_JOB}",
        limit=limit,
        after=after,
        until=until,
        job=wanted.job,
    )


def _queues(connection: Connection, settings: Settings, wanted: JobFilter) -> list[str]:
    if wanted.queue is None:
        return queues.with_work(connection, settings)
    return queues.of_logical(connection, settings, wanted.queue)


def _given(wanted: JobFilter) -> list[str]:
    return [name for name in ("queue", "job", "error_class") if getattr(wanted, name) is not None]


def _parameters(connection: Connection, settings: Settings, wanted: JobFilter) -> dict[str, object]:
    return {
        "queues": None if wanted.queue is None else _queues(connection, settings, wanted),
        "job": wanted.job,
        "error_class": wanted.error_class,
    }


def _failed_statement(asked: Iterable[str], *, newest_first: bool, whole: bool = False) -> str:
    conditions = " AND ".join(["true", *(_CONDITIONS[name] for name in sorted(asked))])
    cut = f"left(f.error_message, {LONGEST_MESSAGE})"
    return (
        _FAILED.replace("{conditions}", conditions)
        .replace("{cursor}", _CURSOR)
        .replace("{direction}", "DESC" if newest_first else "ASC")
        .replace("{message}", "f.error_message" if whole else cut)
        .replace("{more}", ", f.error::text, octet_length(f.error::text)" if whole else "")
    )


def _failed(
    connection: Connection, settings: Settings, rows: Sequence[tuple[Any, ...]]
) -> list[FailedJob]:
    """Return the jobs of these rows, with how it is with their messages, which one statement asks."""
    named = {row[0] for row in rows}
    known = named.intersection(queues.with_work(connection, settings)) if rows else named
    asked = [_MESSAGES.replace("{queue}", queue) for queue in sorted(known)]
    stored: dict[tuple[str, int], tuple[Any, ...]] = {}
    if asked:
        queue_names, message_ids = ([row[place] for row in rows] for place in (0, 1))
        for queue, message_id, *told in connection.rows(
            " UNION ALL ".join(asked), queues=queue_names, message_ids=message_ids
        ):
            stored[queue, message_id] = tuple(told)
    return [_failed_job(settings, row, stored.get(row[:2])) for row in rows]


def _failed_job(
    settings: Settings, row: tuple[Any, ...], stored: tuple[Any, ...] | None
) -> FailedJob:
    queue, message_id, job, read_count, error_class, error_message, failed_at = row
    parsed = listing.parsed_name(settings, queue)
    next_try_at, due, read = stored or (None, None, None)
    return FailedJob(
        queue=queue,
        logical=parsed.logical,
        priority=parsed.priority,
        message_id=message_id,
        job=job,
        read_count=read_count,
        error_class=error_class,
        error_message=error_message,
        failed_at=failed_at,
        state=None if stored is None else _state(due=due, delivered_since=read != read_count),
        next_try_at=next_try_at,
    )


def _state(*, due: bool, delivered_since: bool) -> MessageState:
    if due:
        return MessageState.DUE
    return MessageState.IN_HAND if delivered_since else MessageState.RETRYING
