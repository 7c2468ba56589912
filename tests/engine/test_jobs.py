"""Enqueueing: what is sent, when, in whose transaction."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from pgbus import Pgbus, job
from pgbus.engine.errors import DefinitionError, PayloadTooLarge, SchemaOutdated, WrongDatabase
from pgbus.engine.jobs.execute import execute


@job(queue="mail")
def notify(*args, **kwargs): ...


def messages(database, queue="pgbus_mail"):
    if not database.value("SELECT to_regclass(%s) IS NOT NULL", f"pgmq.q_{queue}"):
        return []
    return database.rows(f"SELECT msg_id, message, vt FROM pgmq.q_{queue} ORDER BY msg_id")


def test_a_call_becomes_one_message_in_the_jobs_queue(bus, database):
    message_id = notify.enqueue(7, copy=True)
    [(found, body, _)] = messages(database)
    assert found == message_id
    assert body == {
        "job": f"{__name__}.notify",
        "arguments": {"args": [7], "kwargs": {"copy": True}},
    }


@pytest.mark.parametrize(
    ("options", "queue"),
    [
        ({"priority": 0}, "pgbus_mail_p0"),
        ({"priority": 2, "queue": "slow"}, "pgbus_slow_p2"),
        ({"queue": "slow"}, "pgbus_slow"),
    ],
)
def test_queue_and_priority_choose_the_physical_queue(bus, database, options, queue):
    notify.options(**options).enqueue()
    assert len(messages(database, queue)) == 1


def test_a_message_waits_for_the_later_of_its_two_times(bus, database):
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    notify.options(wait=2 * hour, wait_until=now + hour).enqueue()
    notify.options(wait=hour, wait_until=now + 2 * hour).enqueue()
    notify.options(wait_until=now - hour).enqueue()
    waits = [vt - now for _, _, vt in messages(database)]
    for wait, expected in zip(waits, [2 * hour, 2 * hour, timedelta()], strict=True):
        assert abs(wait - expected) < timedelta(minutes=1)


def test_numbers_of_any_size_are_stored_exactly(bus, database):
    notify.enqueue(2**200 + 1)
    text = database.value("SELECT message::text FROM pgmq.q_pgbus_mail")
    assert json.loads(text)["arguments"]["args"] == [2**200 + 1]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_with_a_session_nothing_is_sent_before_the_host_commits(bus, database, driver):
    engine = sqlalchemy.create_engine(database.sqlalchemy_url(driver))
    with Session(engine) as session:
        message_id = notify.options(session=session, wait=1.5).enqueue(7)
        assert messages(database) == []
        session.commit()
        assert [found for found, *_ in messages(database)] == [message_id]
    engine.dispose()


def test_a_rollback_sends_nothing_and_a_savepoint_drops_its_own(bus, database):
    with Session(database.engine) as session:
        notify.options(session=session).enqueue(1)
        session.rollback()
        notify.options(session=session).enqueue(2)
        with session.begin_nested() as savepoint:
            notify.options(session=session).enqueue(3)
            savepoint.rollback()
        session.commit()
    assert [body["arguments"]["args"] for _, body, _ in messages(database)] == [[2]]


def test_a_session_of_another_database_is_refused_and_nothing_sent(bus, database, empty_database):
    with Session(empty_database.engine) as session, pytest.raises(WrongDatabase):
        notify.options(session=session).enqueue()
    assert messages(database) == []


def test_a_queue_that_is_new_does_not_live_in_the_hosts_transaction(bus, database):
    with Session(database.engine) as session:
        notify.options(session=session, queue="brand_new").enqueue()
        assert database.value("SELECT to_regclass('pgmq.q_pgbus_brand_new') IS NOT NULL")
        session.rollback()


def test_arguments_above_the_limit_are_refused(database):
    bus = Pgbus(database_url=database.url, workflow_max_payload_size=1024)
    with pytest.raises(PayloadTooLarge, match=r"^arguments: \d+ bytes encoded"):
        notify.enqueue("x" * 1024)
    assert messages(database) == []
    bus.close()


def test_a_queue_named_with_the_prefix_is_refused(bus):
    with pytest.raises(DefinitionError, match="write 'mail'"):
        notify.options(queue="pgbus_mail").enqueue()


def test_a_database_that_is_not_migrated_is_said(empty_database):
    bus = Pgbus(database_url=empty_database.url)
    with pytest.raises(SchemaOutdated, match="pgbus migrate"):
        notify.enqueue()
    bus.close()


def test_of_two_buses_the_running_jobs_own_is_meant(bus, database, driver):
    @job
    def forwards():
        notify.enqueue("from inside")

    other = Pgbus(database_url=database.url, queue_prefix="other")
    with bus.active():
        forwards.enqueue()
    [delivery] = driver.take()
    with other.active():
        execute(bus.services, delivery)
    assert len(messages(database)) == 1
    assert messages(database, "other_mail") == []
    other.close()
