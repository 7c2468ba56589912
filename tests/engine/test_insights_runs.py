"""What a summary tells of a run, in the list and at the head of its page."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from support.sweeps import age, turn

from pgbus import FanOut, Workflow, fan_out, job, removed_step, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import RunNotFound
from pgbus.engine.insights import runs
from pgbus.engine.insights.runs import StepPlace
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import OnTimeout
from pgbus.engine.sweep.stalls import Stalls


class Base(DeclarativeBase):
    pass


class Parcel(Base):
    __tablename__ = "parcels"
    number: Mapped[str] = mapped_column(String, primary_key=True)


class Ship(Workflow[Parcel]):
    @step
    def pack(self):
        if self.arguments.get("fails"):
            raise ConnectionError("no carrier")
        if self.arguments.get("unwanted"):
            self.cancel(reason="not wanted")

    weigh = removed_step()

    @step(wait=86_400)
    def send(self): ...


@job
def greet(name: str) -> None: ...


class Await(Workflow):
    @step(wait_for="paid", wait_timeout=60, on_timeout="notify")
    def capture(self): ...

    @fan_out
    def greetings(self, batch: FanOut):
        batch.add_many(greet, [(name,) for name in "abc"])


class Endless(Workflow):
    @step(wait_for="paid")
    def waits(self): ...


@pytest.fixture
def summary(bus):
    def summary(run):
        with bus.services.database.autocommit() as connection:
            return runs.summary(connection, bus.settings, run.workflow_id)

    return summary


def test_it_says_whether_its_step_could_run_now(bus, driver, summary):
    run = Ship.start(Parcel(number="p-1"))
    waiting = summary(run)
    assert (waiting.current_step, waiting.due) == ("pack", True)
    assert (waiting.subject_type, waiting.subject_id) == ("Parcel", "p-1")
    driver.drain()
    scheduled = summary(run)
    assert (scheduled.current_step, scheduled.due) == ("send", False)
    assert scheduled.step_id > waiting.step_id


def test_one_that_waits_for_a_signal_tells_which_and_until_when(bus, driver, summary):
    run = Await.start()
    driver.drain()
    waiting = summary(run)
    assert (waiting.waiting_for, waiting.batch_id, waiting.late_since) == ("paid", None, None)
    assert (waiting.timeout_at - waiting.waiting_since).total_seconds() == pytest.approx(60, abs=1)
    assert (waiting.open_jobs, waiting.total_jobs) == (None, None)
    run.signal("paid")
    woken = summary(run)
    assert (woken.waiting_for, woken.waiting_since, woken.due) == ("paid", None, True)


def test_one_that_waits_for_jobs_tells_how_many_are_open(bus, driver, database, summary):
    def counted():
        told = summary(run)
        return told.open_jobs, told.total_jobs

    run = Await.start()
    driver.drain()
    assert counted() == (None, None)
    run.signal("paid")
    driver.drain()
    assert counted() == (3, 3)
    run.pause()
    database.rows("UPDATE pgbus.batch_counters SET open = open - 1 WHERE counter = 0")
    assert counted() == (2, 3)
    database.rows("DELETE FROM pgbus.batch_counters")
    assert counted() == (0, 3)
    database.rows("DELETE FROM pgbus.batches")
    assert counted() == (None, None)


@pytest.mark.rows_by_hand
def test_a_wait_past_its_deadline_tells_for_how_long(bus, driver, database, summary):
    run = Await.start()
    driver.drain()
    assert summary(run).overdue_seconds is None
    database.rows(
        "UPDATE pgbus.workflow_steps SET timeout_at = now() - interval '40 s' WHERE batch_id IS NULL"
    )
    assert 40 <= summary(run).overdue_seconds < 60


def test_what_the_deadline_does_is_told_of_a_step_that_has_one(bus, driver, summary, monkeypatch):
    run, endless, plain = Await.start(), Endless.start(), Ship.start()
    driver.drain()
    assert summary(run).on_timeout is OnTimeout.NOTIFY
    assert summary(run.pause()).on_timeout is OnTimeout.NOTIFY
    assert summary(endless).on_timeout is None
    assert summary(plain).on_timeout is None
    monkeypatch.setattr(registry, "_definitions", {})
    assert summary(run).on_timeout is None


def test_the_place_of_its_step_counts_live_steps_only(bus, driver, summary):
    run = Ship.start()
    assert summary(run).place == StepPlace(1, 2, "send")
    driver.drain()
    assert summary(run).place == StepPlace(2, 2, None)


@pytest.mark.rows_by_hand
def test_a_step_is_declared_removed_or_unknown(bus, database, summary, monkeypatch):
    def told():
        one = summary(run)
        return one.class_loaded, one.step_declared, one.step_removed, one.place is not None

    run = Ship.start()
    assert told() == (True, True, False, True)
    database.rows("UPDATE pgbus.workflows SET current_step = 'weigh'")
    assert told() == (True, False, True, False)
    database.rows("UPDATE pgbus.workflows SET current_step = 'label'")
    assert told() == (True, False, False, False)
    monkeypatch.setattr(registry, "_definitions", {})
    assert told() == (False, False, False, False)


def test_who_paused_or_ended_it_and_why_is_told_while_it_is_so(bus, driver, summary):
    def moved():
        told = summary(run)
        return told.moved_by, told.moved_because

    run = Ship.start()
    assert moved() == (None, None)
    run.pause(actor="cli:alice", reason="audit")
    assert moved() == ("cli:alice", "audit")
    run.resume(actor="cli:bob", reason="done")
    assert moved() == (None, None)
    run.pause(actor="cli:carol")
    assert moved() == ("cli:carol", None)
    run.cancel(actor="dashboard:dave", reason="duplicate")
    assert moved() == ("dashboard:dave", "duplicate")


def test_a_body_that_cancels_its_run_is_told_of_as_the_system(bus, driver, summary):
    run = Ship.start(unwanted=True)
    driver.drain()
    assert (summary(run).moved_by, summary(run).moved_because) == ("system", "not wanted")


@pytest.fixture
def why(summary):
    def why(run):
        told = summary(run)
        return told.stuck, told.stuck_since

    return why


def test_a_paused_run_is_stuck_since_it_paused(bus, driver, summary, why):
    failed, manual = Ship.start(fails=True), Endless.start()
    driver.drain()
    assert why(failed) == (StuckReason.PAUSED_ERROR, summary(failed).paused_at)
    assert why(manual) == (None, None)
    manual.pause()
    assert why(manual) == (StuckReason.PAUSED_MANUAL, summary(manual).paused_at)


def test_a_run_whose_worker_died_is_stuck_as_stalled(bus, driver, database, summary, why):
    run = Ship.start()
    driver.take()
    age(database, "2 hours", run)
    Stalls().sweep(turn(bus))
    assert why(run) == (StuckReason.STALLED, summary(run).paused_at)


def test_a_run_long_due_is_stuck_since_its_step_was_due(bus, database, summary, why):
    run = Ship.start()
    age(database, "59 minutes", run)
    assert why(run) == (None, None)
    age(database, "2 minutes", run)
    assert why(run) == (StuckReason.OVERDUE, summary(run).scheduled_at)


def test_a_long_wait_without_a_deadline_is_stuck_since_it_began(
    bus, driver, database, summary, why
):
    endless, ending = Endless.start(), Await.start()
    driver.drain()
    age(database, "6 days")
    assert why(endless) == (None, None)
    age(database, "2 days")
    assert why(endless) == (StuckReason.WAITING_OVERDUE, summary(endless).waiting_since)
    assert why(ending) == (None, None)


def test_the_settings_say_how_long_is_long(database, summary, bus):
    run = Ship.start()
    age(database, "2 minutes", run)
    short = replace(bus.settings, workflow_stall_threshold=timedelta(minutes=1))
    with bus.services.database.autocommit() as connection:
        told = runs.summary(connection, short, run.workflow_id)
    assert (summary(run).stuck, told.stuck) == (None, StuckReason.OVERDUE)


def test_a_run_that_does_not_exist_is_refused_by_its_id(bus, summary):
    run = Ship.start()
    with bus.services.database.autocommit() as connection:
        connection.rows("DELETE FROM {schema}.workflows")
    with pytest.raises(RunNotFound, match=run.workflow_id):
        summary(run)
