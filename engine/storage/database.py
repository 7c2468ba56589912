"""Connections: the bus's own pool, and a host's transaction joined.

Statements are constants with `:name` parameters and the placeholder `{schema}`;
they run the same on a psycopg connection of our own and on a host's SQLAlchemy
connection, whatever PostgreSQL driver that uses. JSON crosses as text both ways, so
that numbers stay exact, and every parameter is cast in the statement, so that one
statement is prepared once.
"""

from __future__ import annotations

import functools
import logging
import re
import select
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session

from pgbus.engine.errors import WrongDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import PoolProxiedConnection

    from pgbus.engine.settings import Settings

#: Identifies a database across connections: clones differ in name, clusters in start time.
_IDENTITY = """
SELECT current_database()::text, extract(epoch FROM pg_postmaster_start_time())::text
"""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0

#: Connection exceptions, insufficient resources, operator intervention (a shutdown), system errors.
_PASSING_CLASSES = frozenset({"08", "53", "57", "58"})
#: A standby that was a primary, or a server that became read-only.
_READ_ONLY = "25006"
#: A function, with these parameters, that does not exist.
_UNDEFINED_FUNCTION = "42883"
#: A lock not had in time.
LOCK_NOT_AVAILABLE = "55P03"
#: A statement that was given up, at its timeout or by an administrator.
QUERY_CANCELED = "57014"
#: A serialization failure, a deadlock, a lock not had in time.
_UNLUCKY_STATES = frozenset({"40001", "40P01", LOCK_NOT_AVAILABLE})

#: A server that vanished without a word is noticed in half a minute; the URL's own values win.
_NOTICE_SILENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

_log = logging.getLogger("pgbus.storage")

T = TypeVar("T")

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


@functools.cache
def _for_psycopg(statement: str, schema: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", statement.replace("{schema}", f'"{schema}"'))


@functools.cache
def _for_sqlalchemy(statement: str, schema: str) -> sqlalchemy.TextClause:
    return sqlalchemy.text(statement.replace("{schema}", f'"{schema}"'))


class Connection:
    """A connection on which statements run: our own, or a host's with its transaction."""

    __slots__ = ("_driver", "_schema")

    def __init__(
        self, driver: psycopg.Connection[Any] | sqlalchemy.Connection, schema: str
    ) -> None:
        self._driver = driver
        self._schema = schema

    def rows(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        """Run the statement and return all its rows ([] when it returns none)."""
        if isinstance(self._driver, psycopg.Connection):
            cursor = self._driver.execute(_for_psycopg(statement, self._schema), parameters)
            # cursor.description would build an object per column to tell as much.
            return cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []
        result = self._driver.execute(_for_sqlalchemy(statement, self._schema), parameters)
        return [tuple(row) for row in result] if result.returns_rows else []

    def row(self, statement: str, **parameters: object) -> tuple[Any, ...] | None:
        """Return the first row, or None."""
        rows = self.rows(statement, **parameters)
        return rows[0] if rows else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction of our own connection: commit at the end, or roll back on an error."""
        assert isinstance(self._driver, psycopg.Connection)  # noqa: S101 (from autocommit())
        with self._driver.transaction():
            yield

    @contextmanager
    def savepoint(self) -> Iterator[Self]:
        """Set a savepoint in a host's transaction; an error rolls back to it and passes on."""
        assert isinstance(self._driver, sqlalchemy.Connection)  # noqa: S101 (from joined())
        with self._driver.begin_nested():
            yield self


class _Slot:
    """One pooled connection, replaced when it is found dead before it is used."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self.busy = False
        self._engine = engine
        self._pooled: PoolProxiedConnection | None = None

    def driver(self) -> psycopg.Connection[Any]:
        driver = self._pooled.driver_connection if self._pooled else None
        if driver is not None and (driver.closed or _readable(driver.fileno())):
            self.release()
            driver = None
        if driver is None:
            self._pooled = self._engine.raw_connection()
            driver = self._pooled.driver_connection
        assert isinstance(driver, psycopg.Connection)  # noqa: S101 (our own engine's driver)
        return driver

    def lent(self, schema: str) -> Iterator[Connection]:
        """Lend the connection for one use; leave it behind when its server is found read-only."""
        driver = self.driver()
        try:
            yield Connection(driver, schema)
        except psycopg.errors.ReadOnlySqlTransaction:
            driver.close()
            raise

    def release(self) -> None:
        pooled, self._pooled = self._pooled, None
        if pooled is None:
            return
        driver = pooled.driver_connection
        if driver is None or driver.closed or _readable(driver.fileno()):
            pooled.invalidate()
        pooled.close()


class _Outage:
    """Whether PostgreSQL answers this process: each change is said once, whoever notices it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lasts = False
        self.failures = 0

    def failed(self, error: BaseException) -> None:
        """Note that a statement found PostgreSQL gone, or was unlucky."""
        self.failures += 1
        if sqlstate(error) in _UNLUCKY_STATES:
            _log.info("A statement is tried again: %s", error)
        elif self._changes(lasts=True):
            _log.warning("PostgreSQL does not answer (%s); trying on.", error)

    def worked(self) -> None:
        """Note that a statement was answered."""
        if self._lasts and self._changes(lasts=False):
            _log.warning("PostgreSQL answers again.")

    def _changes(self, *, lasts: bool) -> bool:
        with self._lock:
            changes, self._lasts = self._lasts is not lasts, lasts
        return changes


class Database:
    """The database that holds one bus: its own connections, and hosts' checked against it."""

    def __init__(self, settings: Settings) -> None:
        self.schema = settings.schema
        self._outage = _Outage()
        url = sqlalchemy.make_url(settings.database_url)
        self.engine = sqlalchemy.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            pool_size=settings.threads + 4,
            max_overflow=settings.threads + 4,
            pool_use_lifo=True,
            connect_args={
                "application_name": "pgbus",
                "prepare_threshold": 5 if settings.prepared_statements else None,
                **{name: value for name, value in _NOTICE_SILENCE.items() if name not in url.query},
            },
        )
        event.listen(self.engine, "checkout", _refuse_dead_socket)
        self._held = threading.local()
        self._checked: weakref.WeakSet[sqlalchemy.Engine] = weakref.WeakSet()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep one connection for this thread within the block: the pool asks 30 µs each time."""
        self._held.slot = slot = _Slot(self.engine)
        try:
            yield
        finally:
            self._held.slot = None
            slot.release()

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """Lend a connection on which each statement commits by itself."""
        slot: _Slot | None = getattr(self._held, "slot", None)
        if slot is None or slot.busy:
            slot = _Slot(self.engine)
            try:
                yield from slot.lent(self.schema)
            finally:
                slot.release()
            return
        slot.busy = True
        try:
            yield from slot.lent(self.schema)
        finally:
            slot.busy = False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Lend a connection in a transaction that commits at the end, or rolls back on an error."""
        with self.autocommit() as connection, connection.transaction():
            yield connection

    def persistently(
        self, work: Callable[[Connection], T], *, stop: threading.Event | None = None
    ) -> T:
        """Run `work`, which must be safe to run again, until the database answers.

        Wait out a restart, a failover and a deadlock, with a growing pause and one log line
        per change of state of the whole process; any other error passes, and a passing one
        once `stop` is set, which ends the pause.
        """
        stop = stop or threading.Event()  # of nobody: the work cannot be given up
        pause = _FIRST_PAUSE
        while True:
            try:
                with self.autocommit() as connection:
                    result = work(connection)
            except (psycopg.Error, sqlalchemy.exc.DBAPIError, sqlalchemy.exc.TimeoutError) as error:
                if not is_passing(error) or stop.is_set():
                    raise
                self._outage.failed(error)
                stop.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                self._outage.worked()
                return result

    @property
    def failures(self) -> int:
        """How many statements of this process found PostgreSQL gone so far."""
        return self._outage.failures

    def failed(self, error: BaseException) -> None:
        """Note a passing error that the caller does not wait out."""
        self._outage.failed(error)

    def joined(self, session: Any) -> Connection:
        """Return the connection of a host's session, in its transaction.

        `session` is a SQLAlchemy Session, scoped_session or Connection. One that is bound
        to another database raises `WrongDatabase`, before anything is written.
        """
        given = session_behind(session)
        if isinstance(given, Session):
            host = given.connection()
        elif isinstance(given, sqlalchemy.Connection):
            host = given
        else:
            raise WrongDatabase(
                f"session= is a {type(given).__qualname__}; give a SQLAlchemy Session, "
                "scoped_session or Connection (of an asynchronous one: inside its run_sync())."
            )
        if getattr(host.connection.driver_connection, "autocommit", False):
            raise WrongDatabase(
                "session= is in AUTOCOMMIT: nothing would be undone when you roll back. Give one that "
                "has a transaction, or leave session= out."
            )
        joined = Connection(host, self.schema)
        if host.engine not in self._checked:
            self._check(joined, host)
            self._checked.add(host.engine)
        return joined

    def _check(self, joined: Connection, host: sqlalchemy.Connection) -> None:
        where = host.engine.url.render_as_string(hide_password=True)
        mine = self.engine.url.render_as_string(hide_password=True)
        if host.dialect.name == "postgresql":
            with self.autocommit() as own:
                if joined.row(_IDENTITY) == own.row(_IDENTITY):
                    return
        raise WrongDatabase(
            f"session= is bound to {where}, but this bus's tables are in {mine} (schema "
            f"{self.schema}). Give a session of that database, or leave session= out: the run is "
            "then started in a transaction of its own."
        )

    def close(self) -> None:
        """Close the pool's connections."""
        self.engine.dispose()


def array_literal(names: Iterable[str]) -> str:
    """Return a text[] as PostgreSQL writes it: made once, it costs nothing on each statement."""
    quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
    return "{" + ",".join(f'"{name}"' for name in quoted) + "}"


def session_behind(session: Any) -> Any:
    """Return the session that a scoped_session holds here; anything else as it is."""
    return session.registry() if isinstance(session, scoped_session) else session


def is_passing(error: BaseException) -> bool:
    """Return whether the same statement may succeed later.

    It may when the connection is gone, or a lock was unlucky.
    """
    state = sqlstate(error)
    if state is None:
        # SQLAlchemy knows the losses of any driver.
        lost = getattr(error, "connection_invalidated", False)
        busy = isinstance(error, sqlalchemy.exc.TimeoutError)  # the pool had no connection left
        return lost or busy or isinstance(cause_of(error), psycopg.OperationalError)
    return state[:2] in _PASSING_CLASSES or state in _UNLUCKY_STATES or state == _READ_ONLY


def misses_a_function(error: BaseException) -> bool:
    """Return whether a statement calls what does not exist: a migration may have replaced it."""
    return sqlstate(error) == _UNDEFINED_FUNCTION


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's error inside one of SQLAlchemy's; any other is its own."""
    return getattr(error, "orig", None) or error


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE that PostgreSQL gave, whatever the driver; None for an error without."""
    cause = cause_of(error)
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def _refuse_dead_socket(driver: psycopg.Connection[Any], _record: object, _proxy: object) -> None:
    """Let the pool replace a connection that the server closed while it was idle.

    Nothing is due to arrive on an idle connection, so a readable socket means the
    server said goodbye (a restart, a failover, a terminated backend). Found before use,
    the statement can safely go to a fresh connection; lost in flight it could not.
    """
    if driver.closed or _readable(driver.fileno()):
        raise sqlalchemy.exc.DisconnectionError


def _readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
