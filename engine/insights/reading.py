"""One look at the database: all that a page asks is of one moment."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import DatabaseAway, ReadTimeout
from pgbus.engine.storage.database import (
    QUERY_CANCELED,
    Connection,
    cause_of,
    is_passing,
    sqlstate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pgbus.engine.runner.services import Services

#: Seconds for all questions of one look together.
_PATIENCE = 15.0

#: PostgreSQL is told how many are left when so many have passed since it was: a quick page asks once.
_GRAIN = 0.5

_ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

#: Plans are made for the filters at hand, and compiling one would take longer than to run it.
_PLANNING = "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true)"

_LEFT = "SELECT set_config('statement_timeout', CAST(:milliseconds AS text), true)"


class _Patient(Connection):
    """A connection whose statements share one deadline, in seconds from now."""

    __slots__ = ("_deadline", "_told_at")

    def __init__(self, connection: Connection, seconds: float) -> None:
        super().__init__(connection._driver, connection._schema)  # noqa: SLF001 (its own class's)
        self._deadline = time.monotonic() + seconds
        self._told_at = float("-inf")

    def rows(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        """Run the statement in the time that is left; raise `ReadTimeout` when none is."""
        now = time.monotonic()
        if now >= self._deadline:
            raise _timeout()
        if now >= self._told_at + _GRAIN:
            left = max(int((self._deadline - now) * 1000), 1)  # 0 would be no limit
            super().rows(_LEFT, milliseconds=str(left))
            self._told_at = now
        return super().rows(statement, **parameters)


@contextmanager
def reading(services: Services) -> Iterator[Connection]:
    """Lend a connection that sees the database as of its first question, and cannot write.

    Raise `DatabaseAway` when PostgreSQL cannot be reached, and `ReadTimeout` when it takes longer than
    15 seconds over all questions together.
    """
    with answered(), services.database.transaction() as connection:
        connection.rows(_ONE_SNAPSHOT)
        connection.rows(_PLANNING)
        yield _Patient(connection, _PATIENCE)


@contextmanager
def answered() -> Iterator[None]:
    """Turn a statement's error that may pass into `DatabaseAway`, one that was given up into `ReadTimeout`."""
    try:
        yield
    except Exception as error:
        if sqlstate(error) == QUERY_CANCELED:
            raise _timeout() from error
        if is_passing(error):
            raise DatabaseAway(f"PostgreSQL does not answer: {cause_of(error)}") from error
        raise


def now(connection: Connection) -> datetime:
    """Return the moment that the connection's transaction sees the database at."""
    ((moment,),) = connection.rows("SELECT transaction_timestamp()")
    seen: datetime = moment
    return seen


def _timeout() -> ReadTimeout:
    return ReadTimeout(
        f"PostgreSQL took more than {_PATIENCE:g} seconds to answer; "
        "ask for fewer runs: a class, a shorter time, a status."
    )
