"""Signals, deadlines and workers that meet: none is lost, none is taken twice."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from sqlalchemy.orm import Session
from support.driving import Driver
from support.racing import at_once, waiting_for_a_lock
from support.waiting import eventually

from pgbus import Workflow, register_subject, step
from pgbus.engine.errors import InvalidTransition, NotOngoing
from pgbus.engine.runner import waits

ROUNDS = 200
WEEK = timedelta(days=7)


class Sloop:
    def __init__(self, name):
        self.name = name


register_subject(Sloop, id_of=lambda ferry: ferry.name, load=lambda name, _session: Sloop(name))


class Passage(Workflow[Sloop]):
    """One step before its gate, which tells that it runs; what ran behind the gate is noted."""

    got: ClassVar[list[Any]] = []
    sailing: ClassVar[threading.Event]

    @step
    def sail(self):
        self.sailing.set()

    @step(wait_for="open")
    def lock(self):
        self.got.append((self.workflow_id, self.require_signal().signal_id))


class Halting(Workflow):
    """Its gate's guard stops where the test wants it."""

    arrived: ClassVar[threading.Event]
    leave: ClassVar[threading.Event]

    def halts(self):
        self.arrived.set()
        return not self.leave.wait(20)

    @step(wait_for="open", skip_if="halts")
    def lock(self): ...


class Ticking(Workflow):
    """Takes ten signals of one name."""

    got: ClassVar[list[Any]] = []

    def tick(self):
        self.got.append(self.require_signal().signal_id)

    one, two, three, four, five, six, seven, eight, nine, ten = (
        step("tick", wait_for="tick") for _ in range(10)
    )


class Impatient(Workflow):
    @step(wait_for="go", wait_timeout=WEEK)
    def pauses(self): ...

    @step(wait_for="go", wait_timeout=WEEK, on_timeout="run")
    def runs(self):
        self.output(timed_out=self.timed_out)

    @step(wait_for="go", wait_timeout=WEEK, on_timeout="notify")
    def notifies(self): ...


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(Passage, "got", [])
    monkeypatch.setattr(Passage, "sailing", threading.Event(), raising=False)
    monkeypatch.setattr(Ticking, "got", [])
    monkeypatch.setattr(Halting, "arrived", threading.Event(), raising=False)
    monkeypatch.setattr(Halting, "leave", threading.Event(), raising=False)


@pytest.fixture
def driver(bus):
    return Driver(bus)


@contextmanager
def beside(work):
    """Runs `work` in a thread of its own; its result, or its error, comes at the end."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield future
        future.result(30)


def statuses(run):
    return [str(signal.status) for signal in run.signals]


def told(run, *kinds):
    return [str(event.event) for event in run.events if event.event in kinds]


def assert_taken_once(run):
    assert run.reload().status == "finished"
    (signal,) = run.signals
    assert signal.status == "consumed"
    assert told(run, "signal_claimed") == ["signal_claimed"]
    assert Passage.got.count((run.workflow_id, signal.signal_id)) == 1


def test_a_signal_sent_while_a_worker_is_on_its_way_to_the_gate_is_taken_once(bus, driver):
    for _ in range(ROUNDS):
        Passage.sailing.clear()
        run = Passage.start()

        def send(run=run):
            assert Passage.sailing.wait(20)
            run.signal("open")

        at_once(send, driver.drain)
        driver.drain()
        assert_taken_once(run)
    assert len(Passage.got) == ROUNDS


def test_a_signal_and_the_claim_at_its_gate_meet_whoever_is_first(bus, driver):
    parked = Counter()
    for _ in range(ROUNDS):
        run = Passage.start()
        driver.perform(*driver.take())
        (delivery,) = driver.take()
        at_once(
            lambda run=run: run.signal("open"), lambda delivery=delivery: driver.perform(delivery)
        )
        driver.drain()
        assert_taken_once(run)
        parked[bool(told(run, "step_waiting"))] += 1
    assert set(parked) == {False, True}, "one side was always first: this tested no race"


def test_of_two_signals_for_a_waiting_step_one_wakes_it_and_one_stays(bus, driver):
    for _ in range(ROUNDS // 4):
        run = Passage.start()
        driver.drain()
        at_once(*[lambda run=run: run.signal("open")] * 2)
        assert sorted(statuses(run)) == ["claimed", "pending"]
        assert driver.drain() == 1
        assert sorted(statuses(run)) == ["consumed", "pending"]
        assert run.reload().status == "finished"


def test_many_senders_and_workers_give_each_step_a_signal_of_its_own(bus):
    drivers = [Driver(bus, name=f"w:{n}") for n in range(2)]
    for _ in range(ROUNDS // 10):
        run = Ticking.start()
        Ticking.got.clear()
        done = threading.Event()

        def work(driver, run=run, done=done):
            while not (done.is_set() and run.reload().status in ("waiting", "finished")):
                driver.drain()

        def send(run=run):
            for _ in range(5):
                run.signal("tick")

        workers = [threading.Thread(target=work, args=[driver]) for driver in drivers]
        for worker in workers:
            worker.start()
        at_once(send, send)
        eventually(lambda run=run: run.reload().status == "finished")
        done.set()
        for worker in workers:
            worker.join()
        assert statuses(run) == ["consumed"] * 10
        assert sorted(Ticking.got) == [signal.signal_id for signal in run.signals]


def test_of_many_deliveries_with_one_key_one_is_stored(bus, driver):
    for _ in range(ROUNDS // 10):
        run = Passage.start()
        driver.drain()
        sent = at_once(*[lambda run=run: run.signal("open", idempotency_key="event-7")] * 6)
        assert sorted(signal.duplicate_delivery for signal in sent) == [False] + [True] * 5
        assert len({signal.signal_id for signal in sent}) == 1
        driver.drain()
        assert_taken_once(run)


@pytest.mark.parametrize("commits", [True, False])
def test_a_worker_waits_at_the_gate_for_a_senders_open_transaction(bus, database, driver, commits):
    run = Passage.start()
    driver.perform(*driver.take())
    with Session(database.engine) as session:
        run.signal("open", session=session)
        (delivery,) = driver.take()
        assert delivery.verdict == "locked"
        with beside(lambda: driver.perform(delivery)) as performed:
            eventually(lambda: waiting_for_a_lock(database))
            assert not performed.done()
            if commits:
                session.commit()
            else:
                session.rollback()
    if commits:
        assert_taken_once(run)
        assert told(run, "step_waiting") == []
    else:
        assert (run.reload().status, run.signals) == ("waiting", [])


def test_a_sender_waits_for_a_worker_that_is_at_the_gate_and_wakes_what_it_parked(
    bus, database, driver
):
    run = Halting.start()
    with beside(driver.drain):
        assert Halting.arrived.wait(20)
        with beside(lambda: run.signal("open")) as sent:
            eventually(lambda: waiting_for_a_lock(database))
            assert not sent.done()
            Halting.leave.set()
    driver.drain()
    assert (run.reload().status, statuses(run)) == ("finished", ["consumed"])
    assert told(run, "step_waiting", "signal_received") == ["step_waiting", "signal_received"]


def test_a_signal_that_meets_a_pause_is_kept_for_resume(bus, driver):
    for _ in range(ROUNDS // 4):
        run = Passage.start()
        driver.drain()
        at_once(
            lambda run=run: run.signal("open"),
            lambda run=run: Passage.find(run.workflow_id).pause(),
        )
        assert (run.reload().status, statuses(run)) == ("paused", ["claimed"])
        driver.drain()
        run.resume()
        driver.drain()
        assert_taken_once(run)


def test_a_signal_that_meets_a_cancel_is_consumed_or_refused(bus, driver):
    outcomes = Counter()
    for number in range(ROUNDS // 4):
        ferry = Sloop(f"ferry {number}")
        run = Passage.start(ferry)
        driver.drain()
        sent, _ = at_once(
            lambda ferry=ferry: Passage.signal(ferry, "open"),
            lambda run=run: Passage.find(run.workflow_id).cancel(),
        )
        refused = isinstance(sent, NotOngoing)
        outcomes[refused] += 1
        assert run.reload().status == "cancelled"
        assert statuses(run) == ([] if refused else ["consumed"])
    assert driver.drain() <= outcomes[False]


# Deadlines


@pytest.fixture
def overdue(bus, database, driver):
    """Starts runs that wait at this step past their deadline."""

    def overdue(step_name):
        run = Impatient.start().pause().resume_at(step_name)
        driver.drain()
        database.rows(
            "UPDATE pgbus.workflow_steps SET timeout_at = clock_timestamp() - interval '1 minute'"
            " WHERE workflow_id = %s AND timeout_at IS NOT NULL",
            run.workflow_id,
        )
        return run.reload()

    return overdue


@pytest.fixture
def expire(bus):
    def expire(run, name="sweep:1"):
        return waits.expire(bus.services, Driver(bus, name=name).worker, run.workflow_id)

    return expire


def newest(run):
    return run.reload().steps[-1]


@pytest.mark.parametrize("step_name", ["pauses", "runs"])
def test_of_a_deadline_and_a_signal_one_wins(bus, driver, overdue, expire, step_name):
    for _ in range(ROUNDS // 4):
        run = overdue(step_name)
        expired, _ = at_once(lambda run=run: expire(run), lambda run=run: run.signal("go"))
        assert told(run, "wait_timed_out") == ["wait_timed_out"] * expired
        assert statuses(run) == (["pending"] if expired else ["claimed"])
        assert newest(run).timed_out is (expired and step_name == "runs")
        run.cancel()


def test_a_late_notice_and_a_signal_may_both_be_and_the_signal_wakes(bus, driver, overdue, expire):
    for _ in range(ROUNDS // 4):
        run = overdue("notifies")
        at_once(lambda run=run: expire(run), lambda run=run: run.signal("go"))
        assert (run.reload().status, statuses(run)) == ("ready", ["claimed"])
        driver.drain()
        assert (run.reload().status, statuses(run)) == ("finished", ["consumed"])


@pytest.mark.parametrize("step_name", ["pauses", "runs", "notifies"])
def test_of_two_sweeps_one_ends_the_wait(bus, overdue, expire, step_name):
    for _ in range(ROUNDS // 8):
        run = overdue(step_name)
        ended = at_once(lambda run=run: expire(run, "one:1"), lambda run=run: expire(run, "two:2"))
        assert sorted(ended) == [False, True]
        assert told(run, "wait_timed_out") == ["wait_timed_out"]
        run.reload().cancel()


def test_of_a_deadline_and_a_pause_the_deadline_never_fires_after_the_pause(bus, overdue, expire):
    for _ in range(ROUNDS // 4):
        run = overdue("runs")
        expired, paused = at_once(
            lambda run=run: expire(run), lambda run=run: Impatient.find(run.workflow_id).pause()
        )
        assert not isinstance(paused, InvalidTransition)
        assert run.reload().status == "paused"
        assert newest(run).status == ("scheduled" if expired else "waiting")
        run.cancel()
