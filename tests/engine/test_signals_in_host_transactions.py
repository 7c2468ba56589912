"""A signal in a host's transaction: stored, taken, sent and told of when that commits, or never."""

from __future__ import annotations

from contextlib import contextmanager, suppress

import blinker
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from support.database import Database
from support.hosts import Purchase, make_purchases, messages
from support.replay import told

from pgbus import SignalMatcher, Workflow, step
from pgbus.engine.errors import NotOngoing, SignalKeyReused, WrongDatabase
from pgbus.engine.observe.emission import SignalReceived
from pgbus.engine.states import RunStatus


class Delivery(Workflow[Purchase]):
    @step(wait_for=SignalMatcher("shipped", lambda payload: payload.get("region", "eu") == "eu"))
    def bill(self): ...


class Delicate(Workflow):
    @step(wait_for=SignalMatcher("shipped", lambda payload: payload["region"]))
    def bill(self): ...


@pytest.fixture(params=["psycopg", "psycopg2"])
def engine(request, database):
    engine = sqlalchemy.create_engine(database.sqlalchemy_url(request.param))
    yield engine
    engine.dispose()


@contextmanager
def opened(engine, kind):
    match kind:
        case "session":
            host = Session(engine)
        case "scoped_session":
            host = scoped_session(sessionmaker(engine))
        case "connection":
            host = engine.connect()
    try:
        yield host
    finally:
        host.close()


@pytest.fixture(params=["session", "scoped_session", "connection"])
def host(request, engine):
    with opened(engine, request.param) as host:
        yield host


@pytest.fixture
def session(database):
    with Session(database.engine) as session:
        yield session


@pytest.fixture
def run(bus, database, driver):
    """A run that waits to be shipped."""
    make_purchases(database, 1)
    run = Delivery.start(Purchase(id=1))
    driver.drain()
    assert run.reload().status is RunStatus.WAITING
    return run


@pytest.fixture
def heard():
    payloads = []
    receiver = payloads.append
    blinker.signal("pgbus.workflow.signal").connect(receiver)
    return payloads, receiver


def received(run, name="shipped", *, duplicate=False):
    return SignalReceived(run.workflow_class, run.workflow_id, name, duplicate=duplicate)


def seen(bus, database, run):
    """What anyone outside the host's transaction sees of the run and its signals."""
    found = bus.find(run.workflow_id)
    return found.status, [str(signal.status) for signal in found.signals], len(messages(database))


def test_a_signal_wakes_its_step_when_the_host_commits(bus, database, driver, run, host):
    before = told(run)
    host.execute(sqlalchemy.text("UPDATE purchases SET state = 'shipped'"))
    sent = run.signal("shipped", {"n": 1}, "event-7", session=host)
    assert (sent.payload, sent.duplicate_delivery) == ({"n": 1}, False)
    assert seen(bus, database, run) == (RunStatus.WAITING, [], 0)
    assert told(run) == before
    host.commit()
    assert seen(bus, database, run) == (RunStatus.READY, ["claimed"], 1)
    assert database.value("SELECT state FROM purchases") == "shipped"
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_nothing_of_a_signal_is_left_by_a_rollback(bus, database, run, host, heard):
    before = told(run)
    run.signal("shipped", idempotency_key="event-7", session=host)
    host.rollback()
    host.commit()
    assert seen(bus, database, run) == (RunStatus.WAITING, [], 0)
    assert (told(run), heard[0]) == (before, [])
    assert run.signal("shipped", idempotency_key="event-7").duplicate_delivery is False


def test_a_rolled_back_savepoint_takes_only_its_own_signal_along(bus, database, run, host):
    run.signal("lost", session=host)
    savepoint = host.begin_nested()
    run.signal("shipped", session=host)
    savepoint.rollback()
    host.commit()
    assert seen(bus, database, run) == (RunStatus.WAITING, ["pending"], 0)
    assert [signal.name for signal in run.signals] == ["lost"]


def test_a_signal_is_told_of_after_the_commit_and_not_of_a_rolled_back_savepoint(
    run, session, heard
):
    payloads, _ = heard
    with suppress(LookupError), session.begin_nested():
        run.signal("lost", session=session)
        raise LookupError
    run.signal("shipped", idempotency_key="k", session=session)
    run.signal("shipped", idempotency_key="k", session=session)
    assert payloads == []
    session.commit()
    assert payloads == [received(run), received(run, duplicate=True)]


def test_a_bare_connection_tells_of_nothing(database, run, heard):
    with database.engine.connect() as connection:
        run.signal("shipped", session=connection)
        connection.commit()
    assert (run.reload().status, heard[0]) == (RunStatus.READY, [])


def test_a_key_used_in_the_same_transaction_is_known_in_it(run, host):
    first = run.signal("lost", idempotency_key="k", session=host)
    again = run.signal("lost", idempotency_key="k", session=host)
    assert (again.signal_id, again.duplicate_delivery) == (first.signal_id, True)
    with pytest.raises(SignalKeyReused):
        run.signal("shipped", idempotency_key="k", session=host)
    host.commit()
    assert [signal.name for signal in run.signals] == ["lost"]


def test_a_refused_signal_leaves_the_hosts_transaction_usable(bus, database, driver, host):
    run = Delicate.start()
    driver.drain()
    host.execute(sqlalchemy.text("CREATE TABLE notes (note text)"))
    with pytest.raises(KeyError):
        run.signal("shipped", session=host)
    host.execute(sqlalchemy.text("INSERT INTO notes VALUES ('kept')"))
    run.signal("lost", session=host)
    host.commit()
    assert database.value("SELECT note FROM notes") == "kept"
    assert seen(bus, database, run) == (RunStatus.WAITING, ["pending"], 0)


def test_a_run_that_was_cancelled_in_the_transaction_takes_no_signal_in_it(run, host):
    run.cancel(session=host)
    with pytest.raises(NotOngoing):
        run.signal("shipped", session=host)
    host.rollback()
    run.signal("shipped")
    assert run.reload().status is RunStatus.READY


def test_a_run_that_starts_in_the_transaction_can_be_signalled_in_it(bus, database, driver, host):
    make_purchases(database, 1)
    run = Delivery.options(session=host).start(Purchase(id=1))
    by_id = run.signal("lost", session=host)
    by_subject = Delivery.signal(Purchase(id=1), "shipped", session=host)
    host.commit()
    assert [signal.signal_id for signal in run.signals] == [
        by_id.signal_id, by_subject.signal_id
    ]  # fmt: skip
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_signal_by_subject_joins_the_hosts_transaction(bus, database, run, host):
    Delivery.signal(Purchase(id=1), "shipped", session=host)
    assert seen(bus, database, run) == (RunStatus.WAITING, [], 0)
    host.rollback()
    assert seen(bus, database, run) == (RunStatus.WAITING, [], 0)
    Delivery.signal(Purchase(id=1), "shipped", session=host)
    host.commit()
    assert seen(bus, database, run) == (RunStatus.READY, ["claimed"], 1)


def test_a_missing_run_is_missed_without_harm_to_the_hosts_transaction(run, host):
    run.cancel()
    assert Delivery.signal(Purchase(id=1), "shipped", session=host, missing="ignore") is None
    with pytest.raises(NotOngoing):
        Delivery.signal(Purchase(id=1), "shipped", session=host)
    assert host.execute(sqlalchemy.text("SELECT 1")).scalar() == 1


def test_a_session_of_another_database_is_refused(server, run):
    other = Database(server)
    with Session(other.engine) as session, pytest.raises(WrongDatabase):
        run.signal("shipped", session=session)
    other.close()
    assert (run.reload().status, run.signals) == (RunStatus.WAITING, [])
