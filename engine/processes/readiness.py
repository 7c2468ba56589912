"""What every process needs: a database that answers, and is migrated to this code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy

from pgbus.engine.errors import SchemaOutdated
from pgbus.engine.storage.database import is_passing, misses_a_function

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


def outdated_by(bus: Pgbus, error: BaseException) -> SchemaOutdated | None:
    """Return why a statement failed that called a function: another pgbus has migrated the database.

    None: it failed for another reason, or the database does not say just now.
    """
    if not misses_a_function(error):
        return None
    try:
        bus.check_schema(anew=True)
    except SchemaOutdated as outdated:
        return outdated
    except sqlalchemy.exc.SQLAlchemyError:
        return None
    return None
