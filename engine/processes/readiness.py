"""What every process waits for before it begins: a database that answers, and is migrated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pgbus.engine.bus import Pgbus


def wait_until_ready(
    bus: Pgbus, *, give_up: Callable[[], bool], queues: Iterable[str] = ()
) -> bool:
    """True once the database answers and the queues exist; False when told to give up before.

    Raises `SchemaOutdated` when it answers and is not migrated.
    """

    def make_ready(_connection: object) -> None:
        bus.check_schema()
        bus.ensure_queues(queues)

    try:
        bus.services.database.persistently(make_ready, give_up=give_up)
    except Exception as error:
        if give_up() and is_passing(error):
            return False
        raise
    return True
