"""What is deleted after its time: ended runs, finished batches, archived messages; a batch of each at once.

Children go first, while their parent's row is locked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from pgbus.engine.storage.database import Connection

#: Ids order by creation, so none of a run younger than the retention is looked at. No index tells
#: which of the older ones have ended.
_OLD_RUNS = """
SELECT w.workflow_id::text,
       w.ended_at IS NOT NULL
       AND w.updated_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
  FROM {schema}.workflows w
 WHERE w.workflow_id > CAST(:after AS uuid)
   AND w.workflow_id < CAST(lpad(to_hex(CAST(extract(epoch FROM statement_timestamp()
           - make_interval(secs => CAST(:seconds AS double precision))) * 1000 AS bigint)), 12, '0')
       || repeat('0', 20) AS uuid)
 ORDER BY w.workflow_id
 LIMIT CAST(:limit AS integer)
"""

_LOCK_ENDED_RUNS = """
SELECT workflow_id::text FROM {schema}.workflows
 WHERE workflow_id = ANY (CAST(:ids AS uuid[])) AND ended_at IS NOT NULL
   FOR UPDATE SKIP LOCKED
"""

#: With their children first.
_DELETE_RUNS = tuple(
    f"DELETE FROM {{schema}}.{table} WHERE workflow_id = ANY (CAST(:ids AS uuid[]))"
    for table in ("workflow_signals", "workflow_events", "workflow_steps", "workflows")
)

#: An attempt that waits, its run paused or not, needs its batch however old that is.
_LOCK_OLD_BATCHES = """
SELECT batch_id::text FROM {schema}.batches b
 WHERE finished_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
   AND NOT EXISTS (SELECT FROM {schema}.workflow_steps s
                    WHERE s.batch_id = b.batch_id AND s.waiting_since IS NOT NULL)
 ORDER BY finished_at
 LIMIT CAST(:limit AS integer)
   FOR UPDATE SKIP LOCKED
"""

_DELETE_BATCHES = tuple(
    f"DELETE FROM {{schema}}.{table} WHERE batch_id = ANY (CAST(:ids AS uuid[]))"
    for table in ("batch_jobs", "batch_counters", "batches")
)

_DELETE_ARCHIVED = """
WITH deleted AS (
    DELETE FROM pgmq."a_{queue}" WHERE msg_id = ANY (ARRAY(
        SELECT msg_id FROM pgmq."a_{queue}"
         WHERE archived_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
         ORDER BY archived_at LIMIT CAST(:limit AS integer)))
    RETURNING 1)
SELECT count(*) FROM deleted
"""


def old_runs(
    connection: Connection, *, after: str, age: timedelta, limit: int
) -> list[tuple[str, bool]]:
    """Return runs created longer ago than `age`, in order, with whether they ended as long ago."""
    rows = connection.rows(_OLD_RUNS, after=after, seconds=age.total_seconds(), limit=limit)
    return [(row[0], row[1]) for row in rows]


def delete_runs(connection: Connection, workflow_ids: Sequence[str]) -> int:
    """Delete these ended runs with all that belongs to them; return how many were not locked."""
    locked = connection.rows(_LOCK_ENDED_RUNS, ids=list(workflow_ids))
    return _delete(connection, _DELETE_RUNS, locked)


def delete_batches(connection: Connection, *, age: timedelta, limit: int) -> int:
    """Delete batches that finished longer ago than `age` and that nothing waits for."""
    locked = connection.rows(_LOCK_OLD_BATCHES, seconds=age.total_seconds(), limit=limit)
    return _delete(connection, _DELETE_BATCHES, locked)


def _delete(
    connection: Connection, statements: Sequence[str], locked: list[tuple[str, ...]]
) -> int:
    ids = [row[0] for row in locked]
    for statement in statements if ids else ():
        connection.rows(statement, ids=ids)
    return len(ids)


def delete_archived(connection: Connection, *, queue: str, age: timedelta, limit: int) -> int:
    """Delete a queue's messages that were archived longer ago than `age`."""
    statement = _DELETE_ARCHIVED.replace("{queue}", queue)
    row = connection.row(statement, seconds=age.total_seconds(), limit=limit)
    return int(row[0]) if row else 0
