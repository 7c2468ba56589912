"""One server per test process, a migrated template in it, a clone of that per test.

`PGBUS_TEST_DATABASE_URL` names a server to use instead (its role needs CREATEDB);
`--postgres=path` (or `PGBUS_TEST_POSTGRES`) takes the PostgreSQL that is installed.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import pytest
from support.database import Database
from support.server import UNSAFE_BUT_FAST, Cluster, NoServerError, Server
from support.waiting import eventually


def pytest_addoption(parser):
    parser.addoption(
        "--postgres",
        choices=("embedded", "path"),
        default=os.environ.get("PGBUS_TEST_POSTGRES", "embedded"),
        help="the PostgreSQL to test on: the embedded one, or the one whose programs are installed",
    )


@pytest.fixture(scope="session")
def make_cluster(request):
    """Makes a new, stopped cluster of the kind that the suite runs on."""

    def make(settings=()):
        try:
            return Cluster(request.config.getoption("postgres"), settings=settings)
        except NoServerError as problem:
            pytest.skip(f"No PostgreSQL here: {problem}")

    return make


@pytest.fixture(scope="session")
def server(make_cluster):
    """The server of this test process, without durability."""
    if url := os.environ.get("PGBUS_TEST_DATABASE_URL"):
        yield Server(url)
        return
    cluster = make_cluster(UNSAFE_BUT_FAST)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture
def crashable_server(make_cluster):
    """A running server of the test's own, with durability: to stop, start and kill."""
    cluster = make_cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="session")
def template(server):
    """The name of a migrated database that nobody is connected to."""
    from pgbus.engine.storage.migrate import migrate

    database = Database(server)
    migrate(database.engine, "pgbus")
    database.engine.dispose()
    eventually(lambda: not database.clients())
    yield database.name
    database.close()


@pytest.fixture
def database(server, template):
    """A migrated database of the test's own; connections left open in it fail the test."""
    database = Database(server, template=template)
    yield database
    _expect_closed(database)


@pytest.fixture
def bus_options():
    """What else the bus is made with; a module overrides it."""
    return {}


@pytest.fixture
def bus(database, bus_options):
    """A bus on the test's database."""
    from pgbus import Pgbus

    bus = Pgbus(database_url=database.url, **bus_options)
    yield bus
    bus.close()


@pytest.fixture
def driver(bus):
    """A worker in the test's own hands."""
    from support.driving import Driver

    return Driver(bus)


@pytest.fixture
def empty_database(server):
    """A database of the test's own that was never migrated."""
    database = Database(server)
    yield database
    _expect_closed(database)


def _expect_closed(database):
    if left := database.close():
        pytest.fail("Connections left open:\n" + "\n".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def no_threads_left():
    """Fails a test that leaves threads running which would keep its process from ending."""
    before = set(threading.enumerate())
    yield

    def left():
        return [
            thread.name
            for thread in threading.enumerate()
            if thread not in before and not thread.daemon
        ]

    with suppress(AssertionError):
        eventually(lambda: not left(), within=2)
    if names := left():
        pytest.fail(f"Threads left running: {', '.join(names)}", pytrace=False)
