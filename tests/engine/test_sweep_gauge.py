"""How many runs are where, and how many are stuck and why."""

from __future__ import annotations

from collections import Counter

import pytest
from blinker import signal
from support.sweeps import age, turn

from pgbus import Workflow, step
from pgbus.engine.definition import registry
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import RunStatus
from pgbus.engine.sweep import gauge
from pgbus.engine.sweep.stalls import Stalls


class Counted(Workflow):
    @step
    def first(self):
        if self.arguments.get("raises"):
            raise ValueError("no luck")

    @step(wait_for="paid")
    def waits(self): ...


class Late(Workflow):
    @step(wait_for="paid", wait_timeout=lambda self: None)
    def waits(self): ...


NAME = f"{__name__}.Counted"


@pytest.fixture
def measure(bus):
    """Counts, and gives what an application hears of it."""

    def measure():
        heard = []
        with signal("pgbus.workflow.gauge").connected_to(heard.append):
            gauge.measure(turn(bus))
        (counted,) = heard
        return counted

    return measure


def positive(counts):
    return {kind: number for kind, number in counts.items() if number}


def test_ongoing_runs_are_counted_by_class_and_status(bus, driver, measure):
    done = Counted.start()
    driver.drain()
    done.cancel()
    for _ in range(2):
        Counted.start()
    driver.drain()
    Counted.start().pause()
    Counted.start()
    Late.start()
    assert positive(measure().by_status) == {
        (NAME, RunStatus.WAITING): 2,
        (NAME, RunStatus.PAUSED): 1,
        (NAME, RunStatus.READY): 1,
        (f"{__name__}.Late", RunStatus.READY): 1,
    }
    while not driver.take():
        pass
    assert positive(measure().by_status)[NAME, RunStatus.PERFORMING] == 1


def test_every_known_class_is_told_of_with_zeros(bus, measure, monkeypatch):
    gone = Late.start()
    gone.cancel()
    monkeypatch.delitem(registry._definitions, gone.workflow_class)
    counted = measure()
    classes = {definition.name for definition in registry.definitions()} | {gone.workflow_class}
    ongoing = [status for status in RunStatus if status not in ("finished", "cancelled")]
    assert counted.by_status == {(name, status): 0 for name in classes for status in ongoing}
    assert counted.stuck == {(name, reason): 0 for name in classes for reason in StuckReason}


def test_stuck_runs_are_counted_by_reason(bus, database, driver, measure):
    stalled = Counted.start()
    driver.take()
    age(database, "2 hours", stalled)
    Stalls().sweep(turn(bus))
    for _ in range(2):
        Counted.start(raises=True)
    driver.drain()
    for _ in range(3):
        Counted.start().pause()
    for _ in range(4):
        age(database, "61 minutes", Counted.start())
    assert positive(measure().stuck) == {
        (NAME, StuckReason.STALLED): 1,
        (NAME, StuckReason.PAUSED_ERROR): 2,
        (NAME, StuckReason.PAUSED_MANUAL): 3,
        (NAME, StuckReason.OVERDUE): 4,
    }


@pytest.mark.parametrize(
    ("since", "deadline", "number"),
    [("6 days", None, 0), ("8 days", None, 1), ("8 days", "1 day", 0)],
)
def test_a_long_wait_without_a_deadline_is_overdue(
    bus, database, driver, measure, since, deadline, number
):
    run = Counted.start()
    driver.drain()
    age(database, since, run)
    database.rows("UPDATE pgbus.workflow_steps SET timeout_at = now() + %s::interval"
                  " WHERE status = 'waiting'", deadline)  # fmt: skip
    assert measure().stuck[NAME, StuckReason.WAITING_OVERDUE] == number


def test_one_that_is_paused_is_stuck_for_that_alone(bus, database, driver, measure):
    run = Counted.start()
    driver.drain()
    age(database, "8 days", run)
    run.pause()
    overdue = Counted.start().pause()
    age(database, "1 day", overdue)
    assert positive(measure().stuck) == {(NAME, StuckReason.PAUSED_MANUAL): 2}


def test_only_the_newest_attempt_tells_why(bus, driver, measure):
    run = Counted.start(raises=True)
    driver.drain()
    run.resume().pause()
    assert positive(measure().stuck) == {(NAME, StuckReason.PAUSED_MANUAL): 1}


def test_a_step_that_is_not_due_for_long_is_not_overdue(bus, database, measure):
    age(database, "59 minutes", Counted.start())
    assert Counter(measure().stuck.values()).keys() == {0}
