"""The audit trail of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """What happened, by whom and why; `event` may be one that only a newer pgbus knows."""

    event: str
    step_name: str | None
    attempt: int | None
    actor: str
    reason: str | None
    from_status: str | None
    to_status: str
    encoded_details: str | None
    created_at: datetime


#: The newest entries of a run's trail.
_NEWEST = """
SELECT event, step_name, attempt, actor, reason, from_status, to_status, details::text, created_at
  FROM {schema}.workflow_events
 WHERE workflow_id = CAST(:workflow_id AS uuid)
 ORDER BY event_id DESC
 LIMIT CAST(:limit AS integer)
"""


def newest(connection: Connection, workflow_id: str, limit: int) -> list[TrailEntry]:
    """Return the newest entries of the run's trail, at most `limit`, newest first."""
    rows = connection.rows(_NEWEST, workflow_id=workflow_id, limit=limit)
    return [TrailEntry(*row) for row in rows]
