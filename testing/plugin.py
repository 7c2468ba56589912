"""Fixtures for an application's own suite: a database per process, an empty pgbus per test.

pgbus_database_url       provided: where the application's tables and those of pgbus go
pgbus_application_bus    yours to define: the application's Pgbus on that database
pgbus_bus                provided: that Pgbus, migrated, with nothing in it

Nothing is started or emptied for a suite that does not ask for them.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.bus import Pgbus


@pytest.fixture(scope="session")
def pgbus_database_url() -> Iterator[str]:
    """Return the URL of a database on a PostgreSQL from the wheel, made for this process.

    `PGBUS_TEST_DATABASE_URL` names a database to use instead. **Its pgbus tables are emptied.**
    """
    from pgbus.testing import databases  # noqa: PLC0415 (costs suites that do not use it nothing)

    if url := os.environ.get("PGBUS_TEST_DATABASE_URL"):
        yield databases.hosts_own(url, worker=os.environ.get("PYTEST_XDIST_WORKER"))
        return
    _require_wheel()
    with databases.embedded() as made:
        yield made


@pytest.fixture(scope="session")
def pgbus_application_bus() -> Pgbus:
    """Return your application's Pgbus on `pgbus_database_url`: define it in your conftest.py."""
    pytest.fail(
        "There is no fixture pgbus_application_bus. Define it in conftest.py, with scope='session': "
        "it takes pgbus_database_url and returns your application's Pgbus on that database.",
        pytrace=False,
    )


@pytest.fixture(scope="session")
def _pgbus_migrated(pgbus_application_bus: Pgbus, pgbus_database_url: str) -> Iterator[Pgbus]:
    from pgbus.testing import databases  # noqa: PLC0415 (as above)

    bus = pgbus_application_bus
    databases.check_same(bus, pgbus_database_url)
    bus.migrate()
    yield bus
    bus.close()


@pytest.fixture
def pgbus_bus(_pgbus_migrated: Pgbus) -> Iterator[Pgbus]:
    """Return your application's Pgbus, without any runs, batches and messages; active in the test.

    It is emptied before the test. The application's own tables are left to the application.
    """
    from pgbus.testing import databases  # noqa: PLC0415 (as above)

    bus = _pgbus_migrated
    databases.empty(bus.services.database)
    with bus.active():
        yield bus


def _require_wheel() -> None:
    """Skip the test without PostgreSQL to run on, with a warning; in CI fail it."""
    from pgbus.engine.errors import PgbusError  # noqa: PLC0415 (as above)

    try:
        from pgbus.engine import embedded  # noqa: F401, PLC0415 (whether it can be)
    except PgbusError as missing:
        problem = f"{missing}, or name a server's database in PGBUS_TEST_DATABASE_URL"
        if os.environ.get("CI"):
            pytest.fail(problem, pytrace=False)
        warnings.warn(pytest.PytestWarning(problem), stacklevel=2)
        pytest.skip(problem)
