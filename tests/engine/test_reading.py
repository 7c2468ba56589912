"""A page's look at the database: of one moment, bounded, and honest about an outage."""

from __future__ import annotations

import psycopg
import pytest
from support.database import Database
from support.waiting import eventually

from pgbus import Pgbus, Workflow, step
from pgbus.engine.errors import DatabaseAway, ReadTimeout, RunNotFound
from pgbus.engine.insights import reading as module
from pgbus.engine.insights import runs
from pgbus.engine.insights.reading import reading
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.storage.migrate import migrate


class Observed(Workflow):
    @step
    def happens(self): ...


def listed(bus):
    with reading(bus.services) as connection:
        return len(runs.page(connection, bus.settings, RunFilter(), limit=5).runs)


def test_it_sees_one_moment_whatever_happens_meanwhile(bus):
    Observed.start()
    with reading(bus.services) as connection:
        (before,) = runs.page(connection, bus.settings, RunFilter(), limit=5).runs
        Observed.start().pause()
        assert runs.page(connection, bus.settings, RunFilter(), limit=5).runs == (before,)
    assert listed(bus) == 2


def test_nothing_can_be_written_in_it(bus):
    run = Observed.start()
    with (
        pytest.raises(DatabaseAway, match="cannot execute UPDATE in a read-only transaction"),
        reading(bus.services) as connection,
    ):
        connection.rows("UPDATE {schema}.workflows SET status = 'paused'")
    assert run.reload().status == "ready"


def test_a_question_that_takes_too_long_is_given_up(bus, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    with pytest.raises(ReadTimeout, match=r"more than 0\.05 seconds"), reading(bus.services) as it:
        it.rows("SELECT pg_sleep(60)")


def test_questions_that_take_too_long_together_are_given_up(bus, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    monkeypatch.setattr(module, "_GRAIN", 0.0)
    asked = []
    with pytest.raises(ReadTimeout), reading(bus.services) as it:
        asked.extend(it.rows("SELECT pg_sleep(0.1)") for _ in range(20))
    assert len(asked) < 3


def test_a_question_after_the_last_moment_is_not_asked(bus, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    with pytest.raises(ReadTimeout), reading(bus.services) as it:
        it.rows("SELECT 1")


def test_what_is_left_is_told_again_only_after_a_while(bus, monkeypatch):
    left = "SELECT current_setting('statement_timeout')"
    with reading(bus.services) as it:
        for grain in (3600.0, 0.0):
            monkeypatch.setattr(module, "_GRAIN", grain)
            before, _, after = it.rows(left), it.rows("SELECT pg_sleep(0.01)"), it.rows(left)
            assert (before == after) is (grain > 0)


def test_its_limits_end_with_it(bus, monkeypatch):
    limits = (
        "SELECT current_setting('statement_timeout'), current_setting('transaction_read_only'),"
        " current_setting('jit'), current_setting('plan_cache_mode')"
    )
    with bus.services.database.held():
        with bus.services.database.autocommit() as connection:
            before = connection.rows(limits)
        with reading(bus.services) as connection:
            ((timeout, *others),) = connection.rows(limits)
            assert (timeout[:2], *others) == ("14", "on", "off", "force_custom_plan")
        with bus.services.database.autocommit() as connection:
            assert connection.rows(limits) == before


def test_what_pgbus_says_inside_passes(bus):
    with pytest.raises(RunNotFound), reading(bus.services) as connection:
        runs.summary(connection, bus.settings, "01900000-0000-7000-8000-000000000000")


def test_a_mistake_in_a_question_is_no_outage(bus):
    with pytest.raises(psycopg.errors.UndefinedTable), reading(bus.services) as connection:
        connection.rows("SELECT FROM {schema}.nothing")


def test_an_outage_is_told_and_ends_without_a_new_bus(crashable_server):
    database = Database(crashable_server)
    migrate(database.engine, "pgbus")
    database.engine.dispose()
    bus = Pgbus(database_url=database.url)
    try:
        Observed.start()
        assert listed(bus) == 1
        crashable_server.stop()
        with pytest.raises(DatabaseAway, match="PostgreSQL does not answer: "):
            listed(bus)
        crashable_server.start()
        eventually(lambda: listed(bus) == 1)
    finally:
        bus.close()


def test_a_server_that_goes_away_within_a_question_is_an_outage(bus):
    with pytest.raises(DatabaseAway), reading(bus.services) as connection:
        connection.rows("SELECT pg_terminate_backend(pg_backend_pid())")
    assert listed(bus) == 0
