"""Batches as an operator looks for them: page by page, newest first, and one with its members."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pgbus.engine.errors import BadCursor, BatchNotFound
from pgbus.engine.insights.documents import Document
from pgbus.engine.states import MemberStatus

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from pgbus.engine.storage.database import Connection

#: How a member ended that counts as failed.
FAILED = frozenset({MemberStatus.DISCARDED, MemberStatus.DEAD_LETTERED})

#: Bytes of properties beyond which a list leaves them out.
_INLINE = 500


class BatchFilter(StrEnum):
    """Which batches to list; failed are those, open or finished, of which a member has failed."""

    ALL = auto()
    OPEN = auto()
    FINISHED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class BatchRun:
    """The run whose fan-out a batch is, and the step; None for what does not exist any more."""

    workflow_id: str
    workflow_class: str | None
    step_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """A batch with the counts of its members; in a list, large properties are only told of.

    `withdrawn_at`: the run did not wait for it any more, so members not delivered then are discarded.
    """

    batch_id: str
    description: str | None
    properties: Document
    total_jobs: int
    completed_jobs: int
    discarded_jobs: int
    dead_lettered_jobs: int
    created_at: datetime
    finished_at: datetime | None
    withdrawn_at: datetime | None
    run: BatchRun | None

    @property
    def failed_jobs(self) -> int:
        """How many members ended otherwise than completed."""
        return self.discarded_jobs + self.dead_lettered_jobs

    @property
    def open_jobs(self) -> int:
        """How many members have not ended."""
        return self.total_jobs - self.completed_jobs - self.failed_jobs


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Batches, newest first; `older` and `newer` are cursors for `after=` and `before=`, None at an end."""

    batches: tuple[BatchSummary, ...]
    older: str | None
    newer: str | None


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """How many batches are open, and of how many of those a member has failed."""

    number: int
    failing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDetail:
    """A batch, and the names of the jobs that are its callbacks."""

    batch: BatchSummary
    on_complete: str | None
    on_success: str | None
    on_failure: str | None


@dataclass(frozen=True, slots=True)
class Member:
    """A job of a batch, by its place in it; `queue` is the physical one."""

    number: int
    job: str
    queue: str
    status: MemberStatus
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Failures:
    """How many members that were one job failed in one way."""

    job: str
    status: MemberStatus
    members: int


@dataclass(frozen=True, slots=True)
class MemberPage:
    """Members, the last added first; `older` and `newer` as in a `BatchPage`."""

    members: tuple[Member, ...]
    older: int | None
    newer: int | None


#: The counts stand in the counters while the batch is open, in its row when it has finished.
_BATCHES = """
SELECT b.batch_id::text, b.description,
       CASE WHEN (d.size <= CAST(:inline AS integer)) IS NOT false THEN d.properties END, d.size,
       b.total_jobs, coalesce(b.completed_jobs, c.completed), coalesce(b.discarded_jobs, c.discarded),
       coalesce(b.dead_lettered_jobs, c.dead_lettered), b.created_at, b.finished_at, b.withdrawn_at,
       b.workflow_id::text, w.workflow_class, s.step_name,
       b.on_complete ->> 'job', b.on_success ->> 'job', b.on_failure ->> 'job'
  FROM {batches} b
 CROSS JOIN LATERAL (SELECT b.properties::text AS properties, octet_length(b.properties::text) AS size) d
 CROSS JOIN LATERAL (SELECT coalesce(sum(n.completed), 0)::integer AS completed,
                            coalesce(sum(n.discarded), 0)::integer AS discarded,
                            coalesce(sum(n.dead_lettered), 0)::integer AS dead_lettered
                       FROM {schema}.batch_counters n
                      WHERE n.batch_id = b.batch_id) c
  LEFT JOIN {schema}.workflows w ON w.workflow_id = b.workflow_id
  LEFT JOIN {schema}.workflow_steps s ON s.step_id = b.step_id
"""

_OF_ALL = _BATCHES.replace("{batches}", "{schema}.batches")
_ONE = f"{_OF_ALL} WHERE b.batch_id = CAST(:batch_id AS uuid)"

_HAS_FAILING = """
EXISTS (SELECT FROM {schema}.batch_counters f
         WHERE f.batch_id = b.batch_id AND f.discarded + f.dead_lettered > 0)
"""

#: An index each has those that finished and those that are open, in the order of the list.
_FAILING = f"""
((SELECT b.* FROM {{schema}}.batches b WHERE b.discarded_jobs + b.dead_lettered_jobs > 0 {{place}})
 UNION ALL
 (SELECT b.* FROM {{schema}}.batches b WHERE b.finished_at IS NULL AND {_HAS_FAILING} {{place}}))
"""

_LISTED = {
    BatchFilter.ALL: f"{_OF_ALL} WHERE true {{place}}",
    BatchFilter.OPEN: f"{_OF_ALL} WHERE b.finished_at IS NULL {{place}}",
    BatchFilter.FINISHED: f"{_OF_ALL} WHERE b.finished_at IS NOT NULL {{place}}",
    BatchFilter.FAILED: f"{_BATCHES.replace('{batches}', _FAILING)} WHERE true {{place}}",
}

_OPEN = f"""
SELECT count(*), count(*) FILTER (WHERE {_HAS_FAILING})
  FROM (SELECT batch_id FROM {{schema}}.batches
         WHERE finished_at IS NULL LIMIT CAST(:limit AS integer)) b
"""

#: Which jobs a batch's failed members were, the most first.
_FAILURES = """
SELECT job, status, count(*) FROM {schema}.batch_jobs
 WHERE batch_id = CAST(:batch_id AS uuid) AND status = ANY (CAST(:statuses AS text[]))
 GROUP BY job, status
 ORDER BY count(*) DESC, job, status
 LIMIT CAST(:limit AS integer)
"""

_MEMBERS = """
SELECT number, job, queue, status, ended_at FROM {schema}.batch_jobs
 WHERE batch_id = CAST(:batch_id AS uuid) AND status = ANY (CAST(:statuses AS text[])) {place}
"""


def page(
    connection: Connection,
    wanted: BatchFilter,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> BatchPage:
    """Return a page of batches, newest first: the newest, or those next to a cursor of another page.

    A cursor is the id of a batch, which need not exist any more; raise `BadCursor` for a text that is none.
    """
    cursors = after and _cursor(after), before and _cursor(before)
    rows, older, newer = _beside(
        connection, _LISTED[wanted], "b.batch_id", "uuid", cursors, limit, inline=_INLINE
    )
    found = tuple(_summary(row) for row in rows)
    return BatchPage(
        found,
        older=found[-1].batch_id if older else None,
        newer=found[0].batch_id if newer else None,
    )


def open_batches(connection: Connection, *, cap: int = 10_000) -> OpenBatches:
    """Count the open batches; more than `cap` come back as one more than that."""
    ((number, failing),) = connection.rows(_OPEN, limit=cap + 1)
    return OpenBatches(number, failing)


def detail(connection: Connection, batch_id: str, *, inline: int | None = None) -> BatchDetail:
    """Return one batch, its properties when they have at most `inline` bytes (None: whatever they have).

    Raise `BatchNotFound` when there is none, whatever the id looks like.
    """
    try:
        known = str(UUID(batch_id))
    except ValueError:
        raise _not_found(batch_id) from None
    row = connection.row(_ONE, batch_id=known, inline=inline)
    if row is None:
        raise _not_found(batch_id)
    on_complete, on_success, on_failure = row[-3:]
    return BatchDetail(
        batch=_summary(row), on_complete=on_complete, on_success=on_success, on_failure=on_failure
    )


def members(
    connection: Connection,
    batch_id: str,
    statuses: Collection[MemberStatus],
    *,
    limit: int,
    after: int | None = None,
    before: int | None = None,
) -> MemberPage:
    """Return a page of a batch's members in these states, the last added first.

    A cursor is a member's number.
    """
    rows, older, newer = _beside(
        connection,
        _MEMBERS,
        "number",
        "integer",
        (after, before),
        limit,
        batch_id=batch_id,
        statuses=list(statuses),
    )
    found = tuple(_member(row) for row in rows)
    return MemberPage(
        found,
        older=found[-1].number if older else None,
        newer=found[0].number if newer else None,
    )


def failures(connection: Connection, batch_id: str, *, limit: int) -> tuple[Failures, ...]:
    """Return which jobs the failed members of a batch were, the most first."""
    rows = connection.rows(_FAILURES, batch_id=batch_id, statuses=list(FAILED), limit=limit)
    return tuple(Failures(job, MemberStatus(status), number) for job, status, number in rows)


def _beside(
    connection: Connection,
    statement: str,
    key: str,
    kind: str,
    cursors: tuple[object, object],
    limit: int,
    **parameters: object,
) -> tuple[list[tuple[Any, ...]], bool, bool]:
    """Return the rows after or before a cursor, by descending key, and whether older and newer follow.

    Where the statement says `{place}`, it is told of the cursor, the order and the limit.
    """
    after, before = cursors
    backwards = before is not None
    cursor = before if backwards else after
    place = f"ORDER BY {key} {'ASC' if backwards else 'DESC'} LIMIT CAST(:limit AS integer)"
    if cursor is not None:
        place = f"AND {key} {'>' if backwards else '<'} CAST(:cursor AS {kind}) {place}"
        parameters["cursor"] = cursor
    rows = connection.rows(statement.replace("{place}", place), limit=limit + 1, **parameters)
    more, rows = len(rows) > limit, rows[:limit]
    if backwards:
        rows.reverse()
    older = bool(rows) and (more or backwards)
    newer = bool(rows) and (more if backwards else after is not None)
    return rows, older, newer


def _summary(row: tuple[Any, ...]) -> BatchSummary:
    workflow_id, workflow_class, step_name = row[11:14]
    return BatchSummary(
        batch_id=row[0],
        description=row[1],
        properties=Document(row[2], row[3]),
        total_jobs=row[4],
        completed_jobs=row[5],
        discarded_jobs=row[6],
        dead_lettered_jobs=row[7],
        created_at=row[8],
        finished_at=row[9],
        withdrawn_at=row[10],
        run=BatchRun(workflow_id, workflow_class, step_name) if workflow_id else None,
    )


def _member(row: tuple[Any, ...]) -> Member:
    number, job, queue, status, ended_at = row
    return Member(number, job, queue, MemberStatus(status), ended_at)


def _cursor(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise BadCursor(
            f"{text!r} is no batch's id; a page of batches gives its cursors."
        ) from None


def _not_found(batch_id: str) -> BatchNotFound:
    return BatchNotFound(f"There is no batch {batch_id}.")
