"""The database of a host's suite: which one, and that nothing but pgbus's own is emptied."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, make_url
from support.waiting import eventually

from pgbus import InvalidSetting, PgbusError, Workflow, fan_out, job, step
from pgbus.engine.jobs.control import pause_queue
from pgbus.engine.jobs.execute import execute
from pgbus.engine.processes.presence import Presence
from pgbus.engine.storage.schema import metadata
from pgbus.testing import databases, deliver_signal, perform_next_step

TABLES = {table.name for table in metadata("pgbus").sorted_tables}


@job(queue="mail", max_retries=0)
def fail():
    raise LookupError("nobody is there")


@job(queue="mail")
def falter():
    raise LookupError("nobody is there yet")


@job(queue="mail")
def post(number): ...


class Everything(Workflow):
    @step(wait_for="paid")
    def pay(self): ...

    @fan_out
    def tell(self, batch):
        batch.add(post, 1)


@pytest.fixture
def used(bus, driver):
    """A bus that has written to every table there is, and to queues and archives."""
    with bus.active():
        fail.enqueue()
        falter.enqueue()
        post.enqueue(2)
    for _ in range(3):
        (delivery,) = driver.take()
        execute(bus.services, delivery)
    run = perform_next_step(bus.start(Everything))
    deliver_signal(run, "paid")
    perform_next_step(run)
    pause_queue(bus.services, "mail", actor="ann")
    with bus.services.database.autocommit() as connection:
        Presence("worker", "r1", dict).beat_when_due(connection)
    return bus


def filled(database):
    tables = {f"pgbus.{name}" for name in TABLES}
    for (queue,) in database.rows("SELECT queue_name FROM pgmq.meta"):
        tables |= {f"pgmq.q_{queue}", f"pgmq.a_{queue}"}
    return {name for name in tables if database.value(f"SELECT count(*) FROM {name}")}


def test_runs_batches_messages_and_archives_are_emptied_definitions_and_processes_stay(
    used, database
):
    assert filled(database) >= {f"pgbus.{name}" for name in TABLES}
    assert filled(database) >= {"pgmq.q_pgbus_mail_dlq", "pgmq.q_pgbus_mail", "pgmq.a_pgbus_mail"}
    databases.empty(used.services.database)
    assert filled(database) == {
        "pgbus.workflow_definitions",
        "pgbus.app_revisions",
        "pgbus.processes",
    }


def test_an_emptied_bus_goes_on(used):
    databases.empty(used.services.database)
    assert perform_next_step(used.start(Everything)).status == "waiting"


def test_what_holds_the_emptying_up_is_told(used, database, monkeypatch):
    monkeypatch.setattr(databases, "_PATIENCE", "SET LOCAL lock_timeout = '50ms'")
    with database.connection() as left_open:
        left_open.execute("SELECT 1 FROM pgbus.workflows FOR UPDATE")
        with pytest.raises(PgbusError, match="a transaction that was left open"):
            databases.empty(used.services.database)
    assert "pgbus.workflow_signals" in filled(database)


@pytest.mark.parametrize("name", ["shop_test", "test", "Test-shop", "shop_testing_2"])
def test_a_database_for_tests_is_known_by_its_name(name):
    url = databases.hosts_own(f"postgres://me:word@db:6432/{name}?sslmode=require", worker=None)
    assert url == f"postgresql+psycopg://me:word@db:6432/{name}?sslmode=require"


@pytest.mark.parametrize("name", ["shop", "latest_orders", "contest", ""])
def test_another_database_is_refused(name):
    with pytest.raises(InvalidSetting, match=rf"names the database '{name}'.*\(shop_test\)"):
        databases.hosts_own(f"postgresql://localhost/{name}", worker=None)


def test_each_worker_of_xdist_has_a_database_made_beside_the_named_one(database):
    beside = f"{database.name}_gw3"
    try:
        for _ in range(2):
            url = databases.hosts_own(database.url, worker="gw3")
            assert make_url(url).database == beside
        known = "SELECT count(*) FROM pg_database WHERE datname = %s"
        assert database.value(known, beside) == 1
    finally:
        database.rows(f'DROP DATABASE "{beside}"')


def test_a_bus_on_another_database_than_that_for_tests_is_refused(bus, database, empty_database):
    databases.check_same(bus, database.url)
    with pytest.raises(
        PgbusError, match=r"pgbus_application_bus returns <Pgbus .* Nothing was emptied"
    ):
        databases.check_same(bus, empty_database.url)


def test_a_server_from_the_wheel_goes_with_its_data(monkeypatch):
    homes = []
    make = tempfile.mkdtemp
    monkeypatch.setattr(
        tempfile, "mkdtemp", lambda **named: homes.append(make(**named)) or homes[0]
    )
    with databases.embedded() as url:
        engine = create_engine(url)
        with engine.connect() as connection:
            eventually(lambda: connection.exec_driver_sql("SHOW fsync").scalar() == "off")
        engine.dispose()
    assert [Path(home).exists() for home in homes] == [False]
    processes = psutil.process_iter(["cwd"])
    assert [one for one in processes if str(one.info["cwd"]).startswith(homes[0])] == []
