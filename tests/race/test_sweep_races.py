"""Sweeps beside each other, beside the workers whose attempts they take, and beside verbs."""

from __future__ import annotations

import pytest
from support.driving import Driver
from support.racing import at_once
from support.replay import told
from support.scripts import Scripted, script
from support.sweeps import age, turn

from pgbus.engine.states import Event, RunStatus
from pgbus.engine.sweep.lost_messages import LostMessages
from pgbus.engine.sweep.stalls import Stalls

ROUNDS = 100


@pytest.fixture(autouse=True)
def nothing_scripted():
    script()


@pytest.fixture
def driver(bus):
    return Driver(bus)


def test_of_two_sweeps_one_stalls_each_attempt(bus, driver, database):
    runs = [Scripted.start() for _ in range(ROUNDS)]
    for _ in runs:
        driver.take()
    age(database, "2 hours")
    counts = at_once(lambda: Stalls().sweep(turn(bus)), lambda: Stalls().sweep(turn(bus)))
    assert sum(counts) <= ROUNDS
    Stalls().sweep(turn(bus))
    for run in runs:
        assert told(run.reload()).count(Event.STALL_DETECTED) == 1
        assert run.status is RunStatus.PAUSED


def test_of_two_sweeps_one_sends_each_message(bus, driver, database):
    for _ in range(ROUNDS):
        Scripted.start()
    database.rows("DELETE FROM pgmq.q_pgbus_workflows")
    age(database, "2 hours")
    counts = at_once(
        lambda: LostMessages().sweep(turn(bus)), lambda: LostMessages().sweep(turn(bus))
    )
    sent = database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows")
    assert sum(counts) == sent <= ROUNDS
    LostMessages().sweep(turn(bus))
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == ROUNDS
    driver.drain()
    assert database.value("SELECT bool_and(status = 'finished') FROM pgbus.workflows")


def test_an_attempt_either_completes_or_stalls(bus, database):
    for _ in range(ROUNDS):
        run = Scripted.start()
        worker = Driver(bus)
        (claimed,) = worker.take()
        age(database, "2 hours", run)
        at_once(lambda: worker.perform(claimed), lambda: Stalls().sweep(turn(bus)))  # noqa: B023
        first = told(run.reload())
        if Event.STALL_DETECTED in first:
            assert run.status is RunStatus.PAUSED
            assert Event.STEP_COMPLETED not in first
            Stalls().sweep(turn(bus))
            run.cancel()
        else:
            worker.drain()
            assert run.reload().status is RunStatus.FINISHED
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0


def test_a_verb_and_a_sweep_take_turns(bus, driver, database):
    for _ in range(ROUNDS):
        run = Scripted.start()
        driver.take()
        age(database, "2 hours", run)
        at_once(run.cancel, lambda: Stalls().sweep(turn(bus)))
        assert told(run.reload())[-1] in (Event.CANCELLED, Event.PAUSED)
        if run.status is not RunStatus.CANCELLED:
            run.cancel()
        driver.redeliver()
        driver.drain()
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0
