"""A verb on all jobs, or dead letters, that match: counted, bounded, and of one moment."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pgbus import job
from pgbus.engine.errors import BadCursor, QueueNotFound
from pgbus.engine.insights import reading
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.jobs import bulk, control
from pgbus.engine.jobs.bulk import Press
from pgbus.engine.jobs.control import Effect
from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage.claims import Idle

LIFT, CARRY = f"{__name__}.lift", f"{__name__}.carry"


@job(queue="heavy")
def lift(error=KeyError):
    raise {"KeyError": KeyError, "OSError": OSError}[error]("too heavy")


@job(queue="light")
def carry():
    raise KeyError("too heavy")


@job(queue="heavy", max_retries=0)
def drop(error="KeyError"):
    raise {"KeyError": KeyError, "OSError": OSError}[error]("too heavy")


@pytest.fixture
def work(bus, driver):
    """Executes what is due, until nothing is."""

    def work():
        while not isinstance(taken := driver.take(), Idle):
            for delivery in taken:
                execute(bus.services, delivery)

    return work


@pytest.fixture
def press(bus):
    def press(verb, *, at_most=500, until=None, limit=500, after=None, **wanted):
        if until is None:
            with reading.reading(bus.services) as connection:
                until = reading.now(connection)
        return bulk.act(
            bus.services,
            verb,
            JobFilter(**wanted),
            until=until,
            at_most=at_most,
            actor="alice",
            after=after,
            limit=limit,
        )

    return press


@pytest.fixture
def failed(bus, work):
    """Five jobs that failed once: on two queues, with two errors."""
    with bus.active():
        for error in ("KeyError", "KeyError", "OSError"):
            lift.enqueue(error)
        lift.options(priority=0).enqueue("KeyError")
        carry.enqueue()
    work()


def figures(result):
    return result.done, result.moved_on, result.failed, result.may_be_more


def left(database, table="pgbus.failed_jobs"):
    return database.value(f"SELECT count(*) FROM {table}")


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        ({}, 5),
        ({"queue": "heavy"}, 4),
        ({"job": CARRY}, 1),
        ({"error_class": "OSError"}, 1),
        ({"queue": "heavy", "job": LIFT, "error_class": "KeyError"}, 3),
        ({"error_class": "NoError"}, 0),
    ],
)
def test_all_that_match_are_discarded_and_the_others_stay(database, failed, press, wanted, number):
    assert figures(press(Press.DISCARD_FAILED, **wanted)) == (number, 0, 0, False)
    assert left(database) == 5 - number


def test_a_press_takes_no_more_than_the_page_showed(bus, database, work, failed, press):
    with reading.reading(bus.services) as connection:
        moment = reading.now(connection)
    with bus.active():
        carry.enqueue()
    work()
    assert figures(press(Press.RETRY_FAILED, until=moment, at_most=3)) == (3, 0, 0, False)
    assert figures(press(Press.RETRY_FAILED, until=moment)) == (2, 3, 0, False)
    assert figures(press(Press.RETRY_FAILED)) == (1, 5, 0, False)


def test_at_the_limit_there_may_be_more(failed, press):
    assert figures(press(Press.DISCARD_FAILED, limit=2)) == (2, 0, 0, True)
    assert figures(press(Press.DISCARD_FAILED, limit=3)) == (3, 0, 0, False)


def test_one_that_moved_on_while_the_others_were_asked_is_left_alone(
    bus, database, driver, failed, press, monkeypatch
):
    discard = control.discard_job

    def and_a_worker_takes_the_next(services, queue, message_id, **options):
        driver.redeliver()
        driver.take()
        return discard(services, queue, message_id, **options)

    monkeypatch.setitem(bulk._JOB_ACTS, Press.DISCARD_FAILED, and_a_worker_takes_the_next)
    result = press(Press.DISCARD_FAILED, queue="heavy")
    assert result.done + result.moved_on == 4
    assert result.moved_on > 0
    assert left(database) == 5 - result.done


def test_one_that_failed_again_while_the_others_were_asked_is_left_alone(
    database, driver, work, failed, press, monkeypatch
):
    discard = control.discard_job

    def and_all_others_fail_again(*of, **options):
        effect = discard(*of, **options)
        if effect == Effect.DONE:
            driver.redeliver()
            work()
        return effect

    monkeypatch.setitem(bulk._JOB_ACTS, Press.DISCARD_FAILED, and_all_others_fail_again)
    assert figures(press(Press.DISCARD_FAILED)) == (1, 4, 0, False)
    assert left(database) == 4


def test_a_failure_is_told_with_its_reason_and_the_others_are_done(failed, press, monkeypatch):
    discard = control.discard_job

    def fails_on_the_second(services, queue, message_id, **options):
        if message_id == 2:
            raise ZeroDivisionError("a bug")
        return discard(services, queue, message_id, **options)

    monkeypatch.setitem(bulk._JOB_ACTS, Press.DISCARD_FAILED, fails_on_the_second)
    result = press(Press.DISCARD_FAILED)
    assert figures(result) == (4, 0, 1, False)
    assert result.first_failure == "ZeroDivisionError: a bug"


def test_enqueued_jobs_are_discarded_but_those_in_hand_and_of_runs(bus, database, driver, press):
    with bus.active():
        for _ in range(3):
            lift.enqueue()
        carry.options(wait=timedelta(hours=1)).enqueue()
    driver.take()
    database.rows("SELECT pgbus.send_step(gen_random_uuid(), 'pgbus_heavy', now(), false)")
    assert figures(press(Press.DISCARD_ENQUEUED, job=LIFT)) == (2, 0, 0, False)
    assert figures(press(Press.DISCARD_ENQUEUED, at_most=0)) == (0, 0, 0, False)
    assert figures(press(Press.DISCARD_ENQUEUED)) == (1, 0, 0, False)
    assert left(database, "pgmq.q_pgbus_heavy") == 2


def test_a_press_begins_behind_the_place_that_its_page_looked_from(bus, press):
    with bus.active():
        for _ in range(3):
            lift.enqueue()
    assert figures(press(Press.DISCARD_ENQUEUED, after="pgbus_heavy:2")) == (1, 0, 0, False)
    assert figures(press(Press.DISCARD_ENQUEUED)) == (2, 0, 0, False)
    with pytest.raises(BadCursor):
        press(Press.DISCARD_ENQUEUED, after="nowhere")


def test_a_press_that_lasts_too_long_for_a_page_says_that_there_may_be_more(
    failed, press, monkeypatch
):
    monkeypatch.setattr(bulk, "_LONGEST_SECONDS", 0)
    assert figures(press(Press.DISCARD_FAILED)) == (1, 0, 0, True)


def test_dead_letters_go_back_and_are_discarded_by_what_killed_them(bus, database, work, press):
    with bus.active():
        for error in ("KeyError", "OSError", "OSError"):
            drop.enqueue(error)
    work()
    press_all = {"verb": Press.RETRY_DEAD_LETTERS, "queue": "heavy", "error_class": "OSError"}
    assert figures(press(**press_all, limit=1)) == (1, 0, 0, True)
    assert figures(press(**press_all)) == (1, 0, 0, False)
    assert left(database, "pgmq.q_pgbus_heavy") == 2
    assert figures(press(Press.DISCARD_DEAD_LETTERS)) == (1, 0, 0, False)
    assert left(database, "pgmq.q_pgbus_heavy_dlq") == 0


def test_a_filter_or_number_that_cannot_be_is_refused(bus, press):
    with pytest.raises(QueueNotFound):
        press(Press.DISCARD_ENQUEUED, queue="missing")
    with pytest.raises(ValueError, match="at_most is -1"):
        press(Press.DISCARD_ENQUEUED, at_most=-1)
