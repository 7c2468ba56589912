"""How full the queues are, as Home and the queues' page tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pgbus import job
from pgbus.engine.insights import gauges, queues
from pgbus.engine.jobs.execute import execute


@job(queue="counted")
def count_me(*numbers): ...


@job(queue="counted", max_retries=1)
def fails_twice():
    raise LookupError("no such thing")


@job(queue="counted", max_retries=0)
def fails_once():
    raise LookupError("no such thing")


@pytest.fixture
def depths(bus):
    def depths():
        with bus.services.database.autocommit() as connection:
            return {one.queue: one for one in queues.depths(connection, bus.settings)}

    return depths


@pytest.fixture
def dead_letters(bus):
    def dead_letters():
        with bus.services.database.autocommit() as connection:
            return queues.dead_letters(connection, bus.settings)

    return dead_letters


def counts(depth):
    return depth.visible, depth.in_flight, depth.later


def test_there_are_no_depths_without_queues(bus, depths, dead_letters):
    assert (depths(), dead_letters()) == ({}, ())


def test_a_message_is_due_or_in_hand_or_later(bus, driver, depths):
    hour = timedelta(hours=1)
    with bus.active():
        for number in range(4):
            count_me.enqueue(number)
        count_me.options(wait=hour).enqueue()
        count_me.options(wait=hour).enqueue()
    driver.take()
    assert counts(depths()["pgbus_counted"]) == (3, 1, 2)


def test_each_priority_is_a_queue_of_its_logical_one(bus, depths):
    with bus.active():
        count_me.options(priority=0).enqueue()
        count_me.options(priority=2).enqueue()
    assert [(one.queue, one.logical, one.priority) for one in depths().values()] == [
        ("pgbus_counted_p0", "counted", 0),
        ("pgbus_counted_p2", "counted", 2),
    ]


def test_since_when_is_told_of_the_message_that_has_been_due_longest(bus, database, depths):
    with bus.active():
        for _ in range(3):
            count_me.enqueue()
    assert datetime.now(UTC) - depths()["pgbus_counted"].due_since < timedelta(minutes=1)
    # One that was sent for a later time has been due since that time.
    database.rows(
        "UPDATE pgmq.q_pgbus_counted SET vt = '2020-02-02 02:02Z', enqueued_at = '2020-01-01'"
        " WHERE msg_id = 2"
    )
    assert depths()["pgbus_counted"].due_since == datetime(2020, 2, 2, 2, 2, tzinfo=UTC)
    database.rows("UPDATE pgmq.q_pgbus_counted SET vt = now() + interval '1 hour'")
    assert depths()["pgbus_counted"].due_since is None


def test_a_job_that_waits_for_its_retry_is_in_nobodys_hand(bus, driver, database, depths):
    with bus.active():
        fails_twice.enqueue()
    [delivery] = driver.take()
    assert counts(depths()["pgbus_counted"]) == (0, 1, 0)
    execute(bus.services, delivery)
    assert counts(depths()["pgbus_counted"]) == (0, 0, 1)
    driver.redeliver()
    driver.take()
    assert counts(depths()["pgbus_counted"]) == (0, 1, 0)
    # One of another queue that has the same number failed as often.
    database.rows("UPDATE pgbus.failed_jobs SET queue = 'pgbus_other', read_count = 2")
    assert counts(depths()["pgbus_counted"]) == (0, 1, 0)


def test_counts_stop_one_above_the_cap(bus, database, depths, monkeypatch):
    monkeypatch.setattr(queues, "CAP", 2)
    with bus.active():
        for _ in range(9):
            count_me.enqueue()
    database.rows("UPDATE pgmq.q_pgbus_counted SET vt = now() + interval '1 hour' WHERE msg_id > 5")
    assert counts(depths()["pgbus_counted"]) == (3, 0, 3)
    database.rows("UPDATE pgmq.q_pgbus_counted SET vt = now() + interval '1 minute', read_ct = 1")
    assert counts(depths()["pgbus_counted"]) == (0, 3, 0)


def test_a_gauge_of_all_priorities_stops_there_too(bus, monkeypatch):
    monkeypatch.setattr(queues, "CAP", 2)
    with bus.active():
        for priority in (0, 0, 2, 2):
            count_me.options(priority=priority).enqueue()
    with bus.services.database.autocommit() as connection:
        assert gauges.read(connection, bus.settings).queue_depth["counted"] == 3


def test_what_is_in_hand_is_found_among_more_that_is_sent_ahead(bus, database, depths, monkeypatch):
    monkeypatch.setattr(queues, "CAP", 3)
    with bus.active():
        for _ in range(8):
            count_me.enqueue()
    database.rows("UPDATE pgmq.q_pgbus_counted SET vt = now() + interval '1 day' WHERE msg_id < 8")
    database.rows(
        "UPDATE pgmq.q_pgbus_counted SET vt = now() + interval '30 s', read_ct = 2 WHERE msg_id = 8"
    )
    assert counts(depths()["pgbus_counted"]) == (0, 1, 4)


def test_a_queue_under_another_prefix_stands_for_itself(bus, database, depths):
    database.rows("SELECT pgbus.make_queue('shop_orders')")
    assert depths()["shop_orders"].logical == "shop_orders"


def test_a_queue_that_somebody_else_made_is_none_of_ours(bus, database, depths):
    database.rows("SELECT pgmq.create('pgbus_foreign')")
    assert depths() == {}


def test_dead_letters_are_counted_by_queue_with_the_newest(
    bus, driver, database, depths, dead_letters
):
    with bus.active():
        fails_once.enqueue()
        fails_once.enqueue()
    for _ in range(2):
        [delivery] = driver.take()
        execute(bus.services, delivery)
    database.rows(
        "UPDATE pgmq.q_pgbus_counted_dlq SET enqueued_at = timestamptz '2019-12-31 12:00Z' + msg_id * interval '1 day'"
    )
    [found] = dead_letters()
    assert (found.queue, found.logical, found.messages) == ("pgbus_counted_dlq", "counted", 2)
    assert found.newest_at == datetime(2020, 1, 2, 12, tzinfo=UTC)
    assert list(depths()) == ["pgbus_counted"]


def test_an_empty_queue_of_dead_letters_has_no_newest(bus, database, dead_letters):
    database.rows("SELECT pgbus.make_queue('pgbus_counted_dlq')")
    [found] = dead_letters()
    assert (found.messages, found.newest_at) == (0, None)
