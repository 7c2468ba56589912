"""A start joins the host's transaction: it exists when that commits, else it never was."""

import asyncio
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from support.database import Database
from support.hosts import NOTHING, ONE_RUN, Purchase, make_purchases, messages, stored

from pgbus import Pgbus, Workflow, step
from pgbus.engine.errors import (
    AlreadyRunning,
    PayloadError,
    SchemaOutdated,
    UnknownSubject,
    WrongDatabase,
)
from pgbus.engine.storage.migrate import migrate


class Checkout(Workflow[Purchase]):
    @step
    def pay(self): ...


class FirstHalfPastTwo(Workflow):
    moment = datetime(2030, 10, 27, 0, 30, tzinfo=UTC)

    @step(job_options={"wait_until": moment})
    def act(self): ...


class SecondHalfPastTwo(Workflow):
    moment = datetime(2030, 10, 27, 1, 30, tzinfo=UTC)

    @step(job_options={"wait_until": moment})
    def act(self): ...


HOST_CLASSES = ["session", "scoped_session", "connection"]


@contextmanager
def open_host(engine, host_class):
    match host_class:
        case "session":
            opened = Session(engine)
        case "scoped_session":
            opened = scoped_session(sessionmaker(engine))
        case "connection":
            opened = engine.connect()
    try:
        yield opened
    finally:
        opened.close()


def starts(session=None):
    """A single start and a bulk start, each in the host's session."""
    options = Checkout.options(session=session)
    return [options.start, lambda: options.start_many([(None, {})])]


@pytest.fixture(params=["psycopg", "psycopg2"])
def host_engine(request, database):
    engine = sqlalchemy.create_engine(database.sqlalchemy_url(request.param))
    yield engine
    engine.dispose()


@pytest.fixture(params=HOST_CLASSES)
def host_class(request):
    return request.param


@pytest.fixture
def host(host_class, host_engine):
    with open_host(host_engine, host_class) as host:
        yield host


def test_a_start_exists_from_the_hosts_commit_on(bus, database, host):
    make_purchases(database, 1)
    host.execute(sqlalchemy.text("UPDATE purchases SET state = 'ordered'"))
    run = Checkout.options(session=host).start(Purchase(id=1), plan="pro")
    assert stored(database) == NOTHING
    assert bus.find(run.workflow_id) is None
    host.commit()
    assert stored(database) == ONE_RUN
    assert database.value("SELECT state FROM purchases") == "ordered"
    assert bus.find(run.workflow_id).arguments == {"plan": "pro"}
    [(_, _, _, body)] = messages(database)
    assert body == {"workflow_id": run.workflow_id}


def test_nothing_of_a_start_is_left_by_a_rollback(bus, database, host):
    run = Checkout.options(session=host).start(idempotent="no")
    host.rollback()
    host.commit()
    assert stored(database) == NOTHING
    assert bus.find(run.workflow_id) is None


def test_a_rolled_back_savepoint_takes_only_its_own_start_along(bus, database, host):
    kept = Checkout.options(session=host).start()
    savepoint = host.begin_nested()
    lost = Checkout.options(session=host).start()
    savepoint.rollback()
    host.commit()
    assert stored(database) == ONE_RUN
    assert bus.find(lost.workflow_id) is None
    assert bus.find(kept.workflow_id) is not None


def test_a_released_savepoint_keeps_its_start(bus, database, host):
    with host.begin_nested():
        Checkout.options(session=host).start()
    host.commit()
    assert stored(database) == ONE_RUN


def test_a_released_savepoint_goes_with_the_outer_rollback(bus, database, host):
    with host.begin_nested():
        Checkout.options(session=host).start()
    host.rollback()
    assert stored(database) == NOTHING


def test_a_loser_leaves_the_hosts_transaction_usable(bus, database, host):
    make_purchases(database, 1)
    holder = Checkout.start(Purchase(id=1))
    host.execute(sqlalchemy.text("UPDATE purchases SET state = 'ordered'"))
    with pytest.raises(AlreadyRunning) as raised:
        Checkout.options(session=host).start(Purchase(id=1))
    assert raised.value.run.workflow_id == holder.workflow_id
    host.execute(sqlalchemy.text("UPDATE purchases SET state = state || ' and told'"))
    host.commit()
    assert database.value("SELECT state FROM purchases") == "ordered and told"
    assert stored(database) == ONE_RUN


def test_a_duplicate_leaves_the_hosts_transaction_usable(bus, database, host):
    first = Checkout.options(idempotency_key="k").start()
    again = Checkout.options(session=host, idempotency_key="k").start()
    assert (again.workflow_id, again.duplicate_start) == (first.workflow_id, True)
    Checkout.options(session=host).start()
    host.commit()
    assert stored(database)["workflows"] == 2


def test_many_starts_join_the_hosts_transaction(bus, database, host):
    make_purchases(database, 3)
    holder = Checkout.start(Purchase(id=2))
    results = Checkout.options(session=host).start_many(
        [(Purchase(id=n), {"n": n}) for n in (3, 2, 1)]
    )
    assert stored(database) == ONE_RUN
    assert results[1].run.workflow_id == holder.workflow_id
    host.commit()
    assert stored(database)["workflows"] == 3
    for n, run in ((3, results[0]), (1, results[2])):
        assert bus.find(run.workflow_id).arguments == {"n": n}


def test_many_starts_are_gone_with_the_hosts_rollback(bus, database, host):
    Checkout.options(session=host).start_many([(None, {})] * 5)
    host.rollback()
    assert stored(database) == NOTHING


def test_a_loser_sees_the_holder_of_its_own_uncommitted_transaction(bus, database, host):
    make_purchases(database, 1)
    holder = Checkout.options(session=host).start(Purchase(id=1))
    with pytest.raises(AlreadyRunning) as raised:
        Checkout.options(session=host).start(Purchase(id=1))
    assert raised.value.run.workflow_id == holder.workflow_id
    host.commit()
    assert stored(database) == ONE_RUN


def test_a_start_that_is_refused_leaves_the_hosts_transaction_as_it_was(bus, database, host):
    Checkout.options(session=host).start()
    with pytest.raises(PayloadError, match=r"arguments\.price: is a builtins.object"):
        Checkout.options(session=host).start(price=object())
    host.commit()
    assert stored(database) == ONE_RUN


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_start_joins_a_transaction_of_a_stricter_isolation(bus, database, host_engine, level):
    make_purchases(database, 2)
    holder = Checkout.start(Purchase(id=1))
    engine = host_engine.execution_options(isolation_level=level)
    with Session(engine) as session:
        session.execute(sqlalchemy.text("SELECT count(*) FROM purchases"))
        run = Checkout.options(session=session).start(Purchase(id=2))
        with pytest.raises(AlreadyRunning) as raised:
            Checkout.options(session=session).start(Purchase(id=1))
        assert raised.value.run.workflow_id == holder.workflow_id
        many = Checkout.options(session=session).start_many([(Purchase(id=1), {}), (None, {})])
        session.commit()
    assert bus.find(run.workflow_id) is not None
    assert many[0].run.workflow_id == holder.workflow_id
    assert stored(database)["workflows"] == 3


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_holder_newer_than_the_hosts_snapshot_is_a_serialization_failure(
    bus, database, host_engine, level
):
    make_purchases(database, 1)
    engine = host_engine.execution_options(isolation_level=level)
    with Session(engine) as session:
        session.execute(sqlalchemy.text("SELECT count(*) FROM purchases"))
        holder = Checkout.start(Purchase(id=1))
        with pytest.raises(DBAPIError) as raised:
            Checkout.options(session=session).start(Purchase(id=1))
        cause = raised.value.orig
        assert "40001" in (getattr(cause, "sqlstate", None), getattr(cause, "pgcode", None))
        session.rollback()
        with pytest.raises(AlreadyRunning) as refused:
            Checkout.options(session=session).start(Purchase(id=1))
    assert refused.value.run.workflow_id == holder.workflow_id


def test_pending_objects_stay_pending_and_are_committed_beside_the_run(bus, database, host_engine):
    make_purchases(database, 0)
    with Session(host_engine) as session:
        purchase = Purchase(id=7)
        session.add(purchase)
        Checkout.options(session=session).start(purchase)
        assert purchase in session.new
        session.commit()
    assert database.value("SELECT id FROM purchases") == 7
    assert database.rows("SELECT subject_type, subject_id FROM pgbus.workflows") == [
        ("Purchase", "7")
    ]


def test_a_pending_object_without_a_key_is_refused_with_the_mend(bus, database, host_engine):
    make_purchases(database, 0)
    with Session(host_engine) as session:
        purchase = Purchase()
        session.add(purchase)
        with pytest.raises(UnknownSubject, match=r"no primary key yet; .* flush\(\) first"):
            Checkout.options(session=session).start(purchase)
        session.flush()
        Checkout.options(session=session).start(purchase)
        session.commit()
    assert stored(database) == ONE_RUN


def test_an_expired_subject_costs_no_query(bus, database, host_engine):
    make_purchases(database, 1)
    with Session(host_engine) as session:
        purchase = session.get(Purchase, 1)
        session.expire(purchase)
        Checkout.options(session=session).start(purchase)
        assert "state" in sqlalchemy.inspect(purchase).expired_attributes
        session.commit()
    assert stored(database) == ONE_RUN


@pytest.mark.parametrize("workflow", [FirstHalfPastTwo, SecondHalfPastTwo])
def test_an_hour_that_the_hosts_time_zone_has_twice_is_not_mistaken(
    bus, database, host_engine, workflow
):
    with Session(host_engine) as session:
        session.execute(sqlalchemy.text("SET TIME ZONE 'Europe/Berlin'"))
        run = workflow.options(session=session).start()
        [many] = workflow.options(session=session).start_many([(None, {})])
        session.commit()
    due = [attempt.scheduled_at for one in (run, many) for attempt in one.steps]
    assert due == [workflow.moment] * 2


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_host_in_autocommit_is_refused_since_nothing_of_it_could_be_rolled_back(
    bus, database, driver
):
    engine = sqlalchemy.create_engine(
        database.sqlalchemy_url(driver), isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool
    )
    with engine.connect() as host, pytest.raises(WrongDatabase, match="AUTOCOMMIT"):
        Checkout.options(session=host).start()
    assert stored(database) == NOTHING


def test_a_session_of_another_database_is_refused_before_anything_is_written(
    bus, database, server, template, host_class
):
    other = Database(server, template=template)
    with open_host(other.engine, host_class) as host:
        for start in starts(host):
            with pytest.raises(WrongDatabase) as raised:
                start()
            assert other.name in str(raised.value)
            assert database.name in str(raised.value)
        host.commit()
    left = other.close()
    assert left == []
    assert stored(database) == NOTHING
    assert database.value("SELECT count(*) FROM pgbus.workflow_definitions") == 0
    assert database.value("SELECT count(*) FROM pgmq.meta") == 0


def test_a_session_of_a_database_without_the_schema_is_refused(bus, database, server):
    other = Database(server)
    with Session(other.engine) as session, pytest.raises(WrongDatabase):
        Checkout.options(session=session).start()
    other.close()
    assert stored(database) == NOTHING


def test_a_password_is_not_told_by_the_refusal(bus, server, template):
    other = Database(server, template=template)
    engine = sqlalchemy.create_engine(other.sqlalchemy_url("psycopg").set(password="hunter2"))
    with Session(engine) as session, pytest.raises(WrongDatabase) as raised:
        Checkout.options(session=session).start()
    engine.dispose()
    other.close()
    assert "hunter2" not in str(raised.value)


def test_a_clone_in_another_cluster_is_refused(bus, database, crashable_server):
    with psycopg.connect(crashable_server.admin_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database.name}"')
    engine = sqlalchemy.create_engine(
        sqlalchemy.make_url(crashable_server.url(database.name)).set(
            drivername="postgresql+psycopg"
        )
    )
    migrate(engine, "pgbus")
    with Session(engine) as session, pytest.raises(WrongDatabase):
        Checkout.options(session=session).start()
    engine.dispose()
    assert stored(database) == NOTHING


def test_a_session_of_another_dialect_is_refused(bus, database, host_class):
    engine = sqlalchemy.create_engine("sqlite://")
    with open_host(engine, host_class) as host, pytest.raises(WrongDatabase, match="sqlite"):
        Checkout.options(session=host).start()
    assert stored(database) == NOTHING


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "make",
    [
        AsyncSession,
        lambda engine: async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1),
        lambda engine: scoped_session(async_sessionmaker(engine)),
        AsyncConnection,
        lambda engine: engine,
        lambda engine: engine.sync_engine,
        lambda engine: "postgresql://",
    ],
)
def test_what_is_no_session_is_refused_with_the_mend(bus, database, make):
    engine = create_async_engine(database.sqlalchemy_url("psycopg"))
    with pytest.raises(WrongDatabase, match="give a SQLAlchemy Session, scoped_session or Conn"):
        Checkout.options(session=make(engine)).start()
    assert stored(database) == NOTHING


def test_an_asynchronous_session_starts_inside_run_sync(bus, database):
    async def start():
        engine = create_async_engine(database.sqlalchemy_url("psycopg"))
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda sync: Checkout.options(session=sync).start())
            assert stored(database) == NOTHING
            await session.commit()
        await engine.dispose()

    asyncio.run(start())
    assert stored(database) == ONE_RUN


def test_another_engine_of_the_same_database_is_as_good(bus, database, host_engine):
    for engine in (database.engine, host_engine, host_engine.execution_options(logging_token="x")):
        with Session(engine) as session:
            Checkout.options(session=session).start()
            session.commit()
    assert stored(database)["workflows"] == 3


def test_a_database_that_is_not_migrated_is_told_before_anything_is_written(empty_database):
    bus = Pgbus(database_url=empty_database.url)
    for options in ({}, {"session": Session(empty_database.engine)}):
        for start in starts(**options):
            with pytest.raises(SchemaOutdated, match="run `pgbus migrate`"):
                start()
        if options:
            options["session"].close()
    bus.migrate()
    Checkout.start()
    bus.close()
    assert stored(empty_database) == ONE_RUN
