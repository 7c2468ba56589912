"""What a worker that has nothing to do costs: its statements, counted as it sends them."""

import threading
import time

import psycopg
import pytest
from support import apps
from support.driving import Driver
from support.waiting import eventually
from support.workers import Stage

from pgbus import Pgbus
from pgbus.engine.processes.worker import Worker


@pytest.fixture
def stage(database):
    return Stage(database)


@pytest.fixture
def idle_for_three_seconds(database, monkeypatch):
    """Lets a worker of these settings idle; returns the statements it sends meanwhile."""

    def idle(**settings):
        sent = []
        execute = psycopg.Connection.execute

        def noted(connection, statement, *rest, **options):
            sent.append(statement)
            return execute(connection, statement, *rest, **options)

        bus = Pgbus(database_url=database.url, **settings)
        worker = Worker(bus)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            eventually(lambda: worker._listening.works)
            began = time.monotonic()
            eventually(lambda: time.monotonic() - began > 0.5)
            monkeypatch.setattr(psycopg.Connection, "execute", noted)
            began, used = time.monotonic(), time.process_time()
            eventually(lambda: time.monotonic() - began > 3)
            used = time.process_time() - used
            monkeypatch.undo()
        finally:
            worker.stop()
            thread.join()
            bus.close()
        # What this test's own waiting uses is among it.
        assert used < 0.3
        return sent

    return idle


def test_an_idle_worker_asks_once_per_polling_interval(database, idle_for_three_seconds):
    sent = idle_for_three_seconds(polling_interval=0.5)
    assert 5 <= len(sent) <= 7


def test_an_idle_worker_with_a_long_polling_interval_asks_only_to_beat(
    database, idle_for_three_seconds
):
    assert len(idle_for_three_seconds(polling_interval=60)) <= 1


def test_a_message_that_another_transaction_has_locked_is_not_asked_for_in_a_loop(
    bus, stage, idle_for_three_seconds
):
    bus.ensure_queues(["pgbus_jobs"])
    with stage.database.connection() as host:
        host.execute("SELECT pgmq.send('pgbus_jobs', '{}')")
        host.commit()
        host.execute("SELECT FROM pgmq.q_pgbus_jobs FOR UPDATE")
        assert len(idle_for_three_seconds(polling_interval=0.5)) <= 7


def test_a_step_that_another_transaction_has_locked_is_not_sent_in_a_loop(
    bus, stage, idle_for_three_seconds
):
    _schedule(bus, stage, "0 s")
    with stage.database.connection() as host:
        host.execute("SELECT FROM pgbus.workflow_steps FOR UPDATE")
        assert len(idle_for_three_seconds(polling_interval=0.5)) <= 14


def test_a_step_due_within_a_long_polling_interval_is_not_waited_for_in_a_loop(
    bus, stage, idle_for_three_seconds
):
    _schedule(bus, stage, "9 s")
    assert len(idle_for_three_seconds(polling_interval=60)) <= 1


def _schedule(bus, stage, ahead):
    """Leaves a step that the timer has to send at its time."""
    bus.start(apps.FarOff)
    Driver(bus).drain()
    stage.database.rows(
        "UPDATE pgbus.workflow_steps SET scheduled_at = now() + %s::interval,"
        " send_at = now() + %s::interval WHERE step_name = 'two'",
        ahead,
        ahead,
    )
