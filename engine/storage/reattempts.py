"""How often in a row a step was reattempted: what the limits of policies and stalls count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow

#: The body's own reattempts neither count nor break the row; any attempt that was not reattempted
#: breaks it.
_COUNT = """
SELECT count(*) FILTER (WHERE reattempted_by = 'policy'), count(*) FILTER (WHERE reattempted_by = 'stall')
  FROM {schema}.workflow_steps
 WHERE workflow_id = CAST(:id AS uuid) AND step_name = :step_name AND attempt < CAST(:attempt AS integer)
   AND attempt > coalesce((SELECT max(attempt) FROM {schema}.workflow_steps
                            WHERE workflow_id = CAST(:id AS uuid) AND step_name = :step_name
                              AND attempt < CAST(:attempt AS integer) AND reattempted_by IS NULL), 0)
"""

#: Breaks the row at the newest attempt that has ended: this one, or the one before.
_RESTART = """
UPDATE {schema}.workflow_steps SET reattempted_by = NULL
 WHERE workflow_id = CAST(:id AS uuid) AND step_name = :step_name
   AND attempt BETWEEN CAST(:attempt AS integer) - 1 AND CAST(:attempt AS integer)
   AND reattempted_by IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Reattempts:
    """How many attempts in a row, just before one, were reattempted; by whom."""

    by_policies: int
    by_stalls: int


def count(connection: Connection, workflow_id: str, step_name: str, attempt: int) -> Reattempts:
    """Count the reattempts in a row just before this attempt."""
    row = connection.row(_COUNT, id=workflow_id, step_name=step_name, attempt=attempt)
    return Reattempts(*row) if row else Reattempts(0, 0)


def restart(connection: Connection, newest: AttemptRow) -> None:
    """Let the count start again after a locked run's newest attempt."""
    connection.rows(
        _RESTART, id=newest.workflow_id, step_name=newest.step_name, attempt=newest.attempt
    )
