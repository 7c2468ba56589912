"""What a worker that has nothing to do costs: its statements, counted as it sends them."""

import operator
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
def idle(database, monkeypatch):
    """Lets a worker of these settings poll so often; returns how many statements it sent, and the seconds."""

    def idle(polls, **settings):
        sent = []
        polled = []
        execute = psycopg.Connection.execute

        def noted_execute(connection, statement, *rest, **options):
            sent.append(statement)
            return execute(connection, statement, *rest, **options)

        bus = Pgbus(database_url=database.url, **settings)
        worker = Worker(bus)
        wait = worker._listening.wait

        def noted_wait(seconds):
            notified = wait(seconds)
            if worker._listening.works:
                polled.append((len(sent), time.monotonic(), time.process_time()))
            return notified

        monkeypatch.setattr(psycopg.Connection, "execute", noted_execute)
        monkeypatch.setattr(worker._listening, "wait", noted_wait)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            eventually(lambda: len(polled) > polls, within=15)
        finally:
            worker.stop()
            thread.join()
            bus.close()
        statements, seconds, used = map(operator.sub, polled[polls], polled[0])
        # What this test's own waiting uses is among it.
        assert used < seconds / 10
        return statements, seconds

    return idle


def test_an_idle_worker_asks_once_per_polling_interval(idle):
    statements, seconds = idle(6, polling_interval=0.5)
    # And once more, when LISTEN works, which queues there are.
    assert statements == 6 + 1
    assert seconds > 2.9


def test_an_idle_worker_with_a_long_polling_interval_asks_only_to_beat(idle):
    statements, seconds = idle(1, polling_interval=60)
    assert statements == 1 + 1
    assert seconds > 3


def test_a_message_that_another_transaction_has_locked_is_not_asked_for_in_a_loop(bus, stage, idle):
    bus.ensure_queues(["pgbus_jobs"])
    with stage.database.connection() as host:
        host.execute("SELECT pgmq.send('pgbus_jobs', '{}')")
        host.commit()
        host.execute("SELECT FROM pgmq.q_pgbus_jobs FOR UPDATE")
        statements, seconds = idle(6, polling_interval=0.5)
    assert statements <= 8
    assert seconds > 2.9


def test_a_step_that_another_transaction_has_locked_is_not_sent_in_a_loop(bus, stage, idle):
    _schedule(bus, stage, "0 s")
    with stage.database.connection() as host:
        host.execute("SELECT FROM pgbus.workflow_steps FOR UPDATE")
        statements, seconds = idle(6, polling_interval=0.5)
    assert statements <= 15
    assert seconds > 2.9


def test_a_step_due_within_a_long_polling_interval_is_not_waited_for_in_a_loop(bus, stage, idle):
    _schedule(bus, stage, "9 s")
    statements, seconds = idle(1, polling_interval=60)
    assert statements <= 1 + 1
    assert seconds > 3


def _schedule(bus, stage, ahead):
    """Leaves a step that the timer has to send at its time."""
    bus.start(apps.FarOff)
    Driver(bus).drain()
    stage.database.rows(
        "WITH s AS (UPDATE pgbus.workflow_steps SET scheduled_at = now() + %s::interval,"
        " send_at = now() + %s::interval WHERE step_name = 'two' RETURNING step_id, send_at)"
        " UPDATE pgbus.workflows w SET sleeps_until = s.send_at FROM s WHERE s.step_id = w.step_id",
        ahead,
        ahead,
    )
