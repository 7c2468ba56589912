"""A worker process: what it takes, in which order, and what wakes it."""

import pytest
from support import apps
from support.waiting import eventually
from support.workers import Stage, running


@pytest.fixture
def stage(database):
    return Stage(database)


def test_runs_go_through_a_worker_process(bus, stage):
    runs = [bus.start(apps.Plain) for _ in range(20)]
    with running(stage.database, threads=4, app_revision="r1") as worker:
        stage.finished(*runs)
        worker.stop()
    assert stage.database.rows("SELECT revision FROM pgbus.app_revisions") == [("r1",)]
    completed = [("one", 1, "completed"), ("two", 1, "completed"), ("three", 1, "completed")]
    assert all(stage.attempts(run) == completed for run in runs)
    assert stage.database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0


def test_queues_are_read_in_order_of_priority(bus, stage):
    for workflow in (apps.Unhurried, apps.Usual, apps.Urgent) * 3:
        bus.start(workflow)
    with running(stage.database, threads=1):
        eventually(lambda: len(stage.notes) == 9)
    assert stage.notes == ["urgent"] * 3 + ["usual"] * 3 + ["unhurried"] * 3


def test_a_worker_serves_the_queues_of_its_setting_only(bus, stage):
    elsewhere = bus.start(apps.Elsewhere)
    bus.start(apps.Usual)
    with running(stage.database, queues="elsewhere", threads=2) as worker:
        stage.finished(elsewhere)
        worker.stop()
    assert stage.notes == ["elsewhere"]
    assert "Usual" not in worker.log


def test_a_worker_serves_every_queue_its_application_names_and_jobs_among_them(bus, stage):
    run = bus.start(apps.Elsewhere)
    with bus.active():
        apps.noted_job.enqueue("a job")
    with running(stage.database):
        stage.finished(run)
        eventually(lambda: sorted(stage.notes) == ["a job", "elsewhere"])


def test_a_start_wakes_a_worker_that_would_not_poll_for_long(bus, stage):
    with running(stage.database, polling_interval=60) as worker:
        worker.says("LISTEN works")
        for number in range(1, 4):
            bus.start(apps.Usual)
            eventually(lambda number=number: len(stage.notes) == number, within=2)


def test_a_queue_that_appears_while_a_worker_runs_is_served_at_once(bus, stage):
    with running(stage.database, polling_interval=60) as worker:
        worker.says("LISTEN works")
        eventually(lambda: _queues_shown(stage) != [])
        assert "pgbus_jobs_p0" not in _queues_shown(stage)
        with bus.active():
            apps.noted_job.options(priority=0).enqueue("urgent")
        eventually(lambda: stage.notes == ["urgent"], within=3)


def test_a_start_that_comes_while_all_threads_are_busy_is_taken_by_the_first_that_is_free(
    bus, stage
):
    with running(stage.database, polling_interval=60, threads=1) as worker:
        worker.says("LISTEN works")
        with stage.closed("body"):
            bus.start(apps.Gated)
            stage.arrived_at("body")
            bus.start(apps.Usual)
        eventually(lambda: "usual" in stage.notes, within=2)


def test_a_step_due_in_a_moment_starts_then_and_not_at_the_next_poll(bus, stage):
    with running(stage.database, polling_interval=60) as worker:
        worker.says("LISTEN works")
        run = bus.start(apps.Soon)
        stage.finished(run, within=2)
    (late,) = stage.database.rows(
        "SELECT extract(epoch FROM started_at - scheduled_at) FROM pgbus.workflow_steps"
        " WHERE step_name = 'two'"
    )[0]
    assert 0 <= late < 0.5


def test_a_far_off_step_that_comes_due_is_sent_by_an_idle_worker_without_a_dispatcher(bus, stage):
    with running(stage.database, polling_interval=0.5) as worker:
        run = bus.start(apps.FarOff)
        eventually(lambda: stage.attempts(run)[-1:] == [("two", 1, "scheduled")])
        assert stage.database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0
        stage.database.rows(
            "UPDATE pgbus.workflow_steps SET scheduled_at = clock_timestamp() + interval '2.5 s',"
            " send_at = clock_timestamp() + interval '2.5 s' WHERE step_name = 'two'"
        )
        stage.finished(run)
        assert "Traceback" not in worker.log
    late = stage.database.value(
        "SELECT extract(epoch FROM started_at - scheduled_at) FROM pgbus.workflow_steps"
        " WHERE step_name = 'two'"
    )
    assert 0 <= late < 1


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_a_body_that_asks_the_process_to_end_is_left_to_redelivery_and_the_worker_lives(
    bus, stage, how
):
    with running(stage.database, threads=2, polling_interval=0.2) as worker:
        run = bus.start(apps.Quits, how=how)
        worker.says("is left to redelivery")
        assert stage.attempts(run) == [("one", 1, "in_progress")]
        stage.redeliver()
        stage.finished(run)
        assert worker.alive
    assert stage.attempts(run) == [("one", 1, "failed"), ("one", 2, "completed")]
    assert stage.events(run).count("stall_detected") == 1


def test_a_queue_that_is_dropped_ends_no_worker(bus, stage):
    with running(stage.database, polling_interval=0.2) as worker:
        worker.says("LISTEN works")
        # It has looked which queues there are since then.
        stage.finished(bus.start(apps.Elsewhere))
        stage.database.rows("SELECT pgmq.drop_queue('pgbus_elsewhere')")
        worker.says("Taking messages failed")
        run = bus.start(apps.Plain)
        stage.finished(run)


def _queues_shown(stage):
    return [
        queue
        for (queue,) in stage.database.rows(
            "SELECT jsonb_array_elements_text(details->'queues') FROM pgbus.processes"
            " WHERE kind = 'worker'"
        )
    ]
