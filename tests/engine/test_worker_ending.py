"""How a worker ends: in order, at once, or after its patience."""

import signal

import psycopg
import pytest
from support import apps
from support.workers import Stage, running

from pgbus.engine.processes.worker import Worker
from pgbus.engine.storage import messages


@pytest.fixture
def stage(database):
    return Stage(database)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_told_to_stop_takes_nothing_more_and_lets_bodies_finish(bus, stage, number):
    with running(stage.database, threads=4) as worker:
        with stage.closed("body"):
            first = bus.start(apps.Gated)
            stage.arrived_at("body")
            worker.signal(number)
            worker.says("takes nothing more")
            second = bus.start(apps.Usual)
        assert worker.wait() == 0
    # The body's completion counts; the run's next step is another worker's.
    assert stage.attempts(first)[1:] == [("two", 1, "completed"), ("three", 1, "scheduled")]
    assert stage.attempts(second) == [("one", 1, "scheduled")]
    with running(stage.database):
        stage.finished(first, second)
    assert "stall_detected" not in stage.events(first) + stage.events(second)


def test_a_worker_that_a_migration_went_past_runs_no_second_body(bus, stage):
    with running(stage.database, threads=1) as worker:
        with stage.closed("body"):
            bus.start(apps.Gated)
            stage.arrived_at("body")
            bus.start(apps.Gated)
            for statement in (
                "ALTER FUNCTION pgbus.finalize RENAME TO finalize_anew",
                "COMMENT ON TABLE pgbus.schema_version IS 'another'",
            ):
                stage.database.rows(statement)
        assert worker.wait() == 1
        assert "run `pgbus migrate`" in worker.log.splitlines()[-1]
    assert stage.notes.count("one") == 1


def test_a_function_that_is_missing_otherwise_ends_no_worker(bus, stage):
    with running(stage.database, threads=1) as worker:
        stage.database.rows("ALTER FUNCTION pgbus.finalize RENAME TO finalize_anew")
        bus.start(apps.Plain)
        worker.says("was not finished")
        stage.database.rows("ALTER FUNCTION pgbus.finalize_anew RENAME TO finalize")
        stage.finished(bus.start(apps.Plain))


def test_a_second_signal_ends_a_worker_at_once_and_redelivery_finds_what_it_ran(bus, stage):
    with running(stage.database) as worker:
        with stage.closed("body"):
            run = bus.start(apps.Gated)
            stage.arrived_at("body")
            worker.signal(signal.SIGTERM)
            worker.says("takes nothing more")
            worker.signal(signal.SIGTERM)
            assert worker.wait(within=3) == 128 + signal.SIGTERM
        stage.redeliver()
        with running(stage.database):
            stage.finished(run)
    assert stage.attempts(run)[1:3] == [("two", 1, "failed"), ("two", 2, "completed")]


def test_a_body_longer_than_the_shutdown_timeout_is_left_to_redelivery(bus, stage):
    with running(stage.database, shutdown_timeout=0.3) as worker:
        with stage.closed("body"):
            run = bus.start(apps.Gated)
            stage.arrived_at("body")
            worker.signal(signal.SIGTERM)
            assert worker.wait(within=5) == 0
            assert "left to redelivery" in worker.log
            assert "apps.Gated" in worker.log.split("left to redelivery")[1]
            assert stage.attempts(run)[-1] == ("two", 1, "in_progress")
        stage.redeliver()
        with running(stage.database):
            stage.finished(run)


@pytest.fixture
def worker(bus):
    worker = Worker(bus)
    yield worker
    worker._listening.close()


def test_a_job_that_a_stopping_worker_has_not_begun_is_anothers_at_once(bus, driver, stage, worker):
    with bus.active():
        apps.noted_job.enqueue("job")
    [delivery] = driver.take()
    worker.stop()
    with stage.database.connection(autocommit=True) as other:
        other.execute("LISTEN pgbus")
        worker._performers[0]._perform(delivery)
        assert [woken.payload for woken in other.notifies(timeout=5, stop_after=1)] == [
            "pgbus_jobs"
        ]
    assert stage.notes == []
    [again] = driver.take()
    assert again.message_id == delivery.message_id


def test_a_step_that_a_stopping_worker_has_not_claimed_is_anothers_at_once(
    bus, driver, stage, worker
):
    run = bus.start(apps.Usual)
    with stage.database.connection() as host:
        host.execute("SELECT FROM pgbus.workflows FOR UPDATE")
        [delivery] = driver.take()
        assert delivery.verdict == "locked"
        worker.stop()
        worker._performers[0]._perform(delivery)
        host.rollback()
    [again] = driver.take()
    assert (again.verdict, again.workflow_id) == ("claimed", run.workflow_id)


def test_a_step_that_a_stopping_worker_has_claimed_is_performed(bus, driver, stage, worker):
    run = bus.start(apps.Plain)
    [delivery] = driver.take()
    worker.stop()
    worker._performers[0]._perform(delivery)
    assert stage.attempts(run) == [("one", 1, "completed"), ("two", 1, "scheduled")]


def test_giving_back_what_cannot_be_given_back_ends_no_thread(
    bus, driver, stage, worker, monkeypatch, caplog
):
    with bus.active():
        apps.noted_job.enqueue("job")
    [delivery] = driver.take()
    worker.stop()
    monkeypatch.setattr(messages, "set_visible_in", _refuse)
    worker._performers[0]._perform(delivery)
    assert "was not given back" in caplog.text


def _refuse(*_):
    raise psycopg.OperationalError("the connection is lost")
