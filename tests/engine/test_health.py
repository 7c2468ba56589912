"""Where the bus itself is in trouble: hints, and what doctor says of them."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from support.workers import running

from pgbus import Workflow, job, step
from pgbus.engine.cli import main
from pgbus.engine.insights import health
from pgbus.engine.insights.health import Hint, Problem
from pgbus.engine.jobs import control


@job(queue="ailing")
def ail(): ...


class Awaits(Workflow):
    @step(wait_for="relief", wait_timeout=60)
    def relief(self): ...


@pytest.fixture
def beat(database):
    """Adds a process that beat some seconds ago."""

    def beat(kind="worker", *queues, ago=0, started=60, pid=7, **details):
        database.rows(
            "INSERT INTO pgbus.processes VALUES (gen_random_uuid(), %s, 'host', %s, NULL, %s::jsonb,"
            " now() - make_interval(secs => %s), now() - make_interval(secs => %s))",
            *(kind, pid, json.dumps({"queues": queues} | details), started, ago),
        )

    return beat


@pytest.fixture
def served(beat):
    """A worker and a dispatcher beat."""
    beat("worker", "pgbus_ailing", "pgbus_workflows", listening=True)
    beat("dispatcher")


@pytest.fixture
def hints(bus):
    def hints():
        with bus.services.database.autocommit() as connection:
            return list(health.hints(connection, bus.settings))

    return hints


@pytest.fixture
def doctor(database, monkeypatch):
    """What `pgbus doctor` prints of hints."""
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)

    def doctor():
        result = CliRunner().invoke(main, ["doctor"])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout.removesuffix(
            "\n\nThe code was not looked at; --app compares it with the runs.\n"
        )

    return doctor


def test_a_bus_that_is_served_has_no_hints(served, bus, hints):
    with bus.active():
        ail.enqueue()
    assert hints() == []


def test_nobody_serves(bus, hints, beat):
    with bus.active():
        ail.enqueue()
    beat("worker", "pgbus_ailing", ago=31)
    beat("dispatcher", ago=31)
    assert hints() == [
        Hint(problem=Problem.NO_WORKER),
        Hint(problem=Problem.NO_DISPATCHER, number=0),
        Hint(problem=Problem.UNREAD_QUEUE, subject="pgbus_ailing", number=1),
    ]


@pytest.mark.rows_by_hand
def test_deadlines_that_wait_for_a_dispatcher_are_counted(bus, driver, database, beat, hints):
    for _ in range(3):
        Awaits.start()
    driver.drain()
    beat("worker", "pgbus_workflows")
    database.rows(
        "UPDATE pgbus.workflow_steps SET timeout_at = now()"
        " WHERE step_id <> (SELECT max(step_id) FROM pgbus.workflow_steps)"
    )
    assert hints() == [Hint(problem=Problem.NO_DISPATCHER, number=2)]


def test_a_queue_is_read_in_all_its_priorities_and_dead_letters_by_nobody(
    bus, database, served, hints
):
    with bus.active():
        ail.options(priority=0).enqueue()
    for queue in ("pgbus_ailing_dlq", "pgbus_unread", "pgbus_unread_p2", "old_mail"):
        database.rows("SELECT pgbus.make_queue(%s)", queue)
    assert hints() == []
    for queue in ("pgbus_ailing_dlq", "pgbus_unread_p2", "pgbus_unread_p2", "old_mail"):
        database.rows("SELECT pgmq.send(%s, '{}'::jsonb)", queue)
    database.rows("SELECT pgmq.send('pgbus_unread', '{}'::jsonb, 60)")
    unread = Problem.UNREAD_QUEUE
    assert hints() == [
        Hint(problem=unread, subject="old_mail", number=1),
        Hint(problem=unread, subject="pgbus_unread_p2", number=2),
    ]


def test_a_paused_queue_is_told_of_with_what_waits(bus, served, hints, doctor):
    with bus.active():
        ail.enqueue()
        ail.options(priority=2).enqueue()
        ail.options(wait=60).enqueue()
    pause = control.pause_queue(bus.services, "ailing", actor="alice").pause
    assert hints() == [
        Hint(problem=Problem.PAUSED_QUEUE, subject="ailing", number=2, since=pause.since)
    ]
    wrong, mend = doctor().splitlines()
    assert re.fullmatch(
        r"Hint: The queue ailing has been paused since 20\S+ \S+, and 2 messages are due there\.",
        wrong,
    )
    assert mend == "  Workers read it again after pgbus queues resume ailing."


def test_a_worker_whose_listen_does_not_work_is_named_once_it_had_time(served, beat, hints, doctor):
    beat("worker", listening=False, started=5, pid=1)
    beat("worker", listening=False, started=20, pid=2)
    beat("worker", started=20, pid=3)
    beat("worker", listening=False, started=20, ago=15, pid=5)
    beat("dispatcher", started=20, pid=4)
    assert hints() == [Hint(problem=Problem.NO_LISTEN, subject="host:2")]
    assert doctor().startswith(
        "Hint: Notifications do not reach host:2.\n  It finds work later, by polling"
    )


def test_only_what_concerns_the_caller_is_told(bus, database):
    bus.ensure_queues(["pgbus_ailing"])
    control.pause_queue(bus.services, "ailing", actor="ann")
    with bus.services.database.autocommit() as connection:
        found = health.hints(connection, bus.settings, frozenset({Problem.NO_DISPATCHER}))
    assert found == (Hint(problem=Problem.NO_DISPATCHER, number=0),)


def test_a_process_whose_clock_is_wrong_is_named(served, beat, hints, doctor):
    beat("worker", clock=time.time() + 40, pid=1)
    beat("dispatcher", clock=time.time() - 51 - 20, ago=20, pid=2)
    beat("supervisor", clock=time.time() + 3, pid=3)
    ahead, behind = sorted(hints(), key=lambda hint: hint.subject != "host:1")
    assert (ahead.problem, ahead.subject) == (Problem.CLOCKS_APART, "host:1")
    assert (round(ahead.seconds), round(behind.seconds)) == (40, -51)
    first, second, mend = doctor().splitlines()
    assert {first, second} == {
        "Hint: The clock of host:1 is 40 s ahead of the database's.",
        "Hint: The clock of host:2 is 51 s behind the database's.",
    }
    assert mend == "  Its logs show other times. Correct its clock (NTP)."


def test_a_process_tells_its_clock_with_its_heartbeat(bus, database, hints):
    with running(database):
        told = database.value("SELECT details -> 'clock' FROM pgbus.processes")
        assert abs(told - time.time()) < 60
        assert [hint.problem for hint in hints()] == [Problem.NO_DISPATCHER]


@contextmanager
def transaction(database, *statements, name="report"):
    with database.connection(application_name=name) as connection:
        for statement in statements:
            connection.execute(statement)
        yield


def test_a_long_transaction_that_keeps_dead_rows_is_named(
    database, served, hints, doctor, monkeypatch
):
    monkeypatch.setattr(health, "_LONG_TRANSACTION", 0.0)
    snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    with (
        transaction(database, snapshot, "SELECT 1"),
        transaction(database, "CREATE TABLE written ()", name=""),
        transaction(database, "SELECT 1", name="harmless"),
    ):
        first, second = hints()
        assert first.problem is second.problem is Problem.VACUUM_HELD_BACK
        assert first.subject.startswith("report of ")
        assert second.subject.startswith("a session of ")
        assert datetime.now(UTC) - first.since < timedelta(minutes=1)
        assert f": {first.subject}.\nHint: A transaction has been open since 20" in doctor()
        monkeypatch.setattr(health, "_LONG_TRANSACTION", 600.0)
        assert hints() == []


def test_a_queue_full_of_dead_rows_is_named(bus, database, served, hints, doctor, monkeypatch):
    monkeypatch.setattr(health, "_MANY_DEAD_ROWS", 50)
    bus.ensure_queues(["pgbus_ailing"])
    database.rows("SELECT pgmq.create('foreign')")
    for queue in ("pgbus_ailing", "foreign"):
        database.rows(f"ALTER TABLE pgmq.q_{queue} SET (autovacuum_enabled = off)")
        database.rows(
            f"INSERT INTO pgmq.q_{queue} (vt, message) SELECT now(), '{{}}' FROM generate_series(1, 60)"
        )
        database.rows(f"DELETE FROM pgmq.q_{queue}")
    database.rows("SELECT pg_stat_force_next_flush()")
    [hint] = hints()
    told = (hint.problem, hint.subject, hint.number, hint.since)
    assert told == (Problem.BLOATED_QUEUE, "pgbus_ailing", 60, None)
    told = "Hint: The table of pgbus_ailing holds 60 dead rows, and was never vacuumed.\n"
    assert doctor().startswith(told)
    database.rows("VACUUM pgmq.q_pgbus_ailing")
    assert hints() == []


def test_an_old_schema_is_all_that_is_told(bus, database, hints):
    database.rows("COMMENT ON TABLE pgbus.schema_version IS 'another'")
    database.rows("DROP TABLE pgbus.queues")
    assert hints() == [Hint(problem=Problem.OLD_SCHEMA)]
