"""`bus.run_in_background()`: a worker and a dispatcher within the host's process."""

import threading

import pytest
from support import apps
from support.waiting import eventually
from support.workers import Stage

from pgbus import Pgbus
from pgbus.engine.errors import SchemaOutdated
from pgbus.engine.processes.worker import Worker


@pytest.fixture
def stage(database, monkeypatch):
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)
    return Stage(database)


def test_runs_and_far_off_steps_go_through_in_the_background(bus, stage):
    with bus.run_in_background():
        plain, far_off = bus.start(apps.Plain), bus.start(apps.FarOff)
        stage.finished(plain)
        eventually(lambda: len(stage.attempts(far_off)) == 2)
        stage.database.rows(
            "UPDATE pgbus.workflow_steps SET scheduled_at = now(), send_at = now()"
            " WHERE step_name = 'two'"
        )
        stage.finished(far_off)
        assert _kinds(stage) == ["dispatcher", "worker"]
    assert _kinds(stage) == []


def test_no_thread_and_no_connection_is_left_when_it_has_stopped(bus, stage):
    background = bus.run_in_background()
    run = bus.start(apps.Plain)
    stage.finished(run)
    background.stop()
    eventually(lambda: not _threads(), within=2)
    assert not [one for one in stage.database.clients() if "listen" in one]


def test_stop_waits_for_the_body_that_runs(bus, stage):
    background = bus.run_in_background()
    with stage.closed("body"):
        run = bus.start(apps.Gated)
        stage.arrived_at("body")
        stopping = threading.Thread(target=background.stop)
        stopping.start()
        assert stopping.is_alive()
    stopping.join(10)
    assert ("two", 1, "completed") in stage.attempts(run)


def test_stop_may_be_called_twice(bus, stage):
    background = bus.run_in_background()
    background.stop()
    background.stop()


def test_a_body_that_outlives_its_worker_may_still_try_to_wake_it(bus, stage):
    worker = Worker(bus)
    worker._listening.close()
    worker._crew.expect(0.01)
    worker.stop()


def test_it_starts_again_after_it_was_stopped(bus, stage):
    with bus.run_in_background():
        pass
    with bus.run_in_background():
        stage.finished(bus.start(apps.Plain))


def test_a_database_that_is_not_migrated_is_said_at_once(empty_database):
    bus = Pgbus(database_url=empty_database.url)
    try:
        with pytest.raises(SchemaOutdated, match="pgbus migrate"):
            bus.run_in_background()
    finally:
        bus.close()
    assert not _threads()


def _threads():
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("pgbus") and thread.name != "pgbus-event-loop"
    ]


def _kinds(stage):
    return [
        kind for (kind,) in stage.database.rows("SELECT kind FROM pgbus.processes ORDER BY kind")
    ]
