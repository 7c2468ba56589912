"""Two who press at once, a worker among them, and a press that dies in the middle."""

from __future__ import annotations

from functools import partial

import pytest
from support.driving import Driver
from support.racing import at_once
from support.waiting import eventually
from support.workers import Child

from pgbus import Batch, job
from pgbus.engine.insights import reading
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.jobs import bulk, control
from pgbus.engine.jobs.bulk import Press
from pgbus.engine.jobs.control import Effect
from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage.claims import Idle

JOBS = 20
QUEUE, DEAD = "pgbus_contested", "pgbus_contested_dlq"


@job(queue="contested", max_retries=0)
def contested(*, fails):
    if fails:
        raise LookupError("no such thing")


@pytest.fixture
def members(bus):
    """A batch of jobs that wait."""
    with bus.active(), Batch.open() as batch:
        for _ in range(JOBS):
            batch.add(contested, fails=False)
    return batch.batch_id


@pytest.fixture
def letters(bus, database):
    """Dead letters."""
    with bus.active():
        for _ in range(JOBS):
            contested.enqueue(fails=True)
    drain(bus)
    return database.value(f"SELECT count(*) FROM pgmq.q_{DEAD}")


def drain(bus):
    driver = Driver(bus)
    while not isinstance(taken := driver.take(), Idle):
        for delivery in taken:
            execute(bus.services, delivery)


def messages(database, table):
    return database.value(f"SELECT count(*) FROM pgmq.{table}")


def press(bus, verb):
    with reading.reading(bus.services) as connection:
        until = reading.now(connection)
    return partial(
        bulk.act, bus.services, verb, JobFilter(), until=until, at_most=500, actor="alice"
    )


def test_of_two_who_discard_a_member_one_does_and_it_counts_once(bus, members):
    for message_id in range(1, JOBS + 1):
        discard = partial(control.discard_job, bus.services, QUEUE, message_id, actor="alice")
        assert sorted(at_once(discard, discard)) == [Effect.DONE, Effect.GONE]
    with bus.active():
        batch = Batch.find(members)
    assert (batch.discarded_jobs, batch.finished) == (JOBS, True)


def test_a_press_that_discards_and_a_worker_leave_each_member_to_one_of_them(
    bus, database, members
):
    told, _ = at_once(press(bus, Press.DISCARD_ENQUEUED), partial(drain, bus))
    drain(bus)
    with bus.active():
        batch = Batch.find(members)
    assert (batch.discarded_jobs, told.failed) == (told.done, 0)
    assert batch.completed_jobs == JOBS - told.done
    assert batch.finished
    assert messages(database, f"a_{QUEUE}") == JOBS


def test_two_purges_at_once_discard_each_job_once(bus, database, members):
    with bus.active():
        for _ in range(JOBS):
            contested.enqueue(fails=False)
    purge = partial(control.purge_queue, bus.services, "contested", actor="alice")
    assert sum(told.discarded for told in at_once(purge, purge)) == 2 * JOBS
    with bus.active():
        assert Batch.find(members).discarded_jobs == JOBS
    assert messages(database, f"a_{QUEUE}") == 2 * JOBS


def test_of_two_presses_at_once_each_dead_letter_is_sent_anew_by_one(bus, database, letters):
    act = press(bus, Press.RETRY_DEAD_LETTERS)
    told = at_once(act, act)
    assert sum(result.done for result in told) == JOBS == letters
    assert {result.failed for result in told} == {0}
    assert (messages(database, f"q_{DEAD}"), messages(database, f"q_{QUEUE}")) == (0, JOBS)


def test_two_who_pause_a_queue_at_once_learn_of_one_pause(bus):
    bus.ensure_queues([QUEUE])
    for _ in range(20):
        pause = partial(control.pause_queue, bus.services, "contested")
        told = at_once(partial(pause, actor="alice"), partial(pause, actor="bob"))
        assert sorted(result.done for result in told) == [False, True]
        assert told[0].pause == told[1].pause
        control.resume_queue(bus.services, "contested", actor="carol")


def test_a_retry_that_is_killed_midway_loses_no_dead_letter(bus, database, letters):
    waiting = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with database.connection() as host:
        host.execute(f"LOCK TABLE pgmq.q_{QUEUE} IN EXCLUSIVE MODE")
        retry = Child(database.url, ["pgbus.engine.cli", "dead-letters", "retry", DEAD, "1"], {})
        try:
            [(backend,)] = eventually(lambda: database.rows(waiting), within=20)
            retry.kill()
        finally:
            retry.end()
        host.commit()
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    eventually(lambda: not database.value(alive, backend))
    # Its server may have come to the end of it, or not.
    left = (messages(database, f"q_{DEAD}"), messages(database, f"q_{QUEUE}"))
    assert left in [(JOBS, 0), (JOBS - 1, 1)]
    assert sum(left) == JOBS
