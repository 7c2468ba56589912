"""Attempts in progress past their timeout: the sweep gives them their stall action."""

from __future__ import annotations

from datetime import timedelta

import pytest
from blinker import signal
from support.driving import Driver
from support.replay import told
from support.scripts import Scripted, script
from support.sweeps import age, stopping_after, turn

from pgbus import Pgbus, Workflow, step
from pgbus.engine.definition import registry
from pgbus.engine.states import AttemptStatus, Detection, Event, Outcome, RunStatus
from pgbus.engine.storage import sweeping
from pgbus.engine.sweep import stalls, walk
from pgbus.engine.sweep.stalls import Stalls


class Slow(Workflow):
    @step
    def default(self): ...

    @step(timeout=60)
    def quick(self): ...

    @step(timeout=timedelta(hours=3))
    def long(self): ...

    @step(on_stall="reattempt")
    def reattempts(self): ...

    @step(on_stall="cancel")
    def cancels(self): ...

    @step(wait_for="paid")
    def waits(self): ...


@pytest.fixture
def hung(driver, database):
    """A run whose step a worker began so long ago."""

    def hung(step_name="default", since="2 hours"):
        run = Slow.start().pause().resume_at(step_name)
        while not any(taken.workflow_id == run.workflow_id for taken in driver.take()):
            pass
        age(database, since, run)
        return run.reload()

    return hung


def sweep(bus, **options):
    return Stalls().sweep(turn(bus, **options))


def stalled(runs):
    return [run.reload().steps[-1].error_class is not None for run in runs]


def test_an_attempt_past_the_threshold_pauses_its_run(bus, database, hung):
    run = hung()
    assert sweep(bus) == 1
    attempt = run.reload().steps[-1]
    assert (run.status, attempt.status, attempt.outcome) == (
        RunStatus.PAUSED, AttemptStatus.FAILED, Outcome.PAUSED
    )  # fmt: skip
    assert attempt.error_class == "pgbus.engine.errors.StepStalled"
    assert attempt.error_message == (
        "Attempt 2 of default ran past its timeout of 3600 s; test:1 began it at "
        f"{attempt.started_at.isoformat()}."
    )
    assert told(run)[-3:] == [Event.STALL_DETECTED, Event.STEP_FAILED, Event.PAUSED]
    assert run.events[-3].details == {"detection": "sweep"}
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows WHERE read_ct > 0") == 0
    assert sweep(bus) == 0


@pytest.mark.parametrize(
    ("step_name", "since", "found"),
    [
        ("default", "59 minutes", 0),
        ("default", "61 minutes", 1),
        ("quick", "59 seconds", 0),
        ("quick", "61 seconds", 1),
        ("long", "179 minutes", 0),
        ("long", "181 minutes", 1),
    ],
)
def test_a_steps_own_timeout_stands_for_the_threshold(bus, hung, step_name, since, found):
    hung(step_name, since)
    assert sweep(bus) == found


def test_a_hung_attempt_is_reattempted(bus, driver, hung):
    run = hung("reattempts")
    assert sweep(bus) == 1
    failed, following = run.reload().steps[-2:]
    assert (failed.outcome, failed.reattempted_by) == (Outcome.REATTEMPTED, "stall")
    assert following.status is AttemptStatus.SCHEDULED
    driver.drain()
    tries = [one.status for one in run.reload().steps if one.step_name == "reattempts"]
    assert tries == [AttemptStatus.FAILED, AttemptStatus.COMPLETED]


def test_a_hung_attempt_cancels_its_run(bus, hung):
    run = hung("cancels")
    assert sweep(bus) == 1
    assert run.reload().status is RunStatus.CANCELLED


def test_a_sweep_tells_of_the_stall(bus, hung):
    heard = []
    hung()
    with signal("pgbus.workflow.stall_detected").connected_to(heard.append):
        sweep(bus)
    assert [(one.step, one.detection) for one in heard] == [("default", Detection.SWEEP)]


def test_the_outcome_of_a_body_that_lives_is_late(bus, database, driver):
    def body(self):
        age(database, "2 hours")
        assert sweep(bus) == 1

    script(first=body)
    run = Scripted.start()
    driver.drain()
    assert run.reload().status is RunStatus.PAUSED
    assert run.steps[-1].status is AttemptStatus.FAILED
    assert told(run)[-1] is Event.LATE_COMPLETION_IGNORED


def test_a_stall_is_found_without_heartbeats(database):
    bus = Pgbus(database_url=database.url, visibility_heartbeat=False)
    run = bus.start(Slow)
    Driver(bus).take()
    age(database, "2 hours", run)
    assert sweep(bus) == 1
    assert run.reload().status is RunStatus.PAUSED
    bus.close()


def test_a_paused_run_with_an_overdue_attempt_is_left_alone(bus, database, hung):
    run = hung().pause()
    age(database, "1 day", run)
    trail = told(run.reload())
    assert sweep(bus) == 0
    assert (run.reload().status, told(run)) == (RunStatus.PAUSED, trail)


def test_a_wait_of_months_is_left_alone(bus, database, driver):
    run = Slow.start().pause().resume_at("waits")
    driver.drain()
    assert run.reload().status is RunStatus.WAITING
    age(database, "5 months", run)
    assert sweep(bus) == 0
    assert run.reload().status is RunStatus.WAITING


def test_a_run_that_moved_on_after_it_was_found_is_left_alone(bus, hung, monkeypatch):
    run = hung()
    find = sweeping.overruns

    def found_and_gone(*arguments, **options):
        found = find(*arguments, **options)
        run.cancel()
        return found

    monkeypatch.setattr(sweeping, "overruns", found_and_gone)
    assert sweep(bus) == 0
    assert told(run.reload())[-1] is Event.CANCELLED


def test_one_that_was_paused_after_it_was_found_is_left_alone(bus, hung, monkeypatch):
    run = hung()
    find = sweeping.overruns

    def found_and_paused(*arguments, **options):
        found = find(*arguments, **options)
        run.pause()
        return found

    monkeypatch.setattr(sweeping, "overruns", found_and_paused)
    assert sweep(bus) == 0
    assert run.reload().steps[-1].status is AttemptStatus.IN_PROGRESS


def test_a_stall_of_a_class_that_is_not_loaded_pauses(bus, hung, monkeypatch):
    run = hung("cancels")
    monkeypatch.delitem(registry._definitions, Slow.start().workflow_class)
    assert sweep(bus) == 1
    assert run.reload().status is RunStatus.PAUSED


def test_a_sweep_is_limited_to_the_oldest(bus, hung, monkeypatch):
    monkeypatch.setattr(stalls, "LIMIT", 2)
    monkeypatch.setattr(walk, "SLICE", 2)
    runs = [hung(since=f"{hours} hours") for hours in (2, 5, 3, 4)]
    assert sweep(bus) == 2
    assert stalled(runs) == [False, True, False, True]
    assert sweep(bus) == 2
    assert stalled(runs) == [True] * 4


def test_a_walk_that_ends_early_goes_on_where_it_stopped(bus, database, hung, monkeypatch):
    monkeypatch.setattr(walk, "SLICE", 1)
    first = hung(since="1 minute")
    run = hung()
    task = Stalls()
    assert task.sweep(turn(bus, stopping=stopping_after(1))) == 0
    later = hung(since="3 hours")
    age(database, "2 hours", first)
    assert task.sweep(turn(bus)) == 2
    assert stalled([first, run, later]) == [False, True, True]
    assert task.sweep(turn(bus)) == 1


def test_a_dispatcher_that_is_to_stop_ends_between_two_runs(bus, hung, monkeypatch):
    runs = [hung(since="3 hours"), hung()]
    # Asked before the only slice, and before each run.
    assert sweep(bus, stopping=stopping_after(2)) == 1
    assert stalled(runs) == [True, False]


def test_one_that_cannot_be_repaired_stops_no_other(bus, database, hung, caplog):
    broken, other = hung(since="3 hours"), hung()
    database.rows(
        "UPDATE pgbus.workflow_steps SET queue = 'gone' WHERE workflow_id = %s", broken.workflow_id
    )
    assert sweep(bus) == 1
    assert f"The sweep cannot repair run {broken.workflow_id}" in caplog.text
    assert stalled([broken, other]) == [False, True]


def test_one_that_is_locked_is_not_waited_for(bus, database, hung, caplog):
    locked, other = hung(since="3 hours"), hung()
    with database.connection() as connection:
        connection.execute(
            "SELECT 1 FROM pgbus.workflows WHERE workflow_id = %s FOR UPDATE", [locked.workflow_id]
        )
        assert sweep(bus) == 1
    assert f"run {locked.workflow_id}: another transaction has it locked" in caplog.text
    assert stalled([locked, other]) == [False, True]
    assert sweep(bus) == 1
