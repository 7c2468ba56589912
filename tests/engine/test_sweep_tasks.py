"""When each task of the sweep is due, and that one process at a time does it."""

from __future__ import annotations

import logging
import time

import psycopg
import pytest
from support.sweeps import turn

from pgbus import Pgbus
from pgbus.engine.storage import sweeping
from pgbus.engine.storage.claims import Worker
from pgbus.engine.sweep import tasks
from pgbus.engine.sweep.tasks import Sweep, Task


@pytest.fixture
def sweep(bus):
    return make_sweep(bus)


def make_sweep(bus, stopping=lambda: False):
    return Sweep(bus.services, Worker("dispatcher:1", "r1"), stopping)


def due_in(task):
    return task.due_at - time.monotonic()


def test_repairs_are_due_every_interval_and_deletions_every_hour(database):
    bus = Pgbus(database_url=database.url, workflow_sweep_interval="90s")
    sweep = make_sweep(bus)
    assert all(due_in(task) <= 0 for task in sweep.tasks)
    sweep.tick()
    assert {task.name: round(due_in(task), -1) for task in sweep.tasks} == {
        **dict.fromkeys(["expired waits", "stalls", "batches", "gauge"], 90),
        "lost messages": 360,
        **dict.fromkeys(
            ["removed steps", "ended runs", "finished batches", "archived messages"], 3600
        ),
    }
    bus.close()


def test_a_task_is_done_when_it_is_due_and_not_before(sweep):
    done = []
    sweep.tasks = (Task("one", 60, lambda _turn: done.append(1)),)
    sweep.tick()
    sweep.tick()
    assert done == [1]
    sweep.tasks[0].due_at = time.monotonic()
    sweep.tick()
    assert done == [1, 1]


def test_what_another_process_does_is_left_to_it_until_the_next_interval(bus, sweep, database):
    done = []
    other = make_sweep(bus)
    other.tasks = (Task("one", 60, lambda _turn: done.append("other")),)

    def work(_turn):
        other.tick()
        done.append("own")

    sweep.tasks = (Task("one", 60, work),)
    sweep.tick()
    assert done == ["own"]
    assert due_in(other.tasks[0]) > 50
    other.tasks[0].due_at = 0
    other.tick()
    assert done == ["own", "other"]


def test_two_tasks_and_two_schemas_have_locks_of_their_own(bus, database):
    elsewhere = Pgbus(database_url=database.url, schema="elsewhere")
    with (
        bus.services.database.transaction() as one,
        bus.services.database.transaction() as two,
        elsewhere.services.database.transaction() as three,
    ):
        assert sweeping.try_lock(one, "stalls")
        assert not sweeping.try_lock(two, "stalls")
        assert sweeping.try_lock(two, "gauge")
        assert sweeping.try_lock(three, "stalls")
    elsewhere.close()


def test_the_lock_outlasts_the_servers_patience_with_idle_transactions(bus, database):
    database.rows(f"ALTER DATABASE {database.name} SET idle_in_transaction_session_timeout = '10s'")
    with bus.services.database.autocommit() as connection:
        with connection.transaction():
            sweeping.try_lock(connection, "stalls")
            assert connection.row("SHOW idle_in_transaction_session_timeout") == ("0",)
        assert connection.row("SHOW idle_in_transaction_session_timeout") == ("10s",)


def test_a_task_that_fails_is_tried_at_the_next_tick_and_stops_no_other(sweep, caplog):
    done = []

    def fail_once(_turn):
        done.append("one")
        if len(done) == 1:
            raise ValueError("no luck")

    sweep.tasks = (Task("one", 60, fail_once), Task("two", 60, lambda _turn: done.append("two")))
    sweep.tick()
    assert "The sweep's task 'one' failed; it is tried again." in caplog.text
    assert "no luck" in caplog.text
    sweep.tick()
    sweep.tick()
    assert done == ["one", "two", "one"]


def test_an_outage_is_said_once_and_the_task_tried_again(bus, sweep, caplog):
    done = []

    def lose_connection(_turn):
        done.append(1)
        raise psycopg.OperationalError("gone")

    sweep.tasks = (Task("one", 60, lose_connection),)
    sweep.tick()
    sweep.tick()
    assert len(done) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "PostgreSQL does not answer (gone)" in caplog.text


def test_an_outage_ends_a_round_and_a_broken_run_does_not(bus):
    def lose_connection():
        raise psycopg.OperationalError("gone")

    def fail():
        raise ValueError("no luck")

    assert turn(bus).attempt("run 1", fail) is False
    with pytest.raises(psycopg.OperationalError, match="gone"):
        turn(bus).attempt("run 1", lose_connection)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_round_out_of_time_goes_on_at_the_next_tick_only_where_it_is_meant_to(
    sweep, monkeypatch, goes_on
):
    for seconds in ("MAX_SECONDS", "_SHORT_SECONDS"):
        monkeypatch.setattr(tasks, seconds, 0)
    sweep.tasks = (Task("one", 60, lambda turn: turn.is_over(), goes_on=goes_on),)
    sweep.tick()
    assert (due_in(sweep.tasks[0]) <= 0) is goes_on


def test_a_dispatcher_that_is_to_stop_begins_no_other_task(bus):
    done = []
    sweep = make_sweep(bus, stopping=lambda: bool(done))
    sweep.tasks = (
        Task("one", 60, lambda _turn: done.append(1)),
        Task("two", 60, lambda _turn: done.append(2)),
    )
    sweep.tick()
    assert done == [1]


def test_what_was_dealt_with_is_logged(sweep, caplog):
    caplog.set_level(logging.INFO, "pgbus.sweep")
    sweep.tasks = (Task("stalls", 60, lambda _turn: 3), Task("gauge", 60, lambda _turn: None))
    sweep.tick()
    assert [record.message for record in caplog.records] == ["The sweep dealt with 3 stalls."]
