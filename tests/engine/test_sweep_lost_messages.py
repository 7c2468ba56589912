"""Due steps whose message is gone from its queue: the sweep sends them again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.replay import told
from support.scripts import Scripted, script
from support.sweeps import age, stopping_after, turn

from pgbus import Workflow, step
from pgbus.engine.states import RunStatus
from pgbus.engine.storage import sweeping
from pgbus.engine.storage.messages import send_due
from pgbus.engine.sweep import lost_messages, walk
from pgbus.engine.sweep.lost_messages import LostMessages


class Tomorrow(Workflow):
    @step(wait=timedelta(days=1))
    def first(self): ...


class Elsewhere(Workflow, queue="elsewhere"):
    @step
    def first(self): ...


@pytest.fixture(autouse=True)
def nothing_scripted():
    script()


@pytest.fixture
def overdue(database):
    """A run that has been due for so long, its message in the queue."""

    def overdue(since="2 hours", workflow=Scripted):
        run = workflow.start()
        age(database, since, run)
        return run.reload()

    return overdue


@pytest.fixture
def lost(database, overdue):
    """The same without its message."""

    def lost(**options):
        run = overdue(**options)
        delete_message(database, run)
        return run

    return lost


def delete_message(database, run):
    attempt = run.steps[-1]
    database.rows(f"DELETE FROM pgmq.q_{attempt.queue} WHERE msg_id = %s", attempt.message_id)


def sweep(bus, **options):
    return LostMessages().sweep(turn(bus, **options))


def messages(database, queue="pgbus_workflows"):
    return [message for (message,) in database.rows(f"SELECT msg_id FROM pgmq.q_{queue}")]


def test_a_lost_message_is_sent_again_at_its_time(bus, database, driver, lost, caplog):
    run = lost()
    (before,) = run.steps
    trail = told(run)
    assert sweep(bus) == 1
    (attempt,) = run.reload().steps
    assert attempt.message_id != before.message_id
    assert messages(database) == [attempt.message_id]
    assert (attempt.attempt, attempt.scheduled_at) == (1, before.scheduled_at)
    assert told(run) == trail
    assert f"The message of run {run.workflow_id} was lost: step first" in caplog.text
    assert sweep(bus) == 0
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_an_attempt_that_names_no_message_has_lost_it(bus, database, lost):
    run = lost()
    database.rows("UPDATE pgbus.workflow_steps SET message_id = NULL")
    assert sweep(bus) == 1
    assert [run.reload().steps[-1].message_id] == messages(database)


def test_a_message_that_waits_in_a_long_queue_is_not_lost(bus, database, overdue):
    run = overdue()
    assert sweep(bus) == 0
    assert messages(database) == [run.steps[-1].message_id]


@pytest.mark.parametrize(("ahead", "found"), [("50 seconds", 0), ("70 seconds", 1)])
def test_a_message_that_nobody_has_and_nobody_can_read_is_lost(
    bus, database, driver, overdue, ahead, found
):
    run = overdue()
    database.rows(f"UPDATE pgmq.q_pgbus_workflows SET vt = now() + interval '{ahead}'")
    assert sweep(bus) == found
    assert len(messages(database)) == 1 + found
    driver.redeliver()
    driver.drain()
    assert [one.attempt for one in run.reload().steps] == [1, 1]
    assert (run.status, messages(database)) == (RunStatus.FINISHED, [])


@pytest.mark.parametrize("bus_options", [{"visibility_timeout": 900}])
def test_a_message_that_a_worker_may_have_in_hand_is_not_lost(bus, database, overdue):
    overdue()
    database.rows("UPDATE pgmq.q_pgbus_workflows SET vt = now() + interval '14 minutes'")
    assert sweep(bus) == 0


def test_a_queue_that_was_dropped_is_made_again(bus, database, driver, overdue):
    run = overdue(workflow=Elsewhere)
    other = overdue()
    delete_message(database, other)
    database.rows("SELECT pgmq.drop_queue('pgbus_elsewhere')")
    database.rows("DROP FUNCTION pgbus.read_pgbus_elsewhere")
    assert sweep(bus) == 2
    driver.drain()
    assert (run.reload().status, other.reload().status) == (RunStatus.FINISHED,) * 2


@pytest.mark.parametrize(("since", "found"), [("59 minutes", 0), ("61 minutes", 1)])
def test_what_is_due_for_less_than_the_threshold_is_left_alone(bus, lost, since, found):
    lost(since=since)
    assert sweep(bus) == found


def test_a_step_of_tomorrow_has_lost_nothing(bus, database):
    run = Tomorrow.start()
    age(database, "2 hours", run)
    assert sweep(bus) == 0
    # The timer is late, not the message.
    age(database, "2 days", run)
    assert sweep(bus) == 0


def test_the_message_of_a_run_that_slept_long_is_lost_like_any_other(bus, database, driver, lost):
    awake, slept = lost(), Tomorrow.start()
    age(database, "26 hours", slept)
    database.rows("UPDATE pgbus.workflow_steps SET send_at = now() WHERE send_at IS NOT NULL")
    with bus.services.database.autocommit() as connection:
        assert send_due(connection, 10) == 1
    assert sweep(bus) == 1
    delete_message(database, slept)
    asleep = Tomorrow.start()
    assert sweep(bus) == 1
    driver.drain()
    assert [run.reload().status for run in (awake, slept, asleep)] == [
        RunStatus.FINISHED, RunStatus.FINISHED, RunStatus.READY,
    ]  # fmt: skip


def test_a_walk_through_those_that_slept_goes_on_where_it_stopped(bus, database, monkeypatch):
    monkeypatch.setattr(walk, "SLICE", 1)
    for hours in (26, 27, 28):
        age(database, f"{hours} hours", Tomorrow.start())
    database.rows("UPDATE pgbus.workflow_steps SET send_at = NULL")
    task = LostMessages()
    # Asked before each slice, and before each run; the runs that move are one slice.
    assert [task.sweep(turn(bus, stopping=stopping_after(n))) for n in (3, 2, 2)] == [1, 1, 1]
    assert len(messages(database)) == 3


def test_a_step_due_long_ago_that_was_sent_just_now_has_lost_nothing(bus, database, overdue):
    run = overdue().pause().resume()
    delete_message(database, run)
    assert sweep(bus) == 0
    age(database, "2 hours", run)
    assert sweep(bus) == 1


def test_a_paused_run_is_left_alone(bus, database, lost):
    run = lost().pause()
    age(database, "1 day", run)
    assert sweep(bus) == 0
    assert messages(database) == []


def test_a_run_that_was_claimed_after_it_was_found_is_left_alone(
    bus, database, driver, overdue, monkeypatch
):
    run = overdue()

    def taken_meanwhile(*_arguments, **_options):
        driver.drain()
        return set()

    monkeypatch.setattr(sweeping, "deliverable", taken_meanwhile)
    assert sweep(bus) == 0
    assert (run.reload().status, messages(database)) == (RunStatus.FINISHED, [])


def test_one_that_was_sent_anew_after_it_was_found_is_left_alone(
    bus, database, overdue, monkeypatch
):
    run = overdue()

    def sent_meanwhile(*_arguments, **_options):
        run.run_now()
        return set()

    monkeypatch.setattr(sweeping, "deliverable", sent_meanwhile)
    assert sweep(bus) == 0
    assert len(messages(database)) == 2


def test_a_sweep_is_limited_and_the_next_goes_on(bus, database, lost, monkeypatch):
    monkeypatch.setattr(lost_messages, "LIMIT", 2)
    monkeypatch.setattr(walk, "SLICE", 2)
    for _ in range(5):
        lost()
    task = LostMessages()
    assert [task.sweep(turn(bus)) for _ in range(4)] == [2, 2, 1, 0]
    assert len(messages(database)) == 5


def test_a_dispatcher_that_is_to_stop_ends_between_two_runs(bus, database, lost):
    for _ in range(3):
        lost()
    # Asked before the only slice, and before each run.
    assert sweep(bus, stopping=stopping_after(3)) == 2
    assert len(messages(database)) == 2


def test_one_that_cannot_be_repaired_stops_no_other(bus, database, lost, monkeypatch, caplog):
    broken, other = lost(), lost()
    resend = lost_messages.transitions.resend

    def resend_unless_broken(connection, attempt, **options):
        if attempt.workflow_id == broken.workflow_id:
            raise ValueError("no luck")
        return resend(connection, attempt, **options)

    monkeypatch.setattr(lost_messages.transitions, "resend", resend_unless_broken)
    assert sweep(bus) == 1
    assert messages(database) == [other.reload().steps[-1].message_id]
    assert f"The sweep cannot repair run {broken.workflow_id}" in caplog.text
    assert "no luck" in caplog.text
