"""Steps due later than in a minute: rows without a message until the timer sends it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pgbus import Workflow, step
from pgbus.engine.storage import messages


class Distant(Workflow):
    @step(wait=timedelta(days=3))
    def first(self): ...

    @step(wait=timedelta(days=2))
    def second(self): ...


class Near(Workflow):
    @step(wait=timedelta(seconds=59))
    def first(self): ...


class Elsewhere(Workflow, queue="elsewhere"):
    @step(wait=timedelta(days=3))
    def first(self): ...


def send_due(bus, limit=100):
    with bus.services.database.autocommit() as connection:
        return messages.send_due(connection, limit)


def due_in(database, run, seconds):
    """Moves the run's scheduled step to so many seconds from now, as if time had passed."""
    return database.value(
        "WITH s AS (UPDATE pgbus.workflow_steps"
        "              SET scheduled_at = now() + make_interval(secs => %s),"
        "                  send_at = now() + make_interval(secs => %s)"
        "            WHERE workflow_id = %s AND status = 'scheduled' RETURNING *)"
        " UPDATE pgbus.workflows w SET sleeps_until = s.scheduled_at FROM s WHERE s.step_id = w.step_id"
        " RETURNING s.scheduled_at",
        seconds,
        seconds,
        run.workflow_id,
    )


def queued(database, queue="pgbus_workflows"):
    return dict(database.rows(f"SELECT msg_id, vt FROM pgmq.q_{queue}"))


def test_a_far_off_step_is_a_row_without_a_message(bus, driver, database):
    run = Distant.start()
    (attempt,) = run.steps
    assert attempt.message_id is None
    assert queued(database) == {}
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") == attempt.scheduled_at
    driver.drain()
    assert run.reload().status == "ready"


def test_so_is_a_far_off_step_that_follows_another(bus, driver, database):
    run = Distant.start().run_now()
    driver.drain()
    assert [s.status for s in run.steps] == ["completed", "scheduled"]
    assert run.steps[1].message_id is None
    assert queued(database) == {}


def test_a_step_due_within_a_minute_has_its_message_at_once(bus, database):
    run = Near.start()
    (attempt,) = run.steps
    assert queued(database) == {attempt.message_id: attempt.scheduled_at}
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") is None
    assert send_due(bus) == 0


def test_the_timer_sends_what_is_due_within_two_seconds_at_its_own_time(bus, database):
    overdue, now, soon, later, far = (Distant.start() for _ in range(5))
    moments = {
        run.workflow_id: due_in(database, run, seconds)
        for run, seconds in ((overdue, -3600), (now, 0), (soon, 1.5), (later, 4))
    }
    assert send_due(bus) == 3
    sent = {run.workflow_id: run.steps[0].message_id for run in (overdue, now, soon)}
    assert queued(database) == {sent[run]: moments[run] for run in sent}
    assert later.steps[0].message_id is far.steps[0].message_id is None
    assert send_due(bus) == 0


def test_the_longest_overdue_goes_first_when_not_all_can(bus, database):
    first, second = Distant.start(), Distant.start()
    due_in(database, second, -5)
    due_in(database, first, -60)
    assert send_due(bus, limit=1) == 1
    assert first.steps[0].message_id is not None
    assert second.steps[0].message_id is None
    assert send_due(bus, limit=1) == 1


def test_what_the_timer_sent_runs(bus, driver, database):
    run = Distant.start()
    due_in(database, run, 0)
    send_due(bus)
    driver.drain()
    assert run.steps[0].status == "completed"


def test_the_timer_wakes_workers_for_what_it_sends(bus, database):
    run = Distant.start()
    due_in(database, run, 0)
    with database.connection(autocommit=True) as listener:
        listener.execute('LISTEN "pgbus"')
        send_due(bus)
        (notice,) = listener.notifies(timeout=5, stop_after=1)
    assert notice.payload == "pgbus_workflows"


def test_callers_at_once_share_the_work_and_nothing_is_sent_twice(bus, database):
    runs = [Distant.start() for _ in range(4)]
    for run in runs:
        due_in(database, run, 0)
    with database.connection() as one, database.connection() as other:
        assert one.execute("SELECT pgbus.send_due(3)").fetchone() == (3,)
        assert other.execute("SELECT pgbus.send_due(3)").fetchone() == (1,)
        one.commit()
        other.commit()
    assert {run.steps[0].message_id for run in runs} == set(queued(database))
    assert len(queued(database)) == 4


def test_a_caller_that_fails_leaves_its_share_to_the_next(bus, database):
    run = Distant.start()
    due_in(database, run, 0)
    with database.connection() as one:
        one.execute("SELECT pgbus.send_due(3)")
        one.rollback()
    assert queued(database) == {}
    assert send_due(bus) == 1
    assert run.steps[0].message_id is not None


def test_a_queue_that_is_gone_does_not_keep_the_timer_from_the_others(bus, driver, database):
    stuck, run = Elsewhere.start(), Distant.start()
    due_in(database, stuck, -60)
    due_in(database, run, 0)
    database.rows("SELECT pgmq.drop_queue('pgbus_elsewhere')")
    assert send_due(bus) == 2
    driver.drain()
    assert run.steps[0].status == "completed"
    assert stuck.reload().status == "finished"


@pytest.mark.parametrize("verb", ["pause", "cancel"])
def test_the_timer_leaves_a_run_that_does_not_wait_for_it_alone(bus, database, verb):
    run = Distant.start()
    due_in(database, run, 0)
    getattr(run, verb)()
    assert send_due(bus) == 0
    assert queued(database) == {}


def test_the_timer_goes_by_the_rescheduled_time(bus, database):
    run = Distant.start()
    due_in(database, run, 0)
    run.reschedule(datetime.now(UTC) + timedelta(days=1))
    assert send_due(bus) == 0
    due_in(database, run, 0)
    assert send_due(bus) == 1


def test_a_paused_run_that_is_resumed_waits_for_the_timer_again(bus, driver, database):
    run = Distant.start().pause().resume()
    assert queued(database) == {}
    due_in(database, run, 0)
    assert send_due(bus) == 1
    driver.drain()
    assert run.steps[0].status == "completed"


@pytest.mark.parametrize("verb", ["pause", "cancel", "run_now"])
def test_a_message_the_timer_sent_just_before_a_verb_does_no_harm(bus, driver, database, verb):
    run = Distant.start()
    due_in(database, run, 0)
    send_due(bus)
    getattr(run, verb)()
    driver.drain()
    assert queued(database) == {}
    assert run.steps[0].status == {
        "pause": "scheduled", "cancel": "cancelled", "run_now": "completed",
    }[verb]  # fmt: skip


def test_a_left_over_message_does_not_start_a_step_that_the_timer_has_yet_to_send(
    bus, driver, database
):
    """Started early, it would be sent again while it runs."""
    run = Distant.start().run_now()
    run.reschedule(datetime.now(UTC) + timedelta(days=1))
    due_in(database, run, -1)
    driver.drain()
    assert run.steps[0].status == "scheduled"
    assert send_due(bus) == 1
    driver.drain()
    assert run.steps[0].status == "completed"
