"""How much there is just now, of runs, messages and processes: what metrics tell and scrapers ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.insights import counts, processes, queues, reading, stuck
from pgbus.engine.observe.emission import Gauges

if TYPE_CHECKING:
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection


def read(connection: Connection, settings: Settings) -> Gauges:
    """Return all gauges, of queues by their logical names."""
    classes = counts.known_classes(connection)
    now = reading.now(connection)
    depths = queues.depths(connection, settings)
    depth = {one.logical: 0 for one in depths}
    oldest = {one.logical: 0.0 for one in depths}
    for one in depths:
        depth[one.logical] = min(depth[one.logical] + one.visible, queues.CAP + 1)
        if one.due_since is not None:
            age = (now - one.due_since).total_seconds()
            oldest[one.logical] = max(oldest[one.logical], age)
    dead = {one.logical: one.messages for one in queues.dead_letters(connection, settings)}
    return Gauges(
        by_status=counts.by_status(connection, classes),
        stuck=stuck.by_reason(connection, settings, classes),
        queue_depth=depth,
        queue_oldest_seconds=oldest,
        dead_letters=dict.fromkeys(depth, 0) | dead,
        processes=processes.alive(connection),
    )
