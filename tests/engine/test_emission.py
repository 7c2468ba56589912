"""Events reach the host's subscribers after the commit, and never when it does not come."""

import gc
import weakref
from contextlib import suppress

import pytest
from blinker import signal
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pgbus import Workflow, step
from pgbus.engine.observe import emission
from pgbus.engine.observe.emission import WorkflowCancelled, WorkflowPaused

NAMES = [
    "pgbus.workflow.step", "pgbus.workflow_paused", "pgbus.workflow_finished",
    "pgbus.workflow_cancelled", "pgbus.workflow.stall_detected",
    "pgbus.workflow.signal", "pgbus.workflow.wait_timed_out", "pgbus.workflow.gauge",
    "pgbus.job_completed", "pgbus.job_failed", "pgbus.job_dead_lettered", "pgbus.batch_finished",
    "pgbus.worker.recycle",
]  # fmt: skip


class Quiet(Workflow):
    @step
    def act(self): ...


@pytest.fixture
def heard():
    """What subscribers of every signal were told, in order."""
    payloads = []

    def hear(payload):
        payloads.append(payload)

    for name in NAMES:
        signal(name).connect(hear)
    yield payloads
    for name in NAMES:
        signal(name).disconnect(hear)


@pytest.fixture(params=["session", "scoped_session"])
def session(request, database):
    factory = sessionmaker(database.engine)
    opened = factory() if request.param == "session" else scoped_session(factory)
    yield opened
    opened.close()


@pytest.fixture
def run(bus):
    return Quiet.start()


@pytest.fixture
def other(bus):
    return Quiet.start()


def paused(run):
    return WorkflowPaused(run.workflow_class, run.workflow_id)


def cancelled(run):
    return WorkflowCancelled(run.workflow_class, run.workflow_id)


def test_an_event_is_sent_after_the_hosts_commit(run, session, heard):
    run.pause(session=session)
    assert heard == []
    session.commit()
    assert heard == [paused(run)]
    session.commit()
    assert heard == [paused(run)]


def test_a_subscriber_finds_the_change_committed(bus, run, session):
    found = []

    def look(payload):
        found.append(bus.find(payload.workflow_id).status)

    signal("pgbus.workflow_paused").connect(look)
    run.pause(session=session)
    session.commit()
    signal("pgbus.workflow_paused").disconnect(look)
    assert found == ["paused"]


def test_a_rollback_sends_nothing_then_or_later(run, session, heard):
    run.pause(session=session)
    session.rollback()
    session.commit()
    assert heard == []
    assert run.reload().status == "ready"


def test_a_session_closed_without_a_commit_sends_nothing_then_or_later(run, session, heard):
    run.pause(session=session)
    session.close()
    assert run.reload().status == "ready"
    run.cancel(session=session)
    session.commit()
    assert heard == [cancelled(run)]


def test_a_start_sends_no_event(bus, session, heard):
    Quiet.options(session=session).start()
    Quiet.options(session=session).start_many([(None, {})])
    session.commit()
    assert heard == []


def test_a_rolled_back_savepoint_drops_only_its_own(run, other, session, heard):
    run.pause(session=session)
    savepoint = session.begin_nested()
    other.pause(session=session)
    savepoint.rollback()
    session.commit()
    assert heard == [paused(run)]


def test_a_released_savepoint_sends_with_the_outer_commit(run, other, session, heard):
    with session.begin_nested():
        run.pause(session=session)
    assert heard == []
    other.pause(session=session)
    session.commit()
    assert heard == [paused(run), paused(other)]


def test_a_savepoint_released_into_one_that_rolls_back_sends_nothing(run, other, session, heard):
    other.pause(session=session)
    outer = session.begin_nested()
    with session.begin_nested():
        run.pause(session=session)
    outer.rollback()
    session.commit()
    assert heard == [paused(other)]


def test_a_savepoint_that_is_open_at_the_commit_sends_too(run, session, heard):
    session.begin_nested()
    run.pause(session=session)
    session.commit()
    assert heard == [paused(run)]


def test_a_body_that_fails_in_a_savepoint_drops_its_event(run, session, heard):
    with suppress(LookupError), session.begin_nested():
        run.pause(session=session)
        raise LookupError
    session.commit()
    assert heard == []


def test_events_come_in_the_order_of_the_verbs(run, other, session, heard):
    run.pause(session=session)
    other.cancel(session=session)
    run.cancel(session=session)
    session.commit()
    assert heard == [paused(run), cancelled(other), cancelled(run)]


def test_one_session_sends_for_each_of_its_transactions(run, session, heard):
    run.pause(session=session)
    session.commit()
    run.resume(session=session)
    run.pause(session=session)
    session.rollback()
    run.cancel(session=session)
    session.commit()
    assert heard == [paused(run), cancelled(run)]


def test_a_bare_connection_sends_nothing(run, database, heard):
    with database.engine.connect() as connection:
        run.pause(session=connection)
        connection.commit()
    assert run.reload().status == "paused"
    assert heard == []


def test_without_a_session_the_event_is_sent_at_once(run, heard):
    run.pause()
    assert heard == [paused(run)]


def test_a_commit_that_fails_sends_nothing(run, session, database, heard):
    database.rows(
        "CREATE TABLE checked (n int PRIMARY KEY,"
        " m int REFERENCES checked DEFERRABLE INITIALLY DEFERRED)"
    )
    run.pause(session=session)
    session.execute(text("INSERT INTO checked VALUES (1, 2)"))
    with pytest.raises(IntegrityError, match="foreign key"):
        session.commit()
    session.rollback()
    session.commit()
    assert heard == []
    assert run.reload().status == "ready"


@pytest.mark.parametrize(("raised", "in_session"), [(RuntimeError, False), (SystemExit, True)])
def test_a_subscriber_that_raises_is_logged_and_the_others_still_hear(
    run, session, heard, caplog, raised, in_session
):
    def broken(_payload):
        raise raised("the subscriber is ill")

    signal("pgbus.workflow_paused").connect(broken)
    run.pause(session=session if in_session else None)
    session.commit()
    signal("pgbus.workflow_paused").disconnect(broken)
    assert run.reload().status == "paused"
    assert heard == [paused(run)]
    assert "A subscriber to WorkflowPaused raised" in caplog.text
    assert "the subscriber is ill" in caplog.text


def test_a_receiver_of_one_payload_hears_no_other(run, other):
    mine = []

    def hear(payload):
        mine.append(payload)

    signal("pgbus.workflow_paused").connect(hear, sender=paused(run))
    other.pause()
    assert mine == []


def test_a_session_that_told_events_is_not_kept_alive(run, database):
    session = Session(database.engine)
    run.pause(session=session)
    session.commit()
    session.close()
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


def test_two_sessions_do_not_hear_of_each_other(run, other, database, heard):
    with Session(database.engine) as one, Session(database.engine) as two:
        run.pause(session=one)
        other.pause(session=two)
        two.commit()
        assert heard == [paused(other)]
        one.rollback()
        two.commit()
    assert heard == [paused(other)]


def test_every_payload_has_a_signal():
    assert set(emission._SIGNALS) == set(emission.Payload.__args__)
    assert sorted(one.name for one in emission._SIGNALS.values()) == sorted(NAMES)
