"""The PostgreSQL every figure is measured on: the one of the wheel, as it comes, durable."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import make_url

from pgbus.engine.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
)


def scalar(connection: psycopg.Connection, statement: str, *parameters: object) -> Any:
    """Return the first column of the one row that the statement gives."""
    row = connection.execute(statement, parameters).fetchone()
    if row is None:
        raise LookupError(f"no row from {statement.strip()}")
    return row[0]


class Server:
    """A running server; every contender gets a fresh database of it."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._databases = 0

    def admin(self) -> psycopg.Connection:
        """Return an autocommit connection that no contender's statistics count."""
        url = self._url.render_as_string(hide_password=False)
        return psycopg.connect(url, autocommit=True)

    def fresh_database(self) -> str:
        """Return the URL of a new, empty database, after a checkpoint."""
        self._databases += 1
        name = f"bench_{self._databases}"
        with self.admin() as connection:
            connection.execute(f"CREATE DATABASE {name}")
            connection.execute("CHECKPOINT")
        return self._url.set(database=name).render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        """Drop the database, so that its autovacuum does not run beside the next contender."""
        name = make_url(url).database
        with self.admin() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def description(self) -> str:
        """Say which server this is and what one small durable commit costs on it."""
        with self.admin() as connection:
            settings = " ".join(
                f"{name}={scalar(connection, 'SELECT current_setting(%s)', name)}"
                for name in SETTINGS
            )
        return f"{settings} cpus={os.cpu_count()} commit={self._commit_ms():.2f}ms"

    def _commit_ms(self) -> float:
        costs = []
        with self.admin() as connection:
            connection.execute("CREATE TABLE bench_commit (n int)")
            for n in range(200):
                began = time.perf_counter()
                connection.execute("INSERT INTO bench_commit VALUES (%s)", [n])
                costs.append(time.perf_counter() - began)
            connection.execute("DROP TABLE bench_commit")
        return statistics.median(costs) * 1000


@contextmanager
def server() -> Iterator[Server]:
    """Start a server in a temporary folder and remove both at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pgbus-bench-"))
    postgres = EmbeddedPostgres(folder / "data", database="postgres")
    try:
        yield Server(postgres.start())
    finally:
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)
