"""The database that tests run on: from the wheel, or the host's own; and its emptying."""

from __future__ import annotations

import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy

from pgbus.engine.errors import InvalidSetting, PgbusError
from pgbus.engine.storage import messages
from pgbus.engine.storage.database import LOCK_NOT_AVAILABLE, sqlstate
from pgbus.engine.storage.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.bus import Pgbus
    from pgbus.engine.storage.database import Connection, Database

#: Not a run's, but the code's and the processes'.
_KEPT = {"workflow_definitions", "app_revisions", "processes"}

_PATIENCE = "SET LOCAL lock_timeout = '5s'"

#: For a server whose data nobody misses.
_UNSAFE_BUT_FAST = ("fsync", "synchronous_commit", "full_page_writes")

_IDENTITY = sqlalchemy.text("SELECT current_database(), pg_postmaster_start_time()")


@contextmanager
def embedded() -> Iterator[str]:
    """Lend the URL of an empty database on a server that is made for it and removed with its data.

    Raise `PgbusError` when the extra that it comes with is not installed.
    """
    from pgbus.engine.embedded import EmbeddedPostgres  # noqa: PLC0415 (an extra)

    # Not in pytest's folder, which only its user may enter: for root the server runs as another.
    home = Path(tempfile.mkdtemp(prefix="pgbus-test-"))
    try:
        server = EmbeddedPostgres(home / "data", database="pgbus_test")
        try:
            url = _with_psycopg(server.start())
            _make_fast(url)
            yield url.render_as_string(hide_password=False)
        finally:
            server.stop()
    finally:
        shutil.rmtree(home)


def hosts_own(url: str, *, worker: str | None) -> str:
    """Return the URL of the database to use, given PGBUS_TEST_DATABASE_URL and pytest-xdist's worker.

    Each worker has one of its own beside the named one, made when it is missing. Raise
    `InvalidSetting` when the database is not named like one for tests: it is going to be emptied.
    """
    given = _with_psycopg(url)
    if not re.search(r"(?:^|[^a-z])test", given.database or "", re.IGNORECASE):
        raise InvalidSetting(
            "PGBUS_TEST_DATABASE_URL",
            f"names the database {given.database!r}, whose pgbus tables would be emptied before each "
            "test. Make one for tests, with a word in its name that begins with test (shop_test).",
        )
    if worker is not None:
        given = _beside(given, f"{given.database}_{worker}")
    return given.render_as_string(hide_password=False)


def check_same(bus: Pgbus, url: str) -> None:
    """Raise `PgbusError` unless the bus is on the database of the URL: its tables are to be emptied."""
    engine = _engine(sqlalchemy.make_url(url))
    with bus.services.database.engine.connect() as mine, engine.connect() as expected:
        same = mine.execute(_IDENTITY).one() == expected.execute(_IDENTITY).one()
    engine.dispose()
    if not same:
        raise PgbusError(
            f"The fixture pgbus_application_bus returns {bus!r}, which is not on the database for "
            "tests: make it with database_url=pgbus_database_url. Nothing was emptied."
        )


def empty(database: Database) -> None:
    """Delete all runs, batches and failed jobs, and the queues' messages with their archives."""
    try:
        with database.transaction() as connection:
            connection.rows(_PATIENCE)
            _delete_all(connection)
    except Exception as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise PgbusError(
            "The pgbus tables cannot be emptied for the next test: a transaction that was left open, "
            "or a worker, holds rows of them. Close what the tests before this one opened."
        ) from error


def _delete_all(connection: Connection) -> None:
    for table in metadata("pgbus").sorted_tables:
        if table.name not in _KEPT:
            connection.rows(f"DELETE FROM {{schema}}.{table.name}")
    for queue in messages.queues(connection):
        connection.rows(f'DELETE FROM pgmq."q_{queue}"')
        connection.rows(f'DELETE FROM pgmq."a_{queue}"')


def _with_psycopg(url: str) -> sqlalchemy.URL:
    """Return the URL as SQLAlchemy opens it with the driver that comes with pgbus."""
    return sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")


def _engine(url: sqlalchemy.URL) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")


def _beside(url: sqlalchemy.URL, database: str) -> sqlalchemy.URL:
    engine = _engine(url)
    with engine.connect() as connection:
        known = sqlalchemy.text("SELECT 1 FROM pg_database WHERE datname = :name")
        if connection.scalar(known, {"name": database}) is None:
            name = connection.dialect.identifier_preparer.quote(database)
            connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.set(database=database)


def _make_fast(url: sqlalchemy.URL) -> None:
    engine = _engine(url)
    with engine.connect() as connection:
        for setting in _UNSAFE_BUT_FAST:
            connection.execute(sqlalchemy.text(f"ALTER SYSTEM SET {setting} = off"))
        connection.execute(sqlalchemy.text("SELECT pg_reload_conf()"))
    engine.dispose()
