"""The audit trail of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.insights.documents import Slice
from pgbus.engine.storage.database import array_literal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pgbus.engine.storage.database import Connection

#: A trail is read for its times as far back as this many entries.
_TELLING = 5000


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """What happened, by whom and why; `event` may be one that only a newer pgbus knows."""

    event_id: int
    event: str
    step_name: str | None
    attempt: int | None
    actor: str
    reason: str | None
    from_status: str | None
    to_status: str
    encoded_details: str | None
    created_at: datetime


_COLUMNS = """
event_id, event, step_name, attempt, actor, reason, from_status, to_status, details::text, created_at
"""

#: The newest entries of a run's trail, or those before one.
_NEWEST = f"""
SELECT {_COLUMNS}
  FROM {{schema}}.workflow_events
 WHERE workflow_id = CAST(:workflow_id AS uuid)
   AND event_id < coalesce(CAST(:older_than AS bigint), 9223372036854775807)
 ORDER BY event_id DESC
 LIMIT CAST(:limit AS integer)
"""

#: The newest entries of some kinds.
_OF_KINDS = f"""
SELECT {_COLUMNS}
  FROM {{schema}}.workflow_events
 WHERE workflow_id = CAST(:workflow_id AS uuid) AND event = ANY (CAST(:kinds AS text[]))
 ORDER BY event_id DESC
 LIMIT CAST(:limit AS integer)
"""


def newest(
    connection: Connection, workflow_id: str, limit: int, *, older_than: int | None = None
) -> Slice[TrailEntry]:
    """Return the newest entries of the run's trail, or those older than the entry of an id."""
    rows = connection.rows(_NEWEST, workflow_id=workflow_id, limit=limit + 1, older_than=older_than)
    return Slice.cut([TrailEntry(*row) for row in rows], limit)


def of_kinds(connection: Connection, workflow_id: str, kinds: Iterable[str]) -> list[TrailEntry]:
    """Return the entries of these kinds, oldest first; of a very long trail the newest 5,000."""
    rows = connection.rows(
        _OF_KINDS, workflow_id=workflow_id, kinds=array_literal(sorted(kinds)), limit=_TELLING
    )
    return [TrailEntry(*row) for row in reversed(rows)]
