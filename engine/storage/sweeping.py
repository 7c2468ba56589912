"""What the sweep asks: which runs need a repair, found by indexes that hold little else.

Each finding is a snapshot; whoever acts on it looks again under the run's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.engine.storage.claims import ClaimVerdict, Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from pgbus.engine.storage.database import Connection

#: Below and at the end of all ids.
LEAST_ID = "00000000-0000-0000-0000-000000000000"
_GREATEST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

#: The lock goes with the transaction, which sits idle while the task works on other connections.
_TRY_LOCK = """
SELECT pg_try_advisory_xact_lock(hashtext('{schema} sweep'), hashtext(CAST(:task AS text))),
       set_config('idle_in_transaction_session_timeout', '0', true)
"""

_FREE = """
SELECT 1 FROM {schema}.workflows WHERE workflow_id = CAST(:workflow_id AS uuid) FOR UPDATE SKIP LOCKED
"""


class Walked(StrEnum):
    """What a walk goes through: the runs that move, and those that slept until a moment that has passed."""

    MOVING = "moving"
    OVERSLEPT = "overslept"


#: In which order, and which of the runs.
_WALKED = {
    Walked.MOVING: ("w.created_at", "w.lane = 'moving'"),
    Walked.OVERSLEPT: ("w.sleeps_until", "w.sleeps_until < statement_timestamp()"),
}

_SLICE_END = {
    walked: f"""
SELECT {moment}, w.workflow_id::text FROM {{schema}}.workflows w
 WHERE {which}
   AND ({moment}, w.workflow_id) > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid))
 ORDER BY {moment}, w.workflow_id OFFSET CAST(:size AS integer) - 1 LIMIT 1
"""
    for walked, (moment, which) in _WALKED.items()
}

_WITH_NEWEST = """
  FROM {schema}.workflows w JOIN {schema}.workflow_steps s ON s.step_id = w.step_id
"""

_IN_SLICE = {
    walked: f"""
 WHERE {which}
   AND ({moment}, w.workflow_id) > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid))
   AND ({moment}, w.workflow_id) <= (CAST(:until_at AS timestamptz), CAST(:until_id AS uuid))
"""
    for walked, (moment, which) in _WALKED.items()
}

#: Attempts in progress for longer than their steps' timeouts (class#step, seconds), else the threshold.
_OVERRUN = f"""
SELECT s.queue, s.message_id, s.read_count, NULL, w.workflow_id::text, w.workflow_class, w.subject_type, w.subject_id,
       w.arguments::text, s.step_id, s.step_name, s.attempt, s.trace,
       s.worker, s.started_at, coalesce(t.seconds, CAST(:threshold AS double precision))
{_WITH_NEWEST}
  LEFT JOIN unnest(CAST(:steps AS text[]), CAST(:timeouts AS double precision[])) AS t (step, seconds)
    ON t.step = w.workflow_class || '#' || s.step_name
{_IN_SLICE[Walked.MOVING]}
   AND w.status = 'performing' AND s.status = 'in_progress'
   AND s.started_at < statement_timestamp()
       - make_interval(secs => coalesce(t.seconds, CAST(:threshold AS double precision)))
 ORDER BY s.started_at
 LIMIT CAST(:limit AS integer)
"""

#: Attempts that are long due, their messages sent before that: a run is stamped when a verb sends one anew.
_OVERDUE = {
    walked: f"""
SELECT w.workflow_id::text, s.step_id, s.queue, s.message_id
{_WITH_NEWEST}
{in_slice}
   AND w.status = 'ready'
   AND w.updated_at < statement_timestamp() - make_interval(secs => CAST(:threshold AS double precision))
   AND s.status = 'scheduled' AND s.send_at IS NULL
   AND s.scheduled_at < statement_timestamp() - make_interval(secs => CAST(:threshold AS double precision))
 ORDER BY w.workflow_id
"""
    for walked, in_slice in _IN_SLICE.items()
}

#: Those of the messages that are in the queue, and will be delivered within :seconds.
_DELIVERABLE = """
SELECT msg_id FROM pgmq."q_{queue}"
 WHERE msg_id = ANY (CAST(:message_ids AS bigint[]))
   AND vt <= statement_timestamp() + make_interval(secs => CAST(:seconds AS double precision))
"""

#: In order; a run that cannot be repaired is passed over by beginning after it.
_EXPIRED_WAITS = """
SELECT timeout_at, step_id, workflow_id::text FROM {schema}.workflow_steps
 WHERE timeout_at <= statement_timestamp()
   AND timeout_at >= coalesce(CAST(:timeout_at AS timestamptz), '-infinity')
   AND (timeout_at, step_id) > (coalesce(CAST(:timeout_at AS timestamptz), '-infinity'), CAST(:step_id AS bigint))
 ORDER BY timeout_at, step_id
 LIMIT CAST(:limit AS integer)
"""

#: Runs that wait for a signal on one of these steps (class#step). Few of all waits are on a step of such
#: a name: they are looked at first. (By the index of the waits, not by one that has step names in it.)
_WAITING_ON = """
WITH named AS MATERIALIZED (
    SELECT s.workflow_id, s.step_id, s.step_name FROM {schema}.workflow_steps s
     WHERE s.waiting_since IS NOT NULL AND s.batch_id IS NULL
       AND s.step_name || '' = ANY (CAST(:names AS text[])))
SELECT w.workflow_id::text
  FROM named s JOIN {schema}.workflows w ON w.workflow_id = s.workflow_id AND w.step_id = s.step_id
 WHERE w.status = 'waiting'
   AND w.workflow_class || '#' || s.step_name = ANY (CAST(:steps AS text[]))
 LIMIT CAST(:limit AS integer)
"""

_UNFINISHED_BATCHES = """
SELECT b.batch_id::text FROM {schema}.batches b
 WHERE b.finished_at IS NULL
   AND NOT EXISTS (SELECT FROM {schema}.batch_counters c WHERE c.batch_id = b.batch_id AND c.open > 0)
 ORDER BY b.batch_id
 LIMIT CAST(:limit AS integer)
   FOR UPDATE SKIP LOCKED
"""

#: Runs that wait on though their batch has been finished for long.
_UNRESOLVED = """
SELECT w.workflow_id::text
  FROM {schema}.batches b JOIN {schema}.workflows w ON w.workflow_id = b.workflow_id AND w.step_id = b.step_id
 WHERE b.step_id IS NOT NULL AND b.resolved_at IS NULL AND w.status = 'waiting'
   AND b.finished_at < statement_timestamp() - make_interval(secs => CAST(:threshold AS double precision))
 ORDER BY b.finished_at
 LIMIT CAST(:limit AS integer)
"""

#: Runs that wait for a batch whose row is gone. Few attempts wait for a batch, however many runs there
#: are: they are looked at first.
_BATCHLESS = """
WITH batchless AS MATERIALIZED (
    SELECT s.workflow_id, s.step_id FROM {schema}.workflow_steps s
     WHERE s.waiting_since IS NOT NULL AND s.batch_id IS NOT NULL
       AND NOT EXISTS (SELECT FROM {schema}.batches b WHERE b.batch_id = s.batch_id))
SELECT w.workflow_id::text
  FROM batchless s JOIN {schema}.workflows w ON w.workflow_id = s.workflow_id AND w.step_id = s.step_id
 WHERE w.status = 'waiting'
 LIMIT CAST(:limit AS integer)
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run stands in the order of a walk: when it was created, or was to wake."""

    moment: datetime
    workflow_id: str


BEGINNING = Place(datetime.min.replace(tzinfo=UTC), LEAST_ID)
END = Place(datetime.max.replace(tzinfo=UTC), _GREATEST_ID)


@dataclass(frozen=True, slots=True)
class Slice:
    """Those of the walked runs that come after one place, up to and with another."""

    walked: Walked
    after: Place
    until: Place

    def parameters(self) -> dict[str, object]:
        """Return what statements about a slice name."""
        return {
            "after_at": self.after.moment,
            "after_id": self.after.workflow_id,
            "until_at": self.until.moment,
            "until_id": self.until.workflow_id,
        }


@dataclass(frozen=True, slots=True)
class Overrun:
    """An attempt in progress for more than its `timeout` (seconds)."""

    delivery: Delivery
    worker: str
    started_at: datetime
    timeout: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """An attempt long due, and the message that it names (None: it names none)."""

    workflow_id: str
    step_id: int
    queue: str
    message_id: int | None


@dataclass(frozen=True, slots=True)
class ExpiredWait:
    """An attempt that waits beyond its deadline."""

    timeout_at: datetime
    step_id: int
    workflow_id: str


def try_lock(connection: Connection, task: str) -> bool:
    """Take the task for this transaction; False when another process has it."""
    row = connection.row(_TRY_LOCK, task=task)
    return row is not None and bool(row[0])


def is_free(connection: Connection, workflow_id: str) -> bool:
    """Return whether the run's lock is to be had at once."""
    return connection.row(_FREE, workflow_id=workflow_id) is not None


def next_slice(connection: Connection, walked: Walked, after: Place, size: int) -> Slice:
    """Return the next of the runs after a place; the last slice ends with `END`."""
    row = connection.row(
        _SLICE_END[walked], after_at=after.moment, after_id=after.workflow_id, size=size
    )
    return Slice(walked, after, Place(*row) if row else END)


def overruns(
    connection: Connection,
    within: Slice,
    *,
    timeouts: Mapping[str, timedelta],
    threshold: timedelta,
    limit: int,
) -> list[Overrun]:
    """Return attempts of moving runs past their timeout, oldest first; `timeouts` are by class#step."""
    rows = connection.rows(
        _OVERRUN,
        **within.parameters(),
        steps=list(timeouts),
        timeouts=[timeout.total_seconds() for timeout in timeouts.values()],
        threshold=threshold.total_seconds(),
        limit=limit,
    )
    return [Overrun(Delivery(ClaimVerdict.CRASHED, *row[:13]), *row[13:]) for row in rows]


def overdue(connection: Connection, within: Slice, *, threshold: timedelta) -> list[Overdue]:
    """Return attempts that have been due for longer than the threshold and were sent."""
    rows = connection.rows(
        _OVERDUE[within.walked], **within.parameters(), threshold=threshold.total_seconds()
    )
    return [Overdue(*row) for row in rows]


def deliverable(
    connection: Connection, queue: str, message_ids: Sequence[int], *, within: timedelta
) -> set[int]:
    """Return those of the queue's messages that exist and become visible soon enough."""
    rows = connection.rows(
        _DELIVERABLE.replace("{queue}", queue),
        message_ids=list(message_ids),
        seconds=within.total_seconds(),
    )
    return {row[0] for row in rows}


def expired_waits(
    connection: Connection, *, after: ExpiredWait | None, limit: int
) -> list[ExpiredWait]:
    """Return attempts beyond their deadline, oldest deadline first, from one on."""
    rows = connection.rows(
        _EXPIRED_WAITS,
        timeout_at=after.timeout_at if after else None,
        step_id=after.step_id if after else 0,
        limit=limit,
    )
    return [ExpiredWait(*row) for row in rows]


def waiting_on(
    connection: Connection, steps: Sequence[tuple[str, str]], *, limit: int
) -> list[str]:
    """Return the runs that wait for a signal on one of these steps, given as class and step."""
    rows = connection.rows(
        _WAITING_ON,
        names=sorted({step for _, step in steps}),
        steps=[f"{workflow_class}#{step}" for workflow_class, step in steps],
        limit=limit,
    )
    return [row[0] for row in rows]


def unfinished_batches(connection: Connection, *, limit: int) -> list[str]:
    """Return the batches whose members have all ended, but that did not finish and are not locked."""
    return [row[0] for row in connection.rows(_UNFINISHED_BATCHES, limit=limit)]


def unresolved_runs(connection: Connection, *, threshold: timedelta, limit: int) -> list[str]:
    """Return the runs that wait for a batch finished longer than the threshold ago."""
    rows = connection.rows(_UNRESOLVED, threshold=threshold.total_seconds(), limit=limit)
    return [row[0] for row in rows]


def batchless_runs(connection: Connection, *, limit: int) -> list[str]:
    """Return the runs that wait for a batch of which nothing is left."""
    return [row[0] for row in connection.rows(_BATCHLESS, limit=limit)]
