"""What a worker has in hand stays its own, however long it takes; and what it shows of itself."""

import dataclasses
import signal
from contextlib import ExitStack
from datetime import timedelta

import pytest
from support import apps
from support.waiting import eventually
from support.workers import Stage, running

from pgbus.engine.processes.dispatcher import Dispatcher
from pgbus.engine.processes.in_flight import Heartbeat, InFlight
from pgbus.engine.processes.presence import Presence
from pgbus.engine.storage import processes


@pytest.fixture
def stage(database):
    return Stage(database)


def test_a_step_that_took_longer_than_the_visibility_timeout_completes_once(bus, stage):
    settings = {"visibility_timeout": 1, "polling_interval": 0.2}
    with running(stage.database, **settings), running(stage.database, **settings):
        with stage.closed("body"):
            run = bus.start(apps.Gated)
            stage.arrived_at("body")
            stage.kept_invisible_for(seconds=2)
        stage.finished(run)
    assert stage.notes == ["one", "begin two", "two", "three"]


def test_a_job_longer_than_the_visibility_timeout_runs_once(bus, stage):
    settings = {"visibility_timeout": 1, "polling_interval": 0.2}
    with running(stage.database, **settings), running(stage.database, **settings):
        with stage.closed("body"):
            with bus.active():
                apps.gated_job.enqueue("job")
            stage.arrived_at("body")
            stage.kept_invisible_for(seconds=2, queue="jobs")
        eventually(lambda: stage.database.value("SELECT count(*) FROM pgmq.a_pgbus_jobs") == 1)
    assert stage.notes == ["begin job", "end job"]


def test_without_the_heartbeat_a_long_body_is_not_taken_for_a_dead_workers(bus, stage):
    settings = {"visibility_timeout": 1, "polling_interval": 0.2, "visibility_heartbeat": False}
    # A worker whose one thread is busy takes nothing: what comes again, the other takes.
    with running(stage.database, threads=1, **settings):
        with stage.closed("body"):
            run = bus.start(apps.Gated)
            stage.arrived_at("body")
            with running(stage.database, **settings):
                eventually(lambda: stage.read_count() >= 3)
        stage.finished(run)
    assert stage.notes == ["one", "begin two", "two", "three"]
    assert "stall_detected" not in stage.events(run)


def test_a_body_that_holds_the_interpreter_is_said_and_with_one_worker_runs_once(bus, stage):
    with running(stage.database, visibility_timeout=1, polling_interval=0.2) as worker:
        runs = [bus.start(apps.Plain) for _ in range(5)]
        greedy = bus.start(apps.Greedy, seconds=2.5)
        stage.finished(greedy, *runs)
        worker.says("held the interpreter")
        assert "apps.Greedy" in worker.log
        worker.stop()
    assert stage.notes == ["begin", "end"]
    assert stage.attempts(greedy) == [("one", 1, "completed")]
    assert stage.database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0


def test_a_worker_that_was_stopped_too_long_is_taken_for_dead_and_its_late_end_is_ignored(
    bus, stage
):
    settings = {"visibility_timeout": 1, "polling_interval": 0.2}
    with ExitStack() as stack:
        frozen = stack.enter_context(running(stage.database, **settings))
        with stage.closed("body"):
            run = bus.start(apps.Gated)
            stage.arrived_at("body")
            frozen.signal(signal.SIGSTOP)
            stage.redeliver()
            other = stack.enter_context(running(stage.database, **settings))
            stage.arrived_at("body", number=2)
            frozen.signal(signal.SIGCONT)
        eventually(lambda: "late_completion_ignored" in stage.events(run))
        stage.finished(run)
    assert stage.events(run).count("stall_detected") == 1
    assert stage.pids("three") == [other.pid]
    assert stage.attempts(run) == [
        ("one", 1, "completed"),
        ("two", 1, "failed"),
        ("two", 2, "completed"),
        ("three", 1, "completed"),
    ]


def test_a_queue_that_is_dropped_costs_no_other_its_heartbeat(bus, driver, stage, caplog):
    bus.start(apps.Usual)
    [delivery] = driver.take()
    bus.ensure_queues(["pgbus_gone"])
    lost = dataclasses.replace(delivery, queue="pgbus_gone")
    stage.database.rows("SELECT pgmq.drop_queue('pgbus_gone')")
    in_flight = InFlight()
    heartbeat = Heartbeat(
        dataclasses.replace(bus.settings, visibility_timeout=timedelta(seconds=1)),
        bus.services.database,
        in_flight,
    )
    in_flight.hold(lost)
    in_flight.hold(delivery)
    stage.redeliver()
    heartbeat.start()
    eventually(
        lambda: stage.database.value("SELECT vt > clock_timestamp() FROM pgmq.q_pgbus_workflows")
    )
    heartbeat.stop()
    assert "heartbeat of pgbus_gone failed" in caplog.text


def test_a_worker_shows_who_it_is_and_what_it_runs(bus, stage):
    with (
        running(stage.database, queues="workflows,jobs", threads=3, app_revision="r7") as worker,
        stage.closed("body"),
    ):
        worker.says("LISTEN works")
        run = bus.start(apps.Gated)
        stage.arrived_at("body")
        details = eventually(lambda: _shown_running(stage))
        [(kind, pid, revision)] = stage.database.rows(
            "SELECT kind, pid, revision FROM pgbus.processes"
        )
        assert (kind, pid, revision) == ("worker", worker.pid, "r7")
        assert (details["threads"], details["listening"]) == (3, True)
        assert {"pgbus_workflows", "pgbus_jobs"} <= set(details["queues"])
        [shown] = details["running"]
        assert shown["what"] == f"support.apps.Gated {run.workflow_id}"
        assert 0 <= shown["seconds"] < 60


def test_a_worker_that_ends_in_order_takes_its_row_along(bus, stage):
    with running(stage.database) as worker:
        eventually(lambda: _rows(stage) == [worker.pid])
        worker.stop()
    assert _rows(stage) == []


def test_a_dispatcher_reaps_what_stopped_beating_and_one_that_lives_registers_again(
    bus, stage, caplog
):
    alive, dead = Presence("worker", None, dict), Presence("worker", None, dict)
    with bus.services.database.autocommit() as connection:
        alive.beat_when_due(connection)
        dead.beat_when_due(connection)
        stage.database.rows("UPDATE pgbus.processes SET heartbeat_at = now() - interval '29 s'")
        assert processes.reap(connection) == []
        stage.database.rows("UPDATE pgbus.processes SET heartbeat_at = now() - interval '31 s'")
        Dispatcher(bus)._tick(connection)
        assert _kinds(stage) == ["dispatcher"]
        assert caplog.text.count("was reaped") == 2
        processes.beat(connection, **alive.parameters())
    assert _kinds(stage) == ["dispatcher", "worker"]


def test_a_process_beats_at_once_and_then_every_five_seconds(bus, stage):
    presence = Presence("worker", None, dict)
    assert presence.due_in() <= 0
    presence.parameters()
    assert 4.5 < presence.due_in() <= 5


def test_a_worker_whose_threads_are_all_busy_beats_on(bus, stage):
    with running(stage.database, threads=1, polling_interval=60), stage.closed("body"):
        bus.start(apps.Gated)
        stage.arrived_at("body")
        first = _beat(stage)
        eventually(lambda: _beat(stage) > first, within=8)


def _rows(stage):
    return [pid for (pid,) in stage.database.rows("SELECT pid FROM pgbus.processes")]


def _kinds(stage):
    return [
        kind for (kind,) in stage.database.rows("SELECT kind FROM pgbus.processes ORDER BY kind")
    ]


def _beat(stage):
    return stage.database.value("SELECT max(heartbeat_at) FROM pgbus.processes")


def _shown_running(stage):
    found = stage.database.rows(
        "SELECT details FROM pgbus.processes WHERE jsonb_array_length(details->'running') > 0"
    )
    return found[0][0] if found else None
