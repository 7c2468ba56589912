"""What an operator does with one job, or one dead letter."""

from __future__ import annotations

import json
import logging
from datetime import timedelta

import pytest
from blinker import signal

from pgbus import Batch, Workflow, job, step
from pgbus.engine.errors import QueueNotFound
from pgbus.engine.jobs import control
from pgbus.engine.jobs.control import Effect
from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage import batches

QUEUE, DEAD = "pgbus_errands", "pgbus_errands_dlq"
runs = []


@job(queue="errands")
def errand(*numbers):
    runs.append(numbers)


@job(queue="errands")
def failing_errand():
    runs.append("failed")
    raise LookupError("nobody home")


@job(queue="errands", max_retries=0)
def dying_errand(*numbers):
    raise LookupError("nobody home")


@job(queue="after")
def errands_done(batch_id, properties): ...


class OnErrand(Workflow):
    @step(job_options={"queue": "errands"})
    def go(self): ...


@pytest.fixture(autouse=True)
def forget_runs():
    runs.clear()


@pytest.fixture
def verbs(bus):
    """The verbs on a message of the queue, or of its dead letters, as somebody asks them."""

    class Verbs:
        def __getattr__(self, name):
            queue = DEAD if name.endswith("dead_letter") else QUEUE

            def verb(message_id=1, queue=queue, **options):
                given = {"actor": "alice", "reason": "because"} | options
                return getattr(control, name)(bus.services, queue, message_id, **given)

            return verb

    return Verbs()


@pytest.fixture
def work(bus, driver):
    """Takes the first due message, and executes it."""

    def work():
        [delivery] = driver.take()
        execute(bus.services, delivery)

    return work


@pytest.fixture
def failed(bus, work):
    """A job that failed once."""
    with bus.active():
        failing_errand.enqueue()
    work()


def number_in(database, table):
    return database.value(f"SELECT count(*) FROM pgmq.{table}")


def failures(database):
    return database.value("SELECT count(*) FROM pgbus.failed_jobs")


def test_a_retry_lets_a_failed_job_run_now_under_the_same_message(
    bus, database, work, failed, verbs
):
    assert verbs.retry_job() == Effect.DONE
    assert verbs.retry_job() == Effect.DUE
    work()
    assert runs == ["failed", "failed"]
    assert database.rows("SELECT message_id, read_count FROM pgbus.failed_jobs") == [(1, 2)]
    assert number_in(database, f"q_{QUEUE}") == 1


def test_a_retry_wakes_workers(database, failed, verbs):
    with database.connection(autocommit=True) as listening:
        listening.execute("LISTEN pgbus")
        verbs.retry_job()
        [notified] = listening.notifies(timeout=5, stop_after=1)
    assert notified.payload == QUEUE


def test_a_retry_lets_a_job_that_waits_for_its_time_run_now(bus, work, verbs):
    with bus.active():
        errand.options(wait=timedelta(hours=1)).enqueue(7)
    assert verbs.retry_job() == Effect.DONE
    work()
    assert runs == [(7,)]


def test_a_job_in_a_workers_hands_is_left_alone(bus, database, driver, failed, verbs):
    driver.redeliver()
    driver.take()
    assert verbs.retry_job() == Effect.IN_HAND
    assert verbs.discard_job() == Effect.IN_HAND
    assert (number_in(database, f"q_{QUEUE}"), failures(database)) == (1, 1)


def test_a_job_that_failed_again_since_it_was_seen_is_left_alone(driver, work, failed, verbs):
    driver.redeliver()
    work()
    assert verbs.retry_job(read_count=1) == Effect.MOVED_ON
    assert verbs.discard_job(read_count=1) == Effect.MOVED_ON
    assert verbs.retry_job(read_count=2) == Effect.DONE


def test_a_runs_message_is_its_runs(bus, database, verbs):
    OnErrand.start()
    assert verbs.retry_job() == Effect.OF_A_RUN
    assert verbs.discard_job() == Effect.OF_A_RUN
    assert number_in(database, f"q_{QUEUE}") == 1


def test_a_discarded_job_is_archived_with_who_and_why(database, failed, verbs, caplog):
    with caplog.at_level(logging.INFO, "pgbus.jobs"):
        assert verbs.discard_job(reason=" wrong\x00vendor ") == Effect.DONE
    assert verbs.discard_job() == Effect.GONE
    assert (number_in(database, f"q_{QUEUE}"), failures(database)) == (0, 0)
    headers = database.value(f"SELECT headers FROM pgmq.a_{QUEUE}")
    assert headers["discarded"]["actor"] == "alice"
    assert headers["discarded"]["reason"].startswith("wrong")
    assert caplog.text.count("Message 1 of pgbus_errands was discarded by alice") == 1


def test_a_discarded_member_is_counted_and_the_last_one_finishes_its_batch(bus, database, verbs):
    told = []
    with bus.active(), Batch.open(on_failure=errands_done) as members:
        members.add(errand, 1)
        members.add(errand, 2)
    with signal("pgbus.batch_finished").connected_to(told.append):
        assert verbs.discard_job(1) == Effect.DONE
        assert told == []
        assert verbs.discard_job(2) == Effect.DONE
    assert [(one.total_jobs, one.discarded_jobs) for one in told] == [(2, 2)]
    with bus.active():
        batch = Batch.find(members.batch_id)
    assert (batch.discarded_jobs, batch.finished) == (2, True)
    assert number_in(database, "q_pgbus_after") == 1


def test_a_failure_whose_message_somebody_deleted_can_be_discarded(database, failed, verbs):
    database.rows("SELECT pgmq.purge_queue(%s)", QUEUE)
    assert verbs.retry_job() == Effect.GONE
    assert verbs.discard_job() == Effect.DONE
    assert verbs.discard_job() == Effect.GONE
    assert failures(database) == 0


@pytest.mark.parametrize("queue", ["errands", "pgbus_other", DEAD, 'x"; --'])
def test_a_job_of_no_queue_is_refused(bus, verbs, queue):
    bus.ensure_queues([QUEUE, DEAD])
    for verb in (verbs.retry_job, verbs.discard_job):
        with pytest.raises(QueueNotFound, match="there are: pgbus_errands"):
            verb(queue=queue)


@pytest.fixture
def dead(bus, driver, work):
    """A dead letter that was a member of an open batch, of the highest priority."""
    with bus.active(), Batch.open() as members:
        members.add(dying_errand.options(priority=0), 12345678901234567890)
        members.add(errand.options(queue="later_errands"))
    work()
    return members.batch_id


def test_a_dead_letter_goes_back_to_where_it_came_from(database, dead, verbs):
    assert verbs.retry_dead_letter() == Effect.DONE
    assert verbs.retry_dead_letter() == Effect.GONE
    assert number_in(database, f"q_{DEAD}") == 0
    [(body, headers)] = database.rows(f"SELECT message::text, headers FROM pgmq.q_{QUEUE}_p0")
    assert "12345678901234567890" in body
    assert (headers["retried"]["actor"], headers["retried"]["reason"]) == ("alice", "because")
    assert "dead_letter" not in headers


def test_a_batch_has_counted_its_dead_letter_whatever_becomes_of_it(bus, database, dead, verbs):
    """Also one that was withdrawn: the operator's word is newer."""
    with bus.services.database.transaction() as connection:
        batches.withdraw(connection, dead)
    verbs.retry_dead_letter()
    with bus.active():
        batch = Batch.find(dead)
    assert (batch.dead_lettered_jobs, batch.open_jobs) == (1, 1)
    assert json.loads(database.value(f"SELECT message::text FROM pgmq.q_{QUEUE}_p0")).keys() == {
        "job",
        "arguments",
    }


@pytest.mark.parametrize(
    "headers",
    [
        None,
        "{}",
        "5",
        '"dead_letter"',
        '["dead_letter"]',
        '{"dead_letter": 5}',
        '{"dead_letter": {"queue": "pgbus_other"}}',
        '{"dead_letter": {"queue": "pgbus_errands_dlq"}}',
        '{"dead_letter": {"queue": "x\\"; --"}}',
    ],
)
@pytest.mark.parametrize("body", [None, '["batch"]'])
def test_a_dead_letter_that_does_not_say_where_it_came_from_goes_to_its_queue(
    bus, database, verbs, body, headers
):
    bus.ensure_queues([QUEUE, DEAD])
    database.rows("SELECT pgmq.send(%s, %s::jsonb, %s::jsonb)", DEAD, body, headers)
    assert verbs.retry_dead_letter() == Effect.DONE
    sent = [] if body is None else ["batch"]
    assert database.value(f"SELECT message FROM pgmq.q_{QUEUE}") == (sent or None)


def test_a_retried_dead_letter_is_a_job_like_any_other(bus, database, driver, dead, verbs):
    verbs.retry_dead_letter()
    [delivery] = driver.take()
    assert delivery.read_count == 1
    execute(bus.services, delivery)
    assert database.value(f"SELECT headers -> 'dead_letter' ->> 'queue' FROM pgmq.q_{DEAD}") == (
        f"{QUEUE}_p0"
    )


def test_a_discarded_dead_letter_is_archived_with_its_error_and_who_and_why(database, dead, verbs):
    assert verbs.discard_dead_letter() == Effect.DONE
    assert verbs.discard_dead_letter() == Effect.GONE
    assert number_in(database, f"q_{DEAD}") == 0
    headers = database.value(f"SELECT headers FROM pgmq.a_{DEAD}")
    assert headers["dead_letter"]["error_class"] == "LookupError"
    assert headers["discarded"]["actor"] == "alice"


@pytest.mark.parametrize(
    "verb", ["retry_job", "discard_job", "retry_dead_letter", "discard_dead_letter"]
)
def test_a_message_that_no_queue_can_hold_is_gone(bus, verbs, verb):
    bus.ensure_queues([QUEUE, DEAD])
    assert getattr(verbs, verb)(2**63) == Effect.GONE


@pytest.mark.parametrize("queue", [QUEUE, "errands", "pgbus_other_dlq"])
def test_a_dead_letter_of_no_such_queue_is_refused(bus, verbs, queue):
    bus.ensure_queues([QUEUE, DEAD])
    for verb in (verbs.retry_dead_letter, verbs.discard_dead_letter):
        with pytest.raises(QueueNotFound, match="there are: pgbus_errands_dlq"):
            verb(queue=queue)
