"""One database of a test server, with what tests need to look into it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import count
from os import getpid
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import sqlalchemy
from psycopg import sql
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.server import Server

_numbers = count(1)
_session = f"{getpid()}_{uuid4().hex[:6]}"


class Database:
    """A database made for one test: `url`, quick statements, and an engine that is disposed."""

    def __init__(self, server: Server, *, template: str = "template0") -> None:
        self.server = server
        self.name = f"pgbus_test_{_session}_{next(_numbers)}"
        self.url = server.url(self.name)
        self._administer("CREATE DATABASE {} TEMPLATE {}", self.name, template)

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a statement that runs and commits on a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: object) -> Any:
        """The one value of a statement's one row."""
        ((value,),) = self.rows(statement, *parameters)
        return value

    @contextmanager
    def connection(self, **options: Any) -> Iterator[psycopg.Connection[Any]]:
        """A psycopg connection that is closed at the end; its transaction is rolled back."""
        connection = psycopg.connect(self.url, **options)
        try:
            yield connection
        finally:
            # A server notices a close some moments later, and keeps the locks until then.
            with suppress(psycopg.Error):
                connection.rollback()
            connection.close()

    @cached_property
    def engine(self) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(self.sqlalchemy_url("psycopg"))

    def sqlalchemy_url(self, driver: str) -> sqlalchemy.URL:
        """The URL for `psycopg` or `psycopg2`, whatever SQLAlchemy's default is."""
        return sqlalchemy.make_url(self.url).set(drivername=f"postgresql+{driver}")

    def clients(self) -> list[str]:
        """Who is connected: application, state and latest statement of each."""
        with psycopg.connect(self.server.admin_url) as connection:
            rows = connection.execute(
                "SELECT format('%%s (%%s): %%s', application_name, state, query)"
                " FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'",
                [self.name],
            )
            return [client for (client,) in rows]

    def close(self) -> list[str]:
        """Drop the database; returns the clients that had not left it."""
        if "engine" in self.__dict__:
            self.engine.dispose()
        # A backend outlives its client's close() by a moment.
        with suppress(AssertionError):
            eventually(lambda: not self.clients(), within=2)
        left = self.clients()
        self._administer("DROP DATABASE {} WITH (FORCE)", self.name)
        return left

    def _administer(self, statement: str, *names: str) -> None:
        with psycopg.connect(self.server.admin_url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
