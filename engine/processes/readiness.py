"""What every process waits for before it begins: a database that answers, and is migrated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from pgbus.engine.bus import Pgbus


def wait_until_ready(bus: Pgbus, *, stop: threading.Event, queues: Iterable[str] = ()) -> bool:
    """Return True once the database answers and the queues exist, False when `stop` was set before.

    Raise `SchemaOutdated` when it answers and is not migrated.
    """

    def make_ready(_connection: object) -> None:
        bus.check_schema()
        bus.ensure_queues(queues)

    try:
        bus.services.database.persistently(make_ready, stop=stop)
    except Exception as error:
        if stop.is_set() and is_passing(error):
            return False
        raise
    return True
