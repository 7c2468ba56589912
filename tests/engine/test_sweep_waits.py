"""Waits past their deadline: the sweep gives each its step's `on_timeout`."""

from __future__ import annotations

import pytest
from support.replay import told
from support.sweeps import age, stopping_after, turn

from pgbus import Workflow, step
from pgbus.engine.states import Event, RunStatus
from pgbus.engine.sweep import expired_waits


class Waiting(Workflow):
    @step(wait_for="paid", wait_timeout=60, on_timeout="cancel")
    def cancels(self): ...


class Late(Workflow):
    @step(wait_for="paid", wait_timeout=60, on_timeout="notify")
    def notifies(self): ...


class Patient(Workflow):
    @step(wait_for="paid")
    def waits(self): ...


@pytest.fixture
def waiting(driver, database):
    """A run that began to wait so long ago."""

    def waiting(since="2 minutes", workflow=Waiting):
        run = workflow.start()
        driver.drain()
        assert run.reload().status is RunStatus.WAITING
        age(database, since, run)
        return run.reload()

    return waiting


def sweep(bus, **options):
    return expired_waits.sweep(turn(bus, **options))


def statuses(*runs):
    return [run.reload().status for run in runs]


def test_a_wait_past_its_deadline_times_out(bus, waiting):
    run = waiting()
    assert sweep(bus) == 1
    assert run.reload().status is RunStatus.CANCELLED
    assert Event.WAIT_TIMED_OUT in told(run)
    assert sweep(bus) == 0


def test_a_wait_before_its_deadline_goes_on(bus, waiting):
    run = waiting(since="50 seconds")
    assert sweep(bus) == 0
    assert run.reload().status is RunStatus.WAITING


def test_a_wait_without_a_deadline_goes_on_for_months(bus, waiting):
    run = waiting(since="5 months", workflow=Patient)
    assert sweep(bus) == 0
    assert run.reload().status is RunStatus.WAITING


def test_the_wait_of_a_paused_run_does_not_time_out(bus, database, waiting):
    run = waiting(since="1 second").pause()
    age(database, "1 day", run)
    assert sweep(bus) == 0
    assert run.reload().status is RunStatus.PAUSED


def test_a_sweep_that_missed_several_deadlines_tells_of_them_once(bus, waiting):
    run = waiting(since="5 hours", workflow=Late)
    assert [sweep(bus), sweep(bus)] == [1, 0]
    assert told(run.reload()).count(Event.WAIT_TIMED_OUT) == 1


def test_a_sweep_is_bounded_and_the_oldest_deadlines_are_first(bus, waiting, monkeypatch):
    monkeypatch.setattr(expired_waits, "BATCH", 2)
    monkeypatch.setattr(expired_waits, "BATCHES", 2)
    runs = [waiting(since=f"{minutes} minutes") for minutes in (2, 6, 3, 5, 4)]
    assert sweep(bus) == 4
    assert statuses(*runs) == [RunStatus.WAITING] + [RunStatus.CANCELLED] * 4
    assert sweep(bus) == 1


def test_deadlines_of_the_same_moment_are_all_found(bus, database, waiting, monkeypatch):
    monkeypatch.setattr(expired_waits, "BATCH", 2)
    runs = [waiting() for _ in range(5)]
    database.rows("UPDATE pgbus.workflow_steps SET timeout_at = now() - interval '1 second'")
    assert sweep(bus) == 5
    assert set(statuses(*runs)) == {RunStatus.CANCELLED}


def test_those_that_cannot_be_repaired_stop_no_other(bus, waiting, monkeypatch, caplog):
    monkeypatch.setattr(expired_waits, "BATCH", 2)
    broken = [waiting(since="3 minutes"), waiting(since="3 minutes")]
    other = waiting()
    expire = expired_waits.waits.expire

    def expire_unless_broken(services, worker, workflow_id):
        if workflow_id in {run.workflow_id for run in broken}:
            raise SystemExit("no luck")
        return expire(services, worker, workflow_id)

    monkeypatch.setattr(expired_waits.waits, "expire", expire_unless_broken)
    assert sweep(bus) == 1
    assert statuses(*broken, other) == [
        RunStatus.WAITING, RunStatus.WAITING, RunStatus.CANCELLED
    ]  # fmt: skip
    assert all(f"cannot repair run {run.workflow_id}" in caplog.text for run in broken)


def test_one_that_is_locked_is_not_waited_for(bus, database, waiting, caplog):
    locked, other = waiting(since="3 minutes"), waiting()
    with database.connection() as connection:
        connection.execute(
            "SELECT 1 FROM pgbus.workflows WHERE workflow_id = %s FOR UPDATE", [locked.workflow_id]
        )
        assert sweep(bus) == 1
    assert statuses(locked, other) == [RunStatus.WAITING, RunStatus.CANCELLED]
    assert "another transaction has it locked" in caplog.text


def test_a_dispatcher_that_is_to_stop_ends_between_two_runs(bus, waiting):
    runs = [waiting(since="3 minutes"), waiting()]
    assert sweep(bus, stopping=stopping_after(1)) == 1
    assert statuses(*runs) == [RunStatus.CANCELLED, RunStatus.WAITING]
