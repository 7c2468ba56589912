"""How much there is where, told as an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.insights import gauges

if TYPE_CHECKING:
    from pgbus.engine.sweep.round import Round


def measure(turn: Round) -> None:
    """Count runs, messages and processes, and emit `Gauges`."""
    services = turn.services
    with services.database.autocommit() as connection:
        measured = gauges.read(connection, services.settings)
    services.events.emit(measured)
