"""Errors reach the host's reporters: each failed attempt once, after its outcome is committed."""

import logging
from datetime import timedelta

import pytest
from support.driving import Driver
from support.sweeps import age, turn

from pgbus import (
    InvalidSetting,
    Pgbus,
    StepStalled,
    WaitTimedOut,
    Workflow,
    job,
    on_exception,
    step,
)
from pgbus.engine.jobs.execute import execute
from pgbus.engine.sweep import expired_waits
from pgbus.engine.sweep.stalls import Stalls


class FlakyError(Exception): ...


class Reported(Workflow):
    @step
    def act(self):
        raise FlakyError(f"attempt {self.attempt}")


class Guarded(Workflow):
    @step(skip_if=lambda self: 1 / 0)
    def act(self): ...


class Late(Workflow):
    @step(wait_for="paid", wait_timeout=timedelta(hours=1))
    def waits(self): ...


def workflow_that(report, *, max_reattempts=1):
    """A class whose step always fails, with a policy of this rule."""

    class Ruled(Reported):
        policies = (
            on_exception(
                FlakyError, action="reattempt", max_reattempts=max_reattempts, report=report
            ),
        )

    return Ruled


@job(max_retries=1)
def fails():
    raise FlakyError("job")


reports = []


def note(error, context):
    reports.append((error, context))


@pytest.fixture
def bus_options():
    reports.clear()
    return {"error_reporters": [note]}


def context_of(run, step_name, attempt, outcome):
    return {
        "action": "step",
        "workflow_class": run.workflow_class,
        "workflow_id": run.workflow_id,
        "step": step_name,
        "attempt": attempt,
        "outcome": outcome,
    }


def test_an_error_of_a_body_is_reported_with_its_attempt_and_outcome(bus, driver):
    run = Reported.start()
    driver.drain()
    [(error, context)] = reports
    assert isinstance(error, FlakyError)
    assert error.__traceback__ is not None
    assert context == context_of(run, "act", 1, "paused")


def test_a_guards_error_counts_like_one_of_the_body(bus, driver):
    run = Guarded.start()
    driver.drain()
    [(error, context)] = reports
    assert isinstance(error, ZeroDivisionError)
    assert context == context_of(run, "act", 1, "paused")


@pytest.mark.parametrize(
    ("report", "reported"),
    [
        ("always", ["attempt 1", "attempt 2"]),
        ("terminal_only", ["attempt 2"]),
        ("never", []),
    ],
)
def test_each_failed_attempt_is_reported_by_its_policys_rule(bus, driver, report, reported):
    workflow_that(report).start()
    driver.drain()
    assert [str(error) for error, _ in reports] == reported


def test_an_error_whose_policy_raises_is_reported_whatever_the_policy_says(bus, driver):
    class Broken(Reported):
        @on_exception(FlakyError, report="never")
        def decide(self, error):
            raise LookupError

    Broken.start()
    driver.drain()
    assert [str(error) for error, _ in reports] == ["attempt 1"]


def test_a_missed_deadline_and_a_stall_are_reported_by_the_sweep(bus, database, driver):
    late = Late.start()
    driver.drain()
    stalled = Reported.start()
    Driver(bus, name="dead:1").take()
    age(database, "2 hours")
    expired_waits.sweep(turn(bus))
    Stalls().sweep(turn(bus))
    assert [(type(error), context) for error, context in reports] == [
        (WaitTimedOut, context_of(late, "waits", 1, "paused")),
        (StepStalled, context_of(stalled, "act", 1, "paused")),
    ]


def test_what_a_body_raises_after_its_attempt_was_taken_away_is_not_reported(bus, driver):
    class Cancelled(Workflow):
        @step
        def act(self):
            bus.find(self.workflow_id).cancel()
            raise FlakyError

    Cancelled.start()
    driver.drain()
    assert reports == []


def test_the_report_comes_after_the_commit(bus_options, database):
    found = []
    bus = Pgbus(
        database_url=database.url,
        error_reporters=[lambda _, told: found.append(bus.find(told["workflow_id"]).status)],
    )
    Reported.start()
    Driver(bus).drain()
    bus.close()
    assert found == ["paused"]


def test_a_failed_job_is_reported_for_each_delivery(bus, database, driver):
    message_id = fails.enqueue()
    for _ in range(2):
        driver.redeliver()
        [delivery] = driver.take()
        execute(bus.services, delivery)
    facts = {"action": "job", "job": fails.name, "queue": "pgbus_default", "message_id": message_id}
    assert [context for _, context in reports] == [
        facts | {"read_count": 1, "outcome": "failed"},
        facts | {"read_count": 2, "outcome": "dead_lettered"},
    ]
    assert {str(error) for error, _ in reports} == {"job"}


def test_reporters_that_raise_are_logged_and_the_others_hear(database, caplog):
    class Fatal(BaseException): ...

    def broken(_error, context):
        context.clear()
        raise Fatal

    reports.clear()
    bus = Pgbus(database_url=database.url, error_reporters=[broken, note])
    run = Reported.start()
    with caplog.at_level(logging.ERROR, "pgbus.observe"):
        Driver(bus).drain()
    bus.close()
    [(_, context)] = reports
    assert context == context_of(run, "act", 1, "paused")
    assert "An error reporter raised" in caplog.text


def test_a_reporter_must_be_callable(database):
    with pytest.raises(InvalidSetting, match="error_reporters: holds 'sentry'"):
        Pgbus(database_url=database.url, error_reporters=["sentry"])
    with pytest.raises(InvalidSetting, match="error_reporters: must be a list of callables"):
        Pgbus(database_url=database.url, error_reporters=note)
