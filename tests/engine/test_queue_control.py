"""Queues that are paused, go on, and are purged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta

import pytest
from support import apps
from support.sweeps import age
from support.waiting import eventually
from support.workers import Stage, running

from pgbus import Batch, Workflow, job, step
from pgbus.engine.cli.sentences import state_sentence
from pgbus.engine.errors import QueueNotFound
from pgbus.engine.insights import queues, runs, stuck
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.jobs import control
from pgbus.engine.jobs.control import Purged
from pgbus.engine.runner import bulk
from pgbus.engine.storage import queues as storage


@job(queue="held_up")
def held_up(*numbers): ...


class HeldUp(Workflow):
    @step(job_options={"queue": "held_up"})
    def only(self): ...


@pytest.fixture
def stage(database):
    return Stage(database)


@pytest.fixture
def pauses(bus):
    def pauses():
        with bus.services.database.autocommit() as connection:
            return queues.pauses(connection, bus.settings)

    return pauses


@pytest.fixture
def purge(bus):
    def purge(queue="held_up", **options):
        return control.purge_queue(bus.services, queue, actor="alice", **options)

    return purge


def bodies(database, table="q_pgbus_held_up"):
    return [
        numbers
        for (numbers,) in database.rows(
            f"SELECT message -> 'arguments' -> 'args' FROM pgmq.{table} ORDER BY msg_id"
        )
    ]


def goes_unread(bus, stage, name):
    """Whether a job waits while a worker, which reads each of its queues first in turn, runs others."""
    with bus.active():
        apps.noted_job.enqueue(name)
    for _ in range(3):
        stage.finished(bus.start(apps.Plain))
    return name not in stage.notes


@pytest.mark.parametrize("polling", [60, 0.3], ids=["by notification", "by polling"])
def test_a_worker_reads_nothing_of_a_paused_queue_and_goes_on_at_its_resume(bus, stage, polling):
    # Where nobody listens a worker learns of it by polling.
    deaf = {} if polling == 60 else {"listen_url": "postgresql://127.0.0.1:9/nothing"}
    bus.ensure_queues(["pgbus_jobs", "pgbus_jobs_p0", "pgbus_jobs_p2"])
    names = [f"later {priority}" for priority in (0, 1, 2)]
    with running(stage.database, polling_interval=polling, threads=2, **deaf) as worker:
        if not deaf:
            worker.says("LISTEN works")
        with stage.closed("body"):
            with bus.active():
                apps.gated_job.enqueue("in hand")
            stage.arrived_at("body")
            control.pause_queue(bus.services, "jobs", actor="alice")
            probes = iter(f"probe {number}" for number in range(100))
            eventually(lambda: goes_unread(bus, stage, next(probes)), within=5)
            with bus.active():
                for priority, name in enumerate(names):
                    apps.noted_job.options(priority=priority).enqueue(name)
        # What was in hand ends, and the thread that did it takes nothing more of the queue.
        eventually(lambda: "end in hand" in stage.notes)
        assert goes_unread(bus, stage, "last")
        assert not {*names, "last"} & {*stage.notes}
        control.resume_queue(bus.services, "jobs", actor="alice")
        eventually(lambda: {*names, "last"} <= {*stage.notes}, within=5)


def test_a_worker_that_starts_reads_nothing_of_a_paused_queue(bus, stage):
    with bus.active():
        apps.noted_job.enqueue("kept")
    control.pause_queue(bus.services, "jobs", actor="alice")
    with running(stage.database) as worker:
        stage.finished(bus.start(apps.Plain))
        worker.stop()
    assert stage.notes == []


def test_a_pause_says_who_and_why_and_the_second_learns_of_the_first(bus, pauses):
    bus.ensure_queues(["pgbus_held_up"])
    pause = control.pause_queue
    first = pause(bus.services, "held_up", actor="alice", reason=" vendor is down ")
    second = pause(bus.services, "held_up", actor="bob\x00")
    assert (first.done, second.done) == (True, False)
    assert (second.pause.actor, second.pause.reason) == ("alice", "vendor is down")
    assert pauses() == {"held_up": first.pause}
    assert control.resume_queue(bus.services, "held_up", actor="bob") == first.pause
    assert control.resume_queue(bus.services, "held_up", actor="bob") is None
    assert pauses() == {}


@pytest.mark.parametrize(
    "name", ["other", "pgbus_held_up", "held_up_dlq", "", "x'; DROP TABLE pgmq.meta; --"]
)
def test_a_queue_that_does_not_exist_cannot_be_paused_or_purged(bus, purge, name):
    bus.ensure_queues(["pgbus_held_up", "pgbus_held_up_dlq"])
    with pytest.raises(QueueNotFound, match="there are: held_up"):
        control.pause_queue(bus.services, name, actor="alice")
    with pytest.raises(QueueNotFound):
        purge(name)


def test_a_queue_under_another_prefix_is_paused_by_its_own_name(bus, database, pauses):
    database.rows("SELECT pgbus.make_queue('old_mail')")
    control.pause_queue(bus.services, "old_mail", actor="alice")
    assert database.rows("SELECT queue FROM pgbus.queues") == [("old_mail",)]
    assert list(pauses()) == ["old_mail"]


def test_those_who_pause_and_resume_take_turns(bus, database, pauses):
    bus.ensure_queues(["pgbus_held_up"])
    control.pause_queue(bus.services, "held_up", actor="alice")
    verbs = (control.resume_queue, control.pause_queue)
    with ThreadPoolExecutor() as threads, bus.services.database.transaction() as connection:
        storage.take_turns(connection)
        asked = [threads.submit(verb, bus.services, "held_up", actor="bob") for verb in verbs]
        eventually(lambda: waiting_for_pauses(database) == len(verbs))
        assert pauses()["held_up"].actor == "alice"
        connection.rows("DELETE FROM {schema}.queues")
    assert asked[1].result().pause.actor == "bob"


def waiting_for_pauses(database):
    return database.value(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pgbus.queues'::regclass"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND mode = 'ShareRowExclusiveLock'"
    )


def test_a_queue_that_was_dropped_while_it_was_paused_can_be_resumed_once(bus, database, pauses):
    bus.ensure_queues(["pgbus_held_up", "pgbus_held"])
    for queue in ("held_up", "held"):
        control.pause_queue(bus.services, queue, actor="alice")
    database.rows("SELECT pgmq.drop_queue('pgbus_held_up')")
    assert control.resume_queue(bus.services, "held_up", actor="bob").actor == "alice"
    assert list(pauses()) == ["held"]
    assert database.value("SELECT count(*) FROM pgbus.queues") == 3
    with pytest.raises(QueueNotFound, match="there are: held"):
        control.resume_queue(bus.services, "held_up", actor="bob")


def test_a_run_on_a_paused_queue_is_not_overdue_and_says_so(bus, database):
    run = HeldUp.start()
    age(database, "61 minutes")

    def number():
        with bus.services.database.autocommit() as connection:
            return stuck.count(connection, bus.settings)

    def summary():
        with bus.services.database.autocommit() as connection:
            return runs.summary(connection, bus.settings, run.workflow_id)

    assert (number(), summary().stuck) == (1, StuckReason.OVERDUE)
    control.pause_queue(bus.services, "held_up", actor="alice")
    assert (number(), summary().stuck) == (0, None)
    assert state_sentence(summary(), UTC) == "only is due on a paused queue"
    control.resume_queue(bus.services, "held_up", actor="alice")
    assert number() == 1


def test_a_purge_archives_the_jobs_of_all_priorities_with_who_and_why(bus, database, purge):
    with bus.active():
        for priority in (0, 1, 2):
            held_up.options(priority=priority, wait=timedelta(hours=1)).enqueue(priority)
    told = purge(reason="wrong month")
    assert told == Purged(discarded=3, steps=0, in_hand=0, may_be_more=False)
    for table, number in (("pgbus_held_up_p0", 0), ("pgbus_held_up", 1), ("pgbus_held_up_p2", 2)):
        assert bodies(database, f"q_{table}") == []
        assert bodies(database, f"a_{table}") == [[number]]
    why = database.value("SELECT headers -> 'discarded' FROM pgmq.a_pgbus_held_up")
    assert (why["actor"], why["reason"]) == ("alice", "wrong month")


def test_a_purge_leaves_what_is_of_runs_or_in_hand(bus, database, driver, purge):
    with bus.active():
        held_up.enqueue("in hand")
        driver.take()
        held_up.enqueue("gone")
    HeldUp.start()
    database.rows("SELECT pgmq.send('pgbus_held_up', '[]')")
    database.rows(
        "INSERT INTO pgbus.failed_jobs SELECT 'pgbus_held_up', n, 'held_up', 0, 'E', '', '{}', now()"
        " FROM generate_series(1, 2) n"
    )
    assert purge() == Purged(discarded=2, steps=1, in_hand=1, may_be_more=False)
    assert database.rows("SELECT message_id FROM pgbus.failed_jobs") == [(1,)]
    assert bodies(database) == [["in hand"], None]
    driver.redeliver()
    assert purge() == Purged(discarded=1, steps=1, in_hand=0, may_be_more=False)
    driver.drain()
    assert database.value("SELECT status FROM pgbus.workflows") == "finished"


def test_a_purge_says_that_there_is_more_when_somebody_else_has_jobs_locked(bus, database, purge):
    with bus.active():
        held_up.enqueue("locked")
        held_up.enqueue("free")
    with database.connection() as other:
        other.execute("SELECT FROM pgmq.q_pgbus_held_up ORDER BY msg_id LIMIT 1 FOR UPDATE")
        assert purge() == Purged(discarded=1, steps=0, in_hand=0, may_be_more=True)
    assert purge() == Purged(discarded=1, steps=0, in_hand=0, may_be_more=False)


def test_a_purge_takes_more_than_one_transaction_holds_and_nothing_that_comes_later(
    bus, database, purge, monkeypatch
):
    monkeypatch.setattr(control, "_WINDOW", 2)
    with bus.active(), Batch.open() as members:
        for number in range(5):
            held_up.enqueue(number)
            members.add(held_up, number)
    once = control.jobs.withdraw_free

    def and_another_comes(*arguments, **options):
        with bus.active():
            held_up.enqueue("later")
        return once(*arguments, **options)

    monkeypatch.setattr(control.jobs, "withdraw_free", and_another_comes)
    assert purge().discarded == 10
    assert {tuple(arguments) for arguments in bodies(database)} == {("later",)}
    batch = bus_batch(bus, members)
    assert (batch.discarded_jobs, batch.finished) == (5, True)


def bus_batch(bus, members):
    with bus.active():
        return Batch.find(members.batch_id)


def test_a_purge_that_takes_too_long_says_that_there_may_be_more(bus, purge, monkeypatch):
    monkeypatch.setattr(bulk, "LONGEST_SECONDS", -1.0)
    monkeypatch.setattr(control, "_WINDOW", 1)
    with bus.active():
        held_up.enqueue()
        held_up.enqueue()
    assert purge() == Purged(discarded=1, steps=0, in_hand=0, may_be_more=True)
    assert purge() == Purged(discarded=1, steps=0, in_hand=0, may_be_more=False)


def test_a_purge_of_what_was_found_leaves_what_came_since(bus, database, driver, purge):
    with bus.active():
        held_up.enqueue("in hand")
        driver.take()
        for priority in (0, 1):
            held_up.options(priority=priority).enqueue("found")
        found = control.purgeable(bus.services, "held_up")
        held_up.enqueue("later")
    HeldUp.start()
    assert found.jobs == 2
    assert purge(found=found) == Purged(discarded=2, steps=0, in_hand=1, may_be_more=False)
    assert bodies(database) == [["in hand"], ["later"], None]
