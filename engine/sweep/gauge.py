"""How many runs are where, told as an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.insights import counts
from pgbus.engine.observe import emission

if TYPE_CHECKING:
    from pgbus.engine.sweep.round import Round


def measure(turn: Round) -> None:
    """Count the ongoing runs and emit `WorkflowsCounted`."""
    settings = turn.services.settings
    with turn.services.database.autocommit() as connection:
        classes = counts.known_classes(connection)
        counted = emission.WorkflowsCounted(
            counts.by_status(connection, classes),
            counts.stuck(
                connection,
                classes,
                overdue_after=settings.workflow_stall_threshold,
                waiting_overdue_after=settings.workflow_waiting_visibility_threshold,
            ),
        )
    emission.emit(counted)
