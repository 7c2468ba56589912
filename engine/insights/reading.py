"""One look at the database: all that a page asks is of one moment."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from pgbus.engine.errors import DatabaseAway, ReadTimeout
from pgbus.engine.storage.database import QUERY_CANCELED, cause_of, is_passing, sqlstate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.database import Connection

_PATIENCE = timedelta(seconds=15)

_ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

#: Plans are made for the filters at hand, and compiling one would take longer than to run it.
_LIMITS = """
SELECT set_config('statement_timeout', CAST(:milliseconds AS text), true),
       set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true)
"""


@contextmanager
def reading(services: Services) -> Iterator[Connection]:
    """Lend a connection that sees the database as of its first question, and cannot write.

    Raise `DatabaseAway` when PostgreSQL cannot be reached, and `ReadTimeout` when it takes longer than
    15 seconds over one question.
    """
    with answered(), services.database.transaction() as connection:
        connection.rows(_ONE_SNAPSHOT)
        connection.rows(_LIMITS, milliseconds=str(_PATIENCE // timedelta(milliseconds=1)))
        yield connection


@contextmanager
def answered() -> Iterator[None]:
    """Turn a statement's error that may pass into `DatabaseAway`, one that was given up into `ReadTimeout`."""
    try:
        yield
    except Exception as error:
        if sqlstate(error) == QUERY_CANCELED:
            raise ReadTimeout(
                f"PostgreSQL took more than {_PATIENCE.total_seconds():g} seconds over one question; "
                "ask for fewer runs: a class, a shorter time, a status."
            ) from error
        if is_passing(error):
            raise DatabaseAway(f"PostgreSQL does not answer: {cause_of(error)}") from error
        raise


def now(connection: Connection) -> datetime:
    """Return the moment that the connection's transaction sees the database at."""
    ((moment,),) = connection.rows("SELECT transaction_timestamp()")
    seen: datetime = moment
    return seen
