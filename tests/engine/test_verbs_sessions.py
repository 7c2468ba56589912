"""Outside verbs in a host's transaction."""

from __future__ import annotations

import pytest
import sqlalchemy
from blinker import signal
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from support.database import Database
from support.driving import Driver

from pgbus import Pgbus, Workflow, step
from pgbus.engine.errors import (
    InvalidTransition,
    RunLocked,
    RunNotFound,
    StepNotDefined,
    WrongDatabase,
)


class Slow(Workflow):
    @step
    def first(self):
        self.pause()

    @step
    def second(self): ...


@pytest.fixture(params=["psycopg", "psycopg2"])
def engine(database, request):
    engine = sqlalchemy.create_engine(database.sqlalchemy_url(request.param))
    yield engine
    engine.dispose()


@pytest.fixture
def paused_events():
    heard = []
    receiver = heard.append
    signal("pgbus.workflow_paused").connect(receiver)
    return heard, receiver


def status(run):
    return Slow.find(run.workflow_id).status


def queued(database):
    return database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows")


def test_nothing_of_a_verb_is_seen_sent_or_told_before_the_host_commits(
    bus, driver, database, engine, paused_events
):
    heard, _ = paused_events
    run = Slow.start()
    driver.drain()
    heard.clear()
    events = len(run.events)
    with Session(engine) as session:
        run.resume(session=session)
        run.pause(session=session)
        run.resume(session=session)
        assert run.status == "ready"
        assert status(run) == "paused"
        assert len(run.events) == events
        assert queued(database) == 0
        assert heard == []
        session.commit()
    assert status(run) == "ready"
    assert queued(database) == 2
    assert [payload.workflow_id for payload in heard] == [run.workflow_id]
    driver.drain()
    assert status(run) == "finished"


def test_after_a_rollback_nothing_happened(bus, database, engine, paused_events):
    heard, _ = paused_events
    run = Slow.start()
    before = run.steps, run.events
    with Session(engine) as session:
        run.pause(session=session)
        session.rollback()
        session.commit()
    assert heard == []
    assert (run.steps, run.events) == before
    assert run.reload().status == "ready"


def test_a_savepoint_that_is_rolled_back_takes_its_verb_with_it(bus, engine, paused_events):
    heard, _ = paused_events
    kept, dropped = Slow.start(), Slow.start()
    with Session(engine) as session:
        kept.pause(session=session)
        savepoint = session.begin_nested()
        dropped.pause(session=session)
        savepoint.rollback()
        session.commit()
    assert (status(kept), status(dropped)) == ("paused", "ready")
    assert [payload.workflow_id for payload in heard] == [kept.workflow_id]


def test_a_scoped_session_and_a_connection_will_do(bus, engine, paused_events):
    heard, _ = paused_events
    run, other = Slow.start(), Slow.start()
    scope = scoped_session(sessionmaker(engine))
    run.pause(session=scope)
    assert status(run) == "ready"
    scope.commit()
    scope.remove()
    assert status(run) == "paused"
    with engine.connect() as connection:
        other.pause(session=connection)
        assert status(other) == "ready"
        connection.commit()
    assert status(other) == "paused"
    # A bare connection gives no word of its commit.
    assert [payload.workflow_id for payload in heard] == [run.workflow_id]


def test_every_verb_joins(bus, driver, engine):
    run = Slow.start()
    with Session(engine) as session:
        run.run_now(session=session)
        run.reschedule(run.created_at, session=session)
        run.pause(session=session)
        run.resume(session=session)
        run.pause(session=session)
        run.skip(session=session)
        run.pause(session=session)
        run.resume_at("first", session=session)
        run.cancel(session=session)
        fresh = run.rerun(session=session)
        assert Slow.find(fresh.workflow_id) is None
        assert len(run.events) == 2
        session.commit()
    assert [str(event.event) for event in run.events] == [
        "started", "step_scheduled", "run_now", "rescheduled", "paused", "resumed", "paused",
        "step_skipped", "step_scheduled", "paused", "resumed", "step_scheduled", "cancelled", "rerun",
    ]  # fmt: skip
    driver.drain()
    assert status(fresh) == "paused"


def test_a_refused_verb_leaves_the_hosts_transaction_usable(bus, database, engine):
    run = Slow.start()
    gone = Slow.start()
    database.rows("DELETE FROM pgbus.workflow_steps WHERE workflow_id = %s", gone.workflow_id)
    database.rows("DELETE FROM pgbus.workflows WHERE workflow_id = %s", gone.workflow_id)
    with Session(engine) as session:
        session.execute(sqlalchemy.text("CREATE TABLE host (n int)"))
        with pytest.raises(InvalidTransition):
            run.resume(session=session)
        run.pause(session=session)
        with pytest.raises(StepNotDefined):
            run.resume_at("third", session=session)
        with pytest.raises(RunNotFound):
            gone.pause(session=session)
        session.commit()
    assert database.value("SELECT count(*) FROM host") == 0
    assert status(run) == "paused"


def test_a_lock_not_had_in_time_leaves_the_hosts_transaction_usable(bus, database, engine):
    run = Slow.start()
    database.rows("ALTER FUNCTION pgbus.lock_run SET lock_timeout = '50ms'")
    with Session(engine) as session, database.connection() as holder:
        holder.execute("SELECT FROM pgbus.workflows FOR UPDATE")
        with pytest.raises(RunLocked):
            run.pause(session=session)
        holder.rollback()
        run.pause(session=session)
        session.commit()
    assert status(run) == "paused"


def test_a_host_transaction_that_asked_a_verb_keeps_others_waiting_until_it_ends(
    bus, database, engine
):
    run = Slow.start()
    database.rows("ALTER FUNCTION pgbus.lock_run SET lock_timeout = '50ms'")
    with Session(engine) as session:
        run.pause(session=session)
        with pytest.raises(RunLocked):
            Slow.find(run.workflow_id).cancel()
        session.rollback()
    assert run.cancel().status == "cancelled"


def test_a_verb_in_an_open_host_transaction_holds_no_message(bus, driver, database, engine):
    """The heartbeat of a worker that has the message in hand must not wait for the host."""
    run = Slow.start()
    with Session(engine) as session, database.connection() as worker:
        run.pause(session=session)
        run.resume(session=session)
        run.cancel(session=session)
        worker.execute("SET lock_timeout = '50ms'")
        locked = worker.execute("SELECT msg_id FROM pgmq.q_pgbus_workflows FOR UPDATE").fetchall()
        assert len(locked) == 1
        session.rollback()


def test_a_session_of_another_database_is_refused(bus, server, template):
    run = Slow.start()
    other = Database(server, template=template)
    try:
        with Session(other.engine) as session, pytest.raises(WrongDatabase):
            run.pause(session=session)
    finally:
        assert other.close() == []
    assert status(run) == "ready"


def test_a_verb_in_a_transactional_body_on_its_own_run_commits_with_the_step(database):
    bus = Pgbus(database_url=database.url, session_factory=sessionmaker(database.engine))
    try:
        run = Doubtful.start()
        Driver(bus).drain()
        assert run.reload().status == "paused"
        assert run.steps[0].status == "completed"
        assert [str(event.event) for event in run.events[2:]] == [
            "step_started", "paused", "step_completed",
        ]  # fmt: skip
        run.resume()
        Driver(bus).drain()
        assert run.reload().status == "finished"
    finally:
        bus.close()


class Doubtful(Workflow):
    @step(transactional=True)
    def only(self):
        Doubtful.find(self.workflow_id).pause(session=self.session)


def test_a_rerun_that_the_host_rolls_back_never_was(bus, engine):
    run = Slow.start().cancel()
    with Session(engine) as session:
        fresh = run.rerun(session=session)
        session.rollback()
    assert run.reruns == []
    assert run.events[-1].event == "cancelled"
    with pytest.raises(RunNotFound):
        fresh.reload()
