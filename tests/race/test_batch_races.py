"""Members that end at the same moment, batches that are added to as they finish, worker processes."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from sqlalchemy.orm import Session
from support.apps import gated_job, noted_job
from support.racing import at_once, waiting_for_a_lock
from support.sweeps import turn
from support.waiting import eventually
from support.workers import Stage, running

from pgbus import Batch, job
from pgbus.engine.errors import AlreadyFinished
from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage import batches, claims
from pgbus.engine.storage.claims import Idle, Taking, Worker
from pgbus.engine.sweep.batches import sweep

THREADS = 8
WORKER = Worker("test:1", None)


@job(queue="members")
def member(*_args): ...


@job(queue="callbacks")
def called(batch_id, properties): ...


def deliveries(bus, number):
    """Up to so many members' messages, taken at once."""
    with bus.services.database.autocommit() as connection:
        taken = claims.take(connection, WORKER, Taking("{pgbus_members}", number, 30))
    return [] if isinstance(taken, Idle) else taken


def callbacks(database):
    """How often each batch's callback was sent."""
    rows = database.rows(
        "SELECT message->'arguments'->'kwargs'->>'batch_id' FROM pgmq.q_pgbus_callbacks"
    )
    return Counter(batch_id for (batch_id,) in rows)


def miscounted(database):
    """The batches that are not just as their members' rows say, finished and counted."""
    return database.rows("""
        SELECT b.batch_id FROM pgbus.batches b
          LEFT JOIN LATERAL (SELECT count(*) AS members,
                                    count(*) FILTER (WHERE status = 'completed') AS completed,
                                    count(*) FILTER (WHERE status = 'dead_lettered') AS dead,
                                    count(*) FILTER (WHERE status = 'open') AS open
                               FROM pgbus.batch_jobs j WHERE j.batch_id = b.batch_id) j ON true
         WHERE NOT (b.finished_at IS NOT NULL AND j.open = 0
                    AND b.total_jobs = j.members AND b.completed_jobs = j.completed
                    AND b.dead_lettered_jobs = j.dead)
            OR EXISTS (SELECT FROM pgbus.batch_counters c WHERE c.batch_id = b.batch_id)
    """)


def test_members_that_all_end_at_the_same_moment_finish_their_batch_once(bus, database):
    for _ in range(40):
        with Batch.open(on_complete=called) as builder:
            builder.add_many(member, [()] * THREADS)
        taken = deliveries(bus, THREADS)
        at_once(*(partial(execute, bus.services, delivery) for delivery in taken))
        assert callbacks(database)[builder.batch_id] == 1
    assert miscounted(database) == []
    assert set(callbacks(database).values()) == {1}


@pytest.fixture
def patient(database):
    """Has whoever ends a counter's last member wait for its batch as long as it takes."""
    database.rows("ALTER FUNCTION pgbus.finish_batch SET lock_timeout = 0")


@contextmanager
def held_back(database, table):
    """Within it, a row of the table cannot be updated."""
    with database.connection() as connection:
        connection.execute(f"LOCK TABLE pgbus.{table} IN EXCLUSIVE MODE")
        yield connection.commit


@pytest.mark.usefixtures("patient")
def test_members_that_wait_for_their_batch_at_once_finish_it_once(bus, database):
    """All have left their counters, none has looked at the batch: the worst moment there is."""
    with Batch.open(on_complete=called) as builder:
        builder.add_many(member, [()] * THREADS)
    taken = deliveries(bus, THREADS)
    with held_back(database, "batches") as release, ThreadPoolExecutor(THREADS) as pool:
        ends = [pool.submit(execute, bus.services, delivery) for delivery in taken]
        eventually(lambda: waiting_for_a_lock(database) == THREADS)
        release()
        for end in ends:
            end.result(20)
    assert (miscounted(database), callbacks(database)) == ([], {builder.batch_id: 1})


def test_one_member_reported_by_many_at_once_counts_once(bus, database):
    for _ in range(20):
        with Batch.open(on_complete=called) as builder:
            builder.add_many(member, [()] * 2)
        first, second = deliveries(bus, 2)
        at_once(*[partial(execute, bus.services, first)] * THREADS)
        batch = Batch.find(builder.batch_id)
        assert (batch.completed_jobs, batch.open_jobs, batch.finished) == (1, 1, False)
        execute(bus.services, second)
    assert miscounted(database) == []
    assert set(callbacks(database).values()) == {1}


def test_a_batch_that_is_added_to_as_it_finishes_has_the_members_or_refuses_them(bus, database):
    """Three hundred rounds: the last member's end beside an addition."""
    outcomes = Counter()

    def adds(batch):
        try:
            with batch.adding() as more:
                more.add_many(member, [()] * 2)
        except AlreadyFinished:
            return "refused"
        return "added"

    for _ in range(300):
        with Batch.open(on_complete=called) as builder:
            builder.add(member)
        batch = Batch.find(builder.batch_id)
        [last] = deliveries(bus, 1)
        outcome, _ = at_once(partial(adds, batch), partial(execute, bus.services, last))
        batch.reload()
        if outcome == "added":
            assert (batch.total_jobs, batch.open_jobs, batch.finished) == (3, 2, False)
            assert callbacks(database)[batch.batch_id] == 0
            for delivery in deliveries(bus, 2):
                execute(bus.services, delivery)
        else:
            assert (batch.total_jobs, batch.finished) == (1, True)
        assert callbacks(database)[batch.batch_id] == 1
        outcomes[outcome] += 1
    assert miscounted(database) == []
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_members") == 0
    assert set(outcomes) == {"added", "refused"}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_batch_cannot_finish_before_a_host_that_adds_to_it_has_ended(bus, database, end):
    with Batch.open(on_complete=called) as builder:
        builder.add(member)
    batch = Batch.find(builder.batch_id)
    [last] = deliveries(bus, 1)
    with Session(database.engine) as session, ThreadPoolExecutor(1) as pool:
        with batch.adding(session=session) as more:
            more.add(member)
        ending = pool.submit(execute, bus.services, last)
        eventually(lambda: waiting_for_a_lock(database))
        assert not ending.done()
        getattr(session, end)()
        ending.result(20)
    assert batch.reload().finished == (end == "rollback")
    for delivery in deliveries(bus, 1) if end == "commit" else []:
        execute(bus.services, delivery)
    assert (miscounted(database), callbacks(database)) == ([], {batch.batch_id: 1})


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_host_that_adds_and_stays_open_stops_no_worker(bus, database, end):
    """Its addition's end finishes the batch, or the sweep where that was rolled back."""
    with Batch.open(on_complete=called) as builder:
        builder.add_many(member, [()] * THREADS)
    batch = Batch.find(builder.batch_id)
    taken = deliveries(bus, THREADS)
    with ThreadPoolExecutor(THREADS) as pool, Session(database.engine) as session:
        with batch.adding(session=session) as more:
            more.add(member)
        ends = [pool.submit(execute, bus.services, delivery) for delivery in taken]
        for ending in ends:
            ending.result(20)
        batch.reload()
        assert (batch.completed_jobs, batch.open_jobs, batch.finished) == (THREADS, 0, False)
        assert sweep(turn(bus)) == 0
        getattr(session, end)()
    if end == "commit":
        assert sweep(turn(bus)) == 0
        for delivery in deliveries(bus, 1):
            execute(bus.services, delivery)
    else:
        assert sweep(turn(bus)) == 1
    assert (miscounted(database), callbacks(database)) == ([], {batch.batch_id: 1})


def test_an_addition_waits_for_the_uncommitted_finish_and_is_refused(bus, database):
    def adds():
        with batch.adding() as more:
            more.add(member)

    with Batch.open(on_complete=called) as builder:
        builder.add(member)
    batch = Batch.find(builder.batch_id)
    with database.connection() as connection, ThreadPoolExecutor(1) as pool:
        connection.execute("SELECT pgbus.end_member(%s::uuid, 1, 'completed')", [builder.batch_id])
        adding = pool.submit(adds)
        eventually(lambda: waiting_for_a_lock(database))
        connection.commit()
        with pytest.raises(AlreadyFinished):
            adding.result(20)
    assert miscounted(database) == []


def test_members_of_other_counters_do_not_wait_for_one_that_is_held_back(bus, database):
    """A transaction that has ended a member, not committed yet, stops its counter's alone."""
    with Batch.open(on_complete=called) as builder:
        builder.add_many(member, [()] * 64)
    taken = deliveries(bus, 64)
    with database.connection() as connection, ThreadPoolExecutor(64) as pool:
        connection.execute("SELECT pgbus.end_member(%s::uuid, 1, 'completed')", [builder.batch_id])
        ends = [pool.submit(execute, bus.services, delivery) for delivery in taken[:16]]
        for end in ends[1:]:
            end.result(20)
        assert (ends[0].done(), waiting_for_a_lock(database)) == (False, 1)
        connection.commit()
        ends[0].result(20)
        for delivery in taken[16:]:
            execute(bus.services, delivery)
    assert (miscounted(database), callbacks(database)) == ([], {builder.batch_id: 1})


def test_a_withdrawal_beside_deliveries_and_ends_loses_no_count(bus, database):
    for _ in range(30):
        with Batch.open(on_complete=called) as builder:
            builder.add_many(member, [()] * 6)
        running_ones = deliveries(bus, 3)

        def withdraw(batch_id=builder.batch_id):
            with bus.services.database.autocommit() as connection:
                return batches.withdraw(connection, batch_id)

        def take_and_execute():
            for delivery in deliveries(bus, 3):
                execute(bus.services, delivery)

        at_once(
            withdraw,
            take_and_execute,
            *(partial(execute, bus.services, delivery) for delivery in running_ones),
        )
        take_and_execute()
        batch = Batch.find(builder.batch_id)
        assert (batch.open_jobs, batch.finished) == (0, True)
        assert batch.completed_jobs + batch.discarded_jobs == 6
    assert set(callbacks(database).values()) == {1}


def test_members_may_end_before_their_opener_returns_from_its_commit(bus, database):
    """Workers find them with the commit, and do not wait for the host to go on."""
    bus.ensure_queues(["pgbus_members"])
    stopping = threading.Event()

    def works():
        while not stopping.is_set():
            for delivery in deliveries(bus, 1):
                execute(bus.services, delivery)

    with ThreadPoolExecutor(2) as pool, Session(database.engine) as session:
        workers = [pool.submit(works) for _ in range(2)]
        try:
            for _ in range(100):
                with Batch.open(on_complete=called, session=session) as builder:
                    builder.add_many(member, [()] * 2)
                session.commit()
            eventually(lambda: not miscounted(database))
        finally:
            stopping.set()
        for worker in workers:
            worker.result(20)
    assert Counter(callbacks(database).values()) == {1: 100}


def test_two_workers_one_of_them_killed_count_each_member_once(bus, database):
    """Every message in hand is delivered again, also those that are still being worked on."""
    stage = Stage(database)
    with running(database) as first, running(database) as second:
        with stage.closed("body"):
            with Batch.open(on_complete=called) as builder:
                builder.add_many(gated_job, [(f"gated {n}",) for n in range(24)])
                builder.add_many(noted_job, [(f"noted {n}",) for n in range(200)])
            stage.arrived_at("body", number=16)
            first.kill()
            stage.redeliver("jobs")
        eventually(lambda: Batch.find(builder.batch_id).finished, within=30)
        second.stop()
    batch = Batch.find(builder.batch_id)
    assert (batch.total_jobs, batch.completed_jobs) == (224, 224)
    assert (miscounted(database), callbacks(database)) == ([], {builder.batch_id: 1})
    begun, ended = (
        [note for note in stage.notes if note.startswith(word)] for word in ("begin", "end")
    )
    assert (len(begun) > 24, len(set(ended))) == (True, 24)
