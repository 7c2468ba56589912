"""How many runs are where, told as an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.insights import counts, stuck
from pgbus.engine.observe import emission

if TYPE_CHECKING:
    from pgbus.engine.sweep.round import Round


def measure(turn: Round) -> None:
    """Count the ongoing runs and emit `WorkflowsCounted`."""
    with turn.services.database.autocommit() as connection:
        classes = counts.known_classes(connection)
        counted = emission.WorkflowsCounted(
            counts.by_status(connection, classes),
            stuck.by_reason(connection, turn.services.settings, classes),
        )
    emission.emit(counted)
