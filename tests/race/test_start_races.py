"""Starts at the same time, from threads, host transactions and processes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from support.hosts import ONE_RUN, Purchase, make_purchases, stored
from support.racing import at_once, waiting_for_a_lock
from support.waiting import eventually

from pgbus import Pgbus, Workflow, register_subject, step
from pgbus.engine.errors import AlreadyRunning
from pgbus.engine.runner import start

TEN = 10


class Van:
    """A subject whose ids are words, which a database sorts otherwise than Python."""

    def __init__(self, name):
        self.name = name


register_subject(Van, id_of=lambda van: van.name, load=lambda name, _session: Van(name))


class Delivery(Workflow):
    @step
    def drive(self): ...


class Pickup(Workflow, queue="pickups"):
    @step
    def drive(self): ...


def ten_at_once(work):
    """What `work(n)` gave for each n."""
    return at_once(*(partial(work, n) for n in range(TEN)))


def test_ten_starts_with_one_key_are_one_run(bus, database):
    runs = ten_at_once(lambda n: Delivery.options(idempotency_key="k").start(n=n))
    assert len({run.workflow_id for run in runs}) == 1
    assert sorted(run.duplicate_start for run in runs) == [False] + [True] * 9
    assert len({run.arguments["n"] for run in runs}) == 1
    assert stored(database) == ONE_RUN


def test_ten_starts_for_one_subject_are_one_run(bus, database):
    results = at_once(*[partial(Delivery.start, Purchase(id=1))] * TEN)
    [winner] = [one for one in results if not isinstance(one, AlreadyRunning)]
    losers = [one for one in results if isinstance(one, AlreadyRunning)]
    assert {one.run.workflow_id for one in losers} == {winner.workflow_id}
    assert stored(database) == ONE_RUN


def test_no_losers_host_transaction_is_aborted(bus, database):
    make_purchases(database, TEN)
    engine = create_engine(database.sqlalchemy_url("psycopg"), pool_size=TEN)

    def order(n):
        with Session(engine) as session:
            session.execute(text(f"UPDATE purchases SET state = 'before' WHERE id = {n + 1}"))
            try:
                Delivery.options(session=session).start(Purchase(id=1))
                won = True
            except AlreadyRunning:
                won = False
            session.execute(
                text(f"UPDATE purchases SET state = state || ' after' WHERE id = {n + 1}")
            )
            session.commit()
            return won

    assert sorted(ten_at_once(order)) == [False] * 9 + [True]
    engine.dispose()
    assert database.rows("SELECT DISTINCT state FROM purchases") == [("before after",)]
    assert stored(database) == ONE_RUN


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("by", ["key", "subject"])
def test_a_start_waits_for_the_uncommitted_one_in_its_way(bus, database, by, end):
    options = {"idempotency_key": "k"} if by == "key" else {}
    subject = Purchase(id=1) if by == "subject" else None
    with Session(database.engine) as session, ThreadPoolExecutor(1) as pool:
        first = Delivery.options(session=session, **options).start(subject)
        second = pool.submit(Delivery.options(**options).start, subject)
        eventually(lambda: waiting_for_a_lock(database))
        assert not second.done()
        getattr(session, end)()
        if end == "rollback":
            assert not second.result(20).duplicate_start
            assert bus.find(first.workflow_id) is None
        elif by == "key":
            assert second.result(20).workflow_id == first.workflow_id
        else:
            assert second.exception(20).run.workflow_id == first.workflow_id
    assert stored(database) == ONE_RUN


def test_a_bulk_start_waits_for_the_uncommitted_one_in_its_way(bus, database):
    with Session(database.engine) as session, ThreadPoolExecutor(1) as pool:
        first = Delivery.options(session=session).start(Purchase(id=2))
        items = [(Purchase(id=n), {}) for n in (1, 2, 3)]
        bulk = pool.submit(Delivery.start_many, items)
        eventually(lambda: waiting_for_a_lock(database))
        session.commit()
        results = bulk.result(20)
    assert results[1].run.workflow_id == first.workflow_id
    assert stored(database)["workflows"] == 3


def test_bulk_starts_with_the_same_subjects_in_other_orders_do_not_deadlock(
    bus, database, monkeypatch
):
    # Chunks that end at other subjects for each caller: only one order over all of them is safe.
    monkeypatch.setattr(start, "_CHUNK", 3)
    names = [f"{prefix}{n}" for n in range(6) for prefix in ("a", "B", "ä", "_")]

    def bulk(n):
        mine = names[n % 5 :] if n % 2 else names[::-1]
        return Delivery.start_many([(Van(name), {}) for name in mine])

    results = ten_at_once(bulk)
    started = [one for many in results for one in many if not isinstance(one, AlreadyRunning)]
    assert len(started) == len(names)
    assert stored(database)["workflows"] == len(names)


def test_two_bulk_starts_lock_their_subjects_in_one_order(bus, database, monkeypatch):
    """The first waits for 2 while it holds 1; the second must then wait for 1, holding nothing."""
    monkeypatch.setattr(start, "_CHUNK", 1)
    with Session(database.engine) as session, ThreadPoolExecutor(2) as pool:
        Delivery.options(session=session).start(Purchase(id=2))
        bulks = [
            pool.submit(Delivery.start_many, [(Purchase(id=n), {}) for n in order])
            for order in ((3, 2, 1), (1, 3, 2))
        ]
        eventually(lambda: waiting_for_a_lock(database) == 2)
        session.rollback()
        results = [one for bulk in bulks for one in bulk.result(20)]
    assert sorted(isinstance(one, AlreadyRunning) for one in results) == [False] * 3 + [True] * 3


def test_ten_buses_make_the_queue_and_the_definition_once(database):
    buses = [Pgbus(database_url=database.url) for _ in range(TEN)]
    runs = ten_at_once(lambda n: buses[n].start(Pickup))
    for bus in buses:
        bus.close()
    assert len({run.workflow_id for run in runs}) == TEN
    assert database.rows("SELECT queue_name FROM pgmq.meta") == [("pgbus_pickups",)]
    assert database.value("SELECT count(*) FROM pgbus.workflow_definitions") == 1
    assert stored(database)["messages"] == TEN


CHILD = """
import sys
from pgbus import Pgbus, Workflow, register_subject, step
class Child(Workflow):
    @step
    def act(self): ...
bus = Pgbus(database_url=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
run = Child.options(idempotency_key="k").start()
print(run.workflow_id, run.duplicate_start, flush=True)
bus.close()
"""


def test_ten_processes_with_one_key_start_one_run(database):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, database.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
            env=os.environ,
        )
        for _ in range(TEN)
    ]
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        answers = [child.communicate(timeout=60)[0].split() for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert len({workflow_id for workflow_id, _ in answers}) == 1
    assert sorted(duplicate for _, duplicate in answers) == ["False"] + ["True"] * 9
    assert stored(database) == ONE_RUN
