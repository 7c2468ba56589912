"""`pgbus dispatcher`: any number of them share the timer."""

import pytest
from support import apps
from support.driving import Driver
from support.waiting import eventually
from support.workers import Stage, running

from pgbus.engine.processes.dispatcher import Dispatcher
from pgbus.engine.storage import messages


@pytest.fixture
def stage(database):
    return Stage(database)


def test_two_dispatchers_send_each_step_that_comes_due_once(bus, stage):
    for _ in range(100):
        bus.start(apps.FarOff)
    Driver(bus).drain()
    with (
        running(stage.database, "dispatcher") as one,
        running(stage.database, "dispatcher") as other,
    ):
        eventually(lambda: stage.database.value("SELECT count(*) FROM pgbus.processes") == 2)
        stage.database.rows(
            "UPDATE pgbus.workflow_steps SET scheduled_at = now(), send_at = now()"
            " WHERE send_at IS NOT NULL"
        )
        eventually(lambda: _sent(stage) == 100, within=3)
        assert not stage.database.value("SELECT count(send_at) FROM pgbus.workflow_steps")
        one.stop()
        other.stop()
    assert _sent(stage) == 100
    assert stage.database.value("SELECT count(*) FROM pgbus.processes") == 0
    Driver(bus).drain()
    assert stage.database.value("SELECT bool_and(status = 'finished') FROM pgbus.workflows")


def test_more_than_one_batch_that_comes_due_is_sent_in_one_tick(bus, stage, monkeypatch):
    monkeypatch.setattr("pgbus.engine.processes.dispatcher._SEND_DUE_LIMIT", 2)
    for _ in range(5):
        bus.start(apps.FarOff)
    Driver(bus).drain()
    stage.database.rows("UPDATE pgbus.workflow_steps SET send_at = now() WHERE send_at > now()")
    with bus.services.database.autocommit() as connection:
        Dispatcher(bus)._tick(connection)
    assert stage.database.value("SELECT count(send_at) FROM pgbus.workflow_steps") == 0


def test_a_tick_that_fails_ends_no_dispatcher(bus, stage, monkeypatch, caplog):
    dispatcher = Dispatcher(bus)
    ticks = []

    def send_due(_connection, _limit):
        ticks.append(1)
        if len(ticks) == 1:
            raise ValueError("no luck")
        dispatcher.stop()
        return 0

    monkeypatch.setattr(messages, "send_due", send_due)
    dispatcher.run()
    assert "The dispatcher failed; it tries again." in caplog.text
    assert len(ticks) == 2


def test_a_dispatcher_sweeps_also_while_the_timer_works(bus, stage):
    run = bus.start(apps.Plain)
    Driver(bus).take()
    stage.database.rows("UPDATE pgbus.workflow_steps SET started_at = now() - interval '2 hours'")
    with running(stage.database, "dispatcher") as dispatcher:
        eventually(lambda: stage.status(run) == "paused")
        dispatcher.stop()
    assert stage.events(run)[-3:] == ["stall_detected", "step_failed", "paused"]


def test_several_dispatchers_repair_each_run_once(bus, stage):
    runs = [bus.start(apps.Plain) for _ in range(30)]
    driver = Driver(bus)
    for _ in runs:
        driver.take()
    stage.database.rows("UPDATE pgbus.workflow_steps SET started_at = now() - interval '2 hours'")
    often = {"workflow_sweep_interval": "0.1s"}
    with (
        running(stage.database, "dispatcher", **often) as one,
        running(stage.database, "dispatcher", **often) as other,
    ):
        eventually(lambda: {stage.status(run) for run in runs} == {"paused"})
        one.stop()
        other.stop()
    assert [stage.events(run).count("stall_detected") for run in runs] == [1] * 30


def test_a_dispatcher_makes_the_queues_that_its_repairs_send_to(bus, stage):
    with running(stage.database, "dispatcher") as dispatcher:
        eventually(lambda: stage.database.value("SELECT count(*) FROM pgbus.processes") == 1)
        dispatcher.stop()
    assert stage.database.value("SELECT to_regclass('pgmq.q_pgbus_workflows') IS NOT NULL")


def _sent(stage):
    return stage.database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows")
