"""The rows of the processes that serve a bus, and their heartbeats."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgbus.engine.storage.database import Connection

#: How long without a heartbeat until a process counts as dead.
STALE_AFTER = timedelta(seconds=30)

#: Keeps since when workers run an app revision. One that is known costs a look at the index, and no write.
SEE_REVISION = """
INSERT INTO {schema}.app_revisions (revision, first_seen_at)
SELECT CAST(:process_revision AS text), clock_timestamp()
 WHERE CAST(:kind AS text) = 'worker' AND CAST(:process_revision AS text) IS NOT NULL
ON CONFLICT (revision) DO NOTHING
"""

#: Registers at the first beat, and again after having been reaped while alive.
BEAT = """
INSERT INTO {schema}.processes (process_id, kind, host, pid, revision, details, started_at, heartbeat_at)
VALUES (CAST(:process_id AS uuid), CAST(:kind AS text), CAST(:host AS text), CAST(:pid AS integer),
        CAST(:process_revision AS text), CAST(:process_details AS jsonb), clock_timestamp(), clock_timestamp())
ON CONFLICT (process_id) DO UPDATE SET details = excluded.details, heartbeat_at = excluded.heartbeat_at
"""

_SEE_AND_BEAT = f"WITH seen AS ({SEE_REVISION}) {BEAT}"

_LEAVE = "DELETE FROM {schema}.processes WHERE process_id = CAST(:process_id AS uuid)"

_REAP = """
DELETE FROM {schema}.processes
 WHERE heartbeat_at < clock_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
RETURNING kind || ' ' || host || ':' || pid
"""


def beat(connection: Connection, **process: object) -> None:
    """Say that the process is alive, and what it does."""
    connection.rows(_SEE_AND_BEAT, **process)


def leave(connection: Connection, process_id: str) -> None:
    """Remove the row of a process that ends in order."""
    connection.rows(_LEAVE, process_id=process_id)


def reap(connection: Connection) -> list[str]:
    """Remove the rows of processes that have stopped beating; return who they were."""
    return [row[0] for row in connection.rows(_REAP, seconds=STALE_AFTER.total_seconds())]
