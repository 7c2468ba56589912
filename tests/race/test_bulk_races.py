"""A verb on a whole group at the same time as others, a worker among them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session
from support.driving import Driver
from support.racing import at_once, waiting_for_a_lock
from support.sweeps import age
from support.waiting import eventually

from pgbus import Workflow, step
from pgbus.engine.insights import stuck
from pgbus.engine.insights.stuck import GroupKey, StuckReason
from pgbus.engine.runner import bulk
from pgbus.engine.states import Verb

RUNS = 20


class Barge(Workflow):
    @step
    def load(self): ...


BARGE = f"{__name__}.Barge"
PAUSED = GroupKey(BARGE, "load", StuckReason.PAUSED_MANUAL, None)
OVERDUE = GroupKey(BARGE, "load", StuckReason.OVERDUE, None)


@pytest.fixture
def press(bus):
    """A press of a button on a page of this moment."""

    def press(group, verb):
        with bus.services.database.autocommit() as connection:
            moment = stuck.groups(connection, bus.settings).as_of

        def act():
            return bulk.act(
                bus.services,
                group,
                verb,
                stuck_before=moment,
                at_most=RUNS,
                actor="dashboard",
                reason=None,
            )

        return act

    return press


def test_a_run_that_somebody_moves_while_the_press_waits_for_it_is_left_alone(database, press):
    runs = [Barge.start().pause() for _ in range(3)]
    act = press(PAUSED, Verb.CANCEL)
    with Session(database.engine) as session, ThreadPoolExecutor(1) as pool:
        runs[1].resume(session=session)
        result = pool.submit(act)
        eventually(lambda: waiting_for_a_lock(database))
        session.commit()
        told = result.result(20)
    assert (told.done, told.moved_on, told.failed) == (2, 1, 0)
    assert [run.reload().status for run in runs] == ["cancelled", "ready", "cancelled"]


def test_of_two_presses_at_once_each_run_is_resumed_by_one(press):
    runs = [Barge.start().pause() for _ in range(RUNS)]
    act = press(PAUSED, Verb.RESUME)
    told = at_once(act, act)
    assert sum(result.done for result in told) == RUNS
    assert [result.failed for result in told] == [0, 0]
    assert {str(run.reload().status) for run in runs} == {"ready"}
    for run in runs:
        assert [str(event.event) for event in run.events].count("resumed") == 1


def test_a_press_and_a_worker_at_once_leave_each_run_to_one_of_them(bus, database, press):
    runs = [Barge.start() for _ in range(RUNS)]
    age(database, "61 minutes")
    driver = Driver(bus)
    act = press(OVERDUE, Verb.CANCEL)
    told, _ = at_once(act, driver.drain)
    ended = [str(run.reload().status) for run in runs]
    # What the worker found locked it left; its message is visible again later.
    assert ended.count("cancelled") == told.done
    assert ended.count("finished") + told.done == RUNS
    assert told.failed == 0
