"""Batches: opened in a transaction, each member counted once, callbacks sent once."""

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from blinker import signal
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session
from support.hosts import messages
from support.waiting import eventually

from pgbus import Batch, Pgbus, job
from pgbus.engine.errors import (
    AlreadyFinished,
    BatchNotFound,
    PayloadError,
    PayloadTooLarge,
    SchemaOutdated,
    WrongDatabase,
)
from pgbus.engine.identifiers import new_uuid
from pgbus.engine.jobs.execute import execute
from pgbus.engine.observe.emission import BatchFinished, JobCompleted, JobDeadLettered
from pgbus.engine.runner.members import member_messages
from pgbus.engine.storage import batches
from pgbus.engine.storage.batches import BatchPlan, NewBatch
from pgbus.engine.storage.claims import Idle

QUEUE = "pgbus_default"
DEAD = f"{QUEUE}_dlq"
UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"

calls = []


@job
def export(*args):
    calls.append(args)


@job(max_retries=1)
def fail():
    raise ValueError("no luck")


@job(queue="callbacks")
def done(batch_id, properties):
    calls.append(("done", batch_id, properties))


@job(queue="callbacks")
def good(*, batch_id, properties): ...


@job(queue="callbacks")
def bad(**anything): ...


CALLBACKS = {"on_complete": done, "on_success": good, "on_failure": bad}


@pytest.fixture(autouse=True)
def forget_calls():
    calls.clear()


@pytest.fixture
def told():
    """What subscribers hear."""
    heard = []

    def hear(payload):
        heard.append(payload)

    with ExitStack() as listening:
        for name in ("job_completed", "job_dead_lettered", "batch_finished"):
            listening.enter_context(signal(f"pgbus.{name}").connected_to(hear))
        yield heard


@pytest.fixture
def work(bus, driver, database):
    """Takes and executes until nothing of the default queue is left, whatever its time."""

    def take():
        database.rows(f"UPDATE pgmq.q_{QUEUE} SET vt = clock_timestamp()")
        taken = driver.take()
        assert not isinstance(taken, Idle), "there is no message"
        return taken

    def one():
        for delivery in take():
            execute(bus.services, delivery)

    def work():
        while database.value(f"SELECT count(*) FROM pgmq.q_{QUEUE}"):
            one()

    work.take = take
    work.one = one
    return work


def opened(*members, **options):
    """A batch of these calls, opened by itself."""
    with Batch.open(**options) as builder:
        for member in members:
            builder.add(*member)
    return Batch.find(builder.batch_id)


def counts(batch):
    batch.reload()
    return (
        batch.total_jobs,
        batch.open_jobs,
        batch.completed_jobs,
        batch.dead_lettered_jobs,
        batch.discarded_jobs,
    )


def sent_callbacks(database):
    """Of each callback that was sent, executed or not, the job's name."""
    if not database.value("SELECT to_regclass('pgmq.q_pgbus_callbacks') IS NOT NULL"):
        return []
    rows = database.rows(
        "SELECT message->>'job' FROM pgmq.q_pgbus_callbacks"
        " UNION ALL SELECT message->>'job' FROM pgmq.a_pgbus_callbacks"
    )
    return [name.rpartition(".")[2] for (name,) in rows]


def rows_left(database):
    """How much there is of batches at all."""
    return [
        database.value(f"SELECT count(*) FROM pgbus.{table}")
        for table in ("batches", "batch_jobs", "batch_counters")
    ]


def test_a_batch_is_written_and_sent_at_the_end_of_its_block(bus, database):
    with Batch.open(description="Exports", properties={"at": Decimal("1.10")}) as builder:
        builder.add(export, 7)
        builder.add_many(export.options(priority=0), [(8,), (9,)])
        assert (rows_left(database), Batch.find(builder.batch_id)) == ([0, 0, 0], None)
    batch = Batch.find(builder.batch_id)
    assert (batch.description, batch.properties) == ("Exports", {"at": Decimal("1.10")})
    assert (counts(batch), batch.finished, batch.finished_at) == ((3, 3, 0, 0, 0), False, None)
    assert batch.created_at <= datetime.now(UTC) + timedelta(minutes=1)
    assert [
        (queue, body["arguments"]["args"], body["batch"])
        for queue, _, _, body in messages(database)
    ] == [
        (QUEUE, [7], [batch.batch_id, 1]),
        (f"{QUEUE}_p0", [8], [batch.batch_id, 2]),
        (f"{QUEUE}_p0", [9], [batch.batch_id, 3]),
    ]


def test_a_members_own_wait_is_kept(bus, database):
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    opened((export,), (export.options(wait=hour),), (export.options(wait_until=now + 2 * hour),))
    waits = [visible_at - now for _, _, visible_at, _ in messages(database)]
    for wait, expected in zip(waits, [timedelta(), hour, 2 * hour], strict=True):
        assert abs(wait - expected) < timedelta(minutes=1)


def test_numbers_of_any_size_reach_a_member_exactly(bus, work):
    opened((export, 2**200 + 1))
    work()
    assert calls == [(2**200 + 1,)]


def test_thousands_of_members_are_added_in_a_few_statements(bus, database):
    statements = []
    with Session(database.engine) as session:
        session.connection()
        event.listen(database.engine, "before_cursor_execute", lambda *it: statements.append(it[2]))
        with Batch.open(session=session) as builder:
            builder.add_many(export, [(n,) for n in range(2_500)])
        session.commit()
    adding = [one for one in statements if "add_members" in one]
    # Beside it: which database it is, a savepoint's two ends, the batch's own row.
    assert (len(adding), len(statements)) == (3, 7)
    assert counts(Batch.find(builder.batch_id)) == (2_500, 2_500, 0, 0, 0)
    numbers = "SELECT array_agg((message->'batch'->>1)::int ORDER BY msg_id) FROM pgmq.q_"
    assert database.value(numbers + QUEUE) == list(range(1, 2_501))


def test_large_members_are_added_in_statements_of_a_bounded_size(bus, database):
    sizes = []

    def note(_connection, _cursor, _statement, parameters, *_):
        sizes.append(len(parameters["members"]) if "members" in parameters else 0)

    large = "é" * 15_000  # six characters each, in the document
    with Session(database.engine) as session:
        session.connection()
        event.listen(database.engine, "before_cursor_execute", note)
        with Batch.open(session=session) as builder:
            builder.add_many(export, [(large,)] * 100)
        session.commit()
    added = [size for size in sizes if size]
    assert (len(added), max(added) < 4_010_000) == (3, True)
    assert counts(Batch.find(builder.batch_id)) == (100, 100, 0, 0, 0)
    numbers = "SELECT array_agg((message->'batch'->>1)::int ORDER BY msg_id) FROM pgmq.q_"
    assert database.value(numbers + QUEUE) == list(range(1, 101))


def test_members_are_dealt_out_evenly_to_new_counters_with_each_addition(bus, database):
    with Batch.open() as builder:
        builder.add_many(export, [(n,) for n in range(1_040)])
    with Batch.find(builder.batch_id).adding() as more:
        more.add_many(export, [()] * 5)
    per_counter = database.rows(
        "SELECT c.open, count(*), min(j.number), max(j.number) FROM pgbus.batch_counters c"
        " JOIN pgbus.batch_jobs j USING (batch_id, counter) GROUP BY c.counter, c.open"
        " ORDER BY c.counter"
    )
    assert [opens for opens, *_ in per_counter] == [63] * 8 + [62] * 8 + [3] * 8 + [2] * 8 + [1] * 5
    assert all(opens == jobs for opens, jobs, *_ in per_counter)
    assert per_counter[0][2:] == (1, 993), "neighbours, which end together, are on different ones"
    assert database.value("SELECT counters FROM pgbus.batches") == 37


def test_an_error_in_the_block_leaves_nothing(bus, database):
    def fails():
        with Batch.open() as builder:
            builder.add(export)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (rows_left(database), messages(database)) == ([0, 0, 0], [])


@pytest.mark.parametrize("driver_name", ["psycopg", "psycopg2"])
def test_with_a_session_nothing_is_there_before_the_host_commits(bus, database, driver_name):
    engine = create_engine(database.sqlalchemy_url(driver_name))
    with Session(engine) as session:
        with Batch.open(session=session, **CALLBACKS) as builder:
            builder.add(export.options(wait=1.5), 7)
            builder.add(export.options(wait_until=datetime.now(UTC)), 8)
        assert (Batch.find(builder.batch_id), messages(database)) == (None, [])
        session.commit()
    engine.dispose()
    assert counts(Batch.find(builder.batch_id)) == (2, 2, 0, 0, 0)
    assert len(messages(database)) == 2


def test_a_rollback_leaves_nothing_and_a_savepoint_drops_its_own(bus, database):
    with Session(database.engine) as session:
        with Batch.open(session=session) as builder:
            builder.add(export, 1)
        session.rollback()
        with Batch.open(session=session) as builder:
            builder.add(export, 2)
        with session.begin_nested() as savepoint:
            with Batch.open(session=session) as dropped:
                dropped.add(export, 3)
            savepoint.rollback()
        session.commit()
    assert [body["arguments"]["args"] for *_, body in messages(database)] == [[2]]
    assert rows_left(database) == [1, 1, 1]


def test_a_session_of_another_database_is_refused_and_nothing_written(
    bus, database, empty_database
):
    def opens(session):
        with Batch.open(session=session) as builder:
            builder.add(export)

    with Session(empty_database.engine) as session, pytest.raises(WrongDatabase):
        opens(session)
    assert (rows_left(database), messages(database)) == ([0, 0, 0], [])


def test_a_database_that_is_not_migrated_is_said_at_once(empty_database):
    bus = Pgbus(database_url=empty_database.url)
    with pytest.raises(SchemaOutdated, match="pgbus migrate"):
        Batch.open()
    bus.close()


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_that_cannot_take_what_it_is_called_with_is_refused(bus, name):
    with pytest.raises(
        TypeError, match=rf"^{name}: .*fail\(\): .* keyword arguments batch_id and properties$"
    ):
        Batch.open(**{name: fail})


def test_a_callback_that_is_no_job_or_has_a_session_is_refused(bus):
    with pytest.raises(TypeError, match=r"^on_success: <built-in function print> is no job"):
        Batch.open(on_success=print)
    with pytest.raises(ValueError, match="leave session= out"):
        Batch.open(on_complete=done.options(session=object()))


def test_properties_that_cannot_be_stored_are_refused_at_once(bus):
    with pytest.raises(PayloadError, match=r"^properties\.x: is nan"):
        Batch.open(properties={"x": float("nan")})
    with pytest.raises(PayloadTooLarge, match=r"^properties: "):
        Batch.open(properties={"x": "y" * 131_072})


def test_a_batch_without_members_finishes_at_once(bus, database, told):
    batch = opened(description="None", **CALLBACKS)
    assert (counts(batch), batch.finished) == ((0, 0, 0, 0, 0), True)
    assert sorted(sent_callbacks(database)) == ["done", "good"]
    assert told == [BatchFinished(batch.batch_id, "None", 0, 0, 0, 0)]


def test_an_empty_batch_of_a_host_is_told_of_after_its_commit(bus, database, told):
    with Session(database.engine) as session:
        with Batch.open(session=session, on_complete=done):
            pass
        assert (told, sent_callbacks(database)) == ([], [])
        session.rollback()
        with Batch.open(session=session, on_complete=done):
            pass
        session.commit()
    assert (len(told), sent_callbacks(database)) == (1, ["done"])


def test_the_last_member_finishes_the_batch_and_sends_its_callbacks(bus, database, work, told):
    batch = opened((export, 1), (export, 2), (export, 3), description="Exports", **CALLBACKS)
    work.one()
    work.one()
    assert counts(batch) == (3, 1, 2, 0, 0)
    assert (batch.finished, sent_callbacks(database)) == (False, [])
    work.one()
    assert (counts(batch), batch.finished) == ((3, 0, 3, 0, 0), True)
    assert sorted(sent_callbacks(database)) == ["done", "good"]
    assert [type(one) for one in told] == [JobCompleted] * 3 + [BatchFinished]
    assert told[-1] == BatchFinished(batch.batch_id, "Exports", 3, 3, 0, 0)
    assert database.value("SELECT count(*) FROM pgbus.batch_counters") == 0
    assert database.rows("SELECT DISTINCT job, queue, status FROM pgbus.batch_jobs") == [
        (f"{__name__}.export", QUEUE, "completed")
    ]


def test_a_callback_is_called_with_the_batchs_id_and_properties(bus, driver):
    batch = opened(properties={"who": ("é", 1)}, on_complete=done)
    [delivery] = driver.take()
    execute(bus.services, delivery)
    assert calls == [("done", batch.batch_id, {"who": ("é", 1)})]


def test_a_callback_has_the_options_of_its_call(bus, database):
    later = datetime.now(UTC) + timedelta(hours=2)
    opened(
        on_complete=done.options(queue="slow", priority=2, wait_until=later),
        on_success=done.options(wait=3600),
    )
    now = datetime.now(UTC)
    assert {
        queue: round((visible_at - now) / timedelta(hours=1))
        for queue, _, visible_at, _ in messages(database)
    } == {"pgbus_slow_p2": 2, "pgbus_callbacks": 1}


def test_a_callbacks_queue_that_was_dropped_is_made_again(bus, database, work):
    batch = opened((export,), on_complete=done)
    database.rows("SELECT pgmq.drop_queue('pgbus_callbacks')")
    work()
    assert (counts(batch), sent_callbacks(database)) == ((1, 0, 1, 0, 0), ["done"])


def test_a_dead_letter_is_a_failed_member(bus, database, work, told):
    batch = opened((export,), (fail,), **CALLBACKS)
    work.one()
    work.one()
    assert counts(batch) == (2, 1, 1, 0, 0), "a member that is tried again has not ended"
    work()
    assert (counts(batch), batch.finished) == ((2, 0, 1, 1, 0), True)
    assert sorted(sent_callbacks(database)) == ["bad", "done"]
    assert [type(one) for one in told] == [JobCompleted, JobDeadLettered, BatchFinished]
    assert told[-1] == BatchFinished(batch.batch_id, None, 2, 1, 0, 1)


def test_a_dead_letter_that_finishes_no_batch_tells_of_none(bus, work, told):
    batch = opened((fail,), (export.options(wait=3600),))
    for _ in range(2):
        work.one()
    assert batch.reload().open_jobs + batch.dead_lettered_jobs == 2
    assert BatchFinished not in [type(one) for one in told]


def test_a_member_whose_job_is_unknown_here_is_a_dead_letter_and_counted(bus, database, work):
    batch = opened((export,))
    database.rows(f'UPDATE pgmq.q_{QUEUE} SET message = message || \'{{"job": "gone"}}\'')
    work()
    assert counts(batch) == (1, 0, 0, 1, 0)


def test_a_member_that_succeeds_after_a_failure_forgets_it(bus, database, work):
    @job
    def second_time_lucky():
        calls.append(1)
        if len(calls) == 1:
            raise ValueError

    batch = opened((second_time_lucky,))
    work.one()
    assert database.value("SELECT count(*) FROM pgbus.failed_jobs") == 1
    work.one()
    assert database.value("SELECT count(*) FROM pgbus.failed_jobs") == 0
    assert counts(batch) == (1, 0, 1, 0, 0)


def deliver_again(database, driver, delivery):
    """The next delivery of a message that a worker has in hand."""
    database.rows(f"UPDATE pgmq.q_{QUEUE} SET vt = clock_timestamp() + interval '1 hour'")
    database.rows(
        f"UPDATE pgmq.q_{QUEUE} SET vt = clock_timestamp() WHERE msg_id = %s", delivery.message_id
    )
    [again] = driver.take()
    assert (again.message_id, again.read_count) == (delivery.message_id, delivery.read_count + 1)
    return again


def test_two_deliveries_of_one_message_count_once(bus, database, driver, work, told):
    batch = opened((export,), (export,), on_complete=done)
    [slow] = driver.take()
    quick = deliver_again(database, driver, slow)
    execute(bus.services, quick)
    execute(bus.services, slow)
    assert counts(batch) == (2, 1, 1, 0, 0)
    work()
    assert (counts(batch), sent_callbacks(database)) == ((2, 0, 2, 0, 0), ["done"])
    assert sum(isinstance(one, BatchFinished) for one in told) == 1


def test_the_late_end_of_an_earlier_delivery_counts_and_the_later_does_not(bus, database, driver):
    """The job has run to its end, though its message was in other hands by then."""
    batch = opened((export,), (export,))
    [slow] = driver.take()
    quick = deliver_again(database, driver, slow)
    execute(bus.services, slow)
    assert counts(batch) == (2, 1, 1, 0, 0)
    execute(bus.services, quick)
    assert counts(batch) == (2, 1, 1, 0, 0)


def test_a_failure_of_an_earlier_delivery_counts_nothing(bus, database, driver):
    batch = opened((fail,), (export,))
    [slow] = driver.take()
    quick = deliver_again(database, driver, deliver_again(database, driver, slow))
    execute(bus.services, slow)
    assert counts(batch) == (2, 2, 0, 0, 0)
    execute(bus.services, quick)
    assert counts(batch) == (2, 1, 0, 1, 0)


def test_a_completion_after_the_dead_letter_does_not_count(bus, database, driver):
    @job(max_retries=0)
    def slow_once():
        calls.append(1)

    batch = opened((slow_once,), (export,))
    [slow] = driver.take()
    crashed = deliver_again(database, driver, slow)
    execute(bus.services, crashed)
    assert (calls, counts(batch)) == ([], (2, 1, 0, 1, 0))
    execute(bus.services, slow)
    assert (calls, counts(batch)) == ([1], (2, 1, 0, 1, 0))


def test_a_copy_of_a_members_message_counts_once(bus, database, work):
    batch = opened((export,), (export,), on_complete=done)
    database.rows(f"SELECT pgmq.send('{QUEUE}', message) FROM pgmq.q_{QUEUE} WHERE msg_id = 1")
    work()
    assert (calls.count(()), counts(batch)) == (3, (2, 0, 2, 0, 0))
    assert sent_callbacks(database) == ["done"]


def test_an_end_whose_answer_was_lost_is_told_again_and_counted_once(bus, database, work):
    batch = opened((export,), (export,), on_complete=done)
    database.rows(f"""
        CREATE SEQUENCE ends;
        CREATE FUNCTION cut_the_first() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('ends') = 1 THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER cut AFTER INSERT ON pgmq.a_{QUEUE} EXECUTE FUNCTION cut_the_first();
    """)
    work()
    assert database.value("SELECT last_value FROM ends") == 3
    assert (counts(batch), sent_callbacks(database)) == ((2, 0, 2, 0, 0), ["done"])


@pytest.mark.parametrize(
    "member",
    [
        "5", "null", '"x"', "{}", "[]", "[5]", '["x", 1]', "[null, null]", "[[], {}]",
        f'["{UNKNOWN}", 1]', f'["{UNKNOWN}", "x"]', f'["{UNKNOWN}", 99999999999]',
        f'["{UNKNOWN}", -1]', f'["{UNKNOWN}", 1.5]', f'["{UNKNOWN}"]', f'"{UNKNOWN}"',
    ],
)  # fmt: skip
@pytest.mark.parametrize("called", ["export", "gone"])
def test_a_message_whose_membership_makes_no_sense_is_a_job_like_any_other(
    bus, database, work, member, called
):
    export.enqueue()
    database.rows(
        f"UPDATE pgmq.q_{QUEUE} SET message = message || jsonb_build_object('job', %s::text,"
        " 'batch', %s::jsonb)",
        f"{__name__}.{called}",
        member,
    )
    work()
    assert len(calls) == (called == "export")
    dead = called == "gone" and database.value(f"SELECT count(*) FROM pgmq.q_{DEAD}")
    assert dead == (called == "gone")


@pytest.mark.parametrize("body", ['["batch"]', '"batch"', '{"batch": 5}'])
def test_a_body_that_is_no_envelope_but_says_batch_is_a_dead_letter(bus, database, work, body):
    bus.ensure_queues([QUEUE])
    database.rows(f"SELECT pgmq.send('{QUEUE}', %s::jsonb)", body)
    work()
    assert database.value(f"SELECT count(*) FROM pgmq.q_{DEAD}") == 1


def test_an_open_batch_takes_more_members(bus, database, work):
    batch = opened((export, 1), on_complete=done)
    with batch.adding() as more:
        assert more.batch_id == batch.batch_id
        more.add(export, 2)
        assert counts(batch) == (1, 1, 0, 0, 0)
    assert counts(batch) == (2, 2, 0, 0, 0)
    work.one()
    with Batch.find(batch.batch_id).adding() as more, more.collecting():
        export.enqueue(3)
    work()
    assert (counts(batch), calls) == ((3, 0, 3, 0, 0), [(1,), (2,), (3,)])
    assert sent_callbacks(database) == ["done"]


def test_a_member_may_add_to_its_own_batch(bus, database, work):
    ids = []

    @job
    def spawns():
        with Batch.find(ids[0]).adding() as more:
            more.add(export)

    batch = opened((spawns,), on_complete=done)
    ids.append(batch.batch_id)
    work()
    assert (counts(batch), sent_callbacks(database)) == ((2, 0, 2, 0, 0), ["done"])


def test_a_finished_batch_takes_no_more_members(bus, database):
    def adds(session=None):
        with batch.adding(session=session) as more:
            more.add(export)

    batch = opened()
    with pytest.raises(AlreadyFinished, match=rf"^Batch {batch.batch_id} has finished.*none of 1"):
        adds()
    with Session(database.engine) as session:
        with pytest.raises(AlreadyFinished):
            adds(session)
        export.options(session=session).enqueue("the host's transaction goes on")
        session.commit()
    assert counts(batch) == (0, 0, 0, 0, 0)
    assert [body.get("batch") for *_, body in messages(database)] == [None]


def test_a_finished_batch_says_so_also_when_nothing_is_added(bus, database):
    def adds_nothing(batch):
        with batch.adding():
            pass

    with pytest.raises(AlreadyFinished, match="none of 0"):
        adds_nothing(opened())
    still_open = opened((export,))
    adds_nothing(still_open)
    assert counts(still_open) == (1, 1, 0, 0, 0)
    assert database.value("SELECT max(counters) FROM pgbus.batches") == 1


def test_what_is_added_in_a_hosts_transaction_goes_with_its_rollback(bus, database, work):
    batch = opened((export,), on_complete=done)
    with Session(database.engine) as session:
        with batch.adding(session=session) as more:
            more.add_many(export, [()] * 20)
        session.rollback()
    assert (counts(batch), rows_left(database)) == ((1, 1, 0, 0, 0), [1, 1, 1])
    work()
    assert (counts(batch), sent_callbacks(database)) == ((1, 0, 1, 0, 0), ["done"])


def test_an_error_in_an_adding_block_adds_nothing(bus, database):
    def fails():
        with batch.adding() as more:
            more.add(export)
            raise KeyError

    batch = opened((export,))
    with pytest.raises(KeyError):
        fails()
    assert counts(batch) == (1, 1, 0, 0, 0)


def test_the_builder_is_closed_after_its_block(bus):
    with Batch.open() as builder:
        pass
    with pytest.raises(AlreadyFinished, match="nothing more is sent"):
        builder.add(export)


@pytest.mark.parametrize("batch_id", [UNKNOWN, "", "no id", "7"])
def test_what_is_no_batch_is_not_found(bus, batch_id):
    assert Batch.find(batch_id) is None


def test_a_batch_is_found_by_any_spelling_of_its_id(bus):
    batch = opened()
    for spelling in (batch.batch_id.upper(), UUID(batch.batch_id)):
        assert Batch.find(spelling).batch_id == batch.batch_id


def test_a_batch_that_was_deleted_is_said(bus, database):
    batch = opened()
    database.rows("DELETE FROM pgbus.batches")
    with pytest.raises(BatchNotFound, match=rf"no batch {batch.batch_id} any more"):
        batch.reload()


RUN = "01890a5d-ac96-774b-bcce-b302099a8058"


@pytest.fixture
def fan_out(bus):
    """Opens the batch of a step, as the runner does."""

    def fan_out(*jobs):
        services = bus.services
        new = NewBatch(
            batch_id=new_uuid(), description="Shop#fan", properties="{}",
            workflow_id=RUN, step_id=7, step_queue="pgbus_workflows",
        )  # fmt: skip
        bus.ensure_queues(["pgbus_workflows"])
        members = member_messages(services, [one.call((), {}) for one in jobs])
        with services.database.transaction() as connection:
            batches.open_batch(connection, BatchPlan(new, tuple(members)))
        return Batch.find(new.batch_id)

    return fan_out


@pytest.fixture
def withdraw(bus):
    def withdraw(batch):
        with bus.services.database.autocommit() as connection:
            return batches.withdraw(connection, batch.batch_id)

    return withdraw


def completions(database):
    return [body for queue, *_, body in messages(database) if queue == "pgbus_workflows"]


def test_a_fan_outs_completion_is_told_on_its_steps_queue_once(bus, database, work, fan_out):
    batch = fan_out(export, fail)
    work.one()
    assert completions(database) == []
    work()
    assert completions(database) == [{"workflow_id": RUN, "batch_id": batch.batch_id}]


def test_members_of_a_withdrawn_batch_are_discarded_without_running(
    bus, database, driver, work, fan_out, withdraw, told
):
    batch = fan_out(export, fail, export, export)
    [running] = driver.take()
    [failing] = driver.take()
    execute(bus.services, failing)
    assert withdraw(batch) == 4
    database.rows(f"UPDATE pgmq.q_{QUEUE} SET vt = clock_timestamp() WHERE msg_id > 1")
    for _ in range(3):
        [withdrawn] = driver.take()
        execute(bus.services, withdrawn)
    assert counts(batch) == (4, 1, 0, 0, 3)
    assert isinstance(driver.take(), Idle)
    assert database.value("SELECT count(*) FROM pgbus.failed_jobs") == 0
    assert (calls, batch.finished) == ([], False)
    execute(bus.services, running)
    assert (calls, counts(batch), batch.finished) == ([()], (4, 0, 1, 0, 3), True)
    assert database.value(f"SELECT count(*) FROM pgmq.a_{QUEUE}") == 4
    assert completions(database) == []
    assert [type(one) for one in told] == [JobCompleted, BatchFinished]


def test_a_withdrawn_batch_may_end_by_discards_alone(
    bus, database, driver, fan_out, withdraw, told
):
    batch = fan_out(export)
    withdraw(batch)
    export.enqueue("another's")
    [withdrawn] = driver.take()
    execute(bus.services, withdrawn)
    assert (counts(batch), batch.finished) == ((1, 0, 0, 0, 1), True)
    assert [type(one) for one in told] == [BatchFinished]
    [delivery] = driver.take()
    execute(bus.services, delivery)
    assert (calls, completions(database)) == ([("another's",)], [])


def test_the_late_end_of_a_member_that_was_discarded_does_not_count(
    bus, database, driver, fan_out, withdraw
):
    batch = fan_out(export, export)
    [frozen] = driver.take()
    withdraw(batch)
    database.rows(f"UPDATE pgmq.q_{QUEUE} SET vt = clock_timestamp()")
    for _ in range(2):
        [withdrawn] = driver.take()
        execute(bus.services, withdrawn)
    execute(bus.services, frozen)
    assert (calls, counts(batch)) == ([()], (2, 0, 0, 0, 2))


def test_a_withdrawn_batch_takes_no_more_members(bus, database, fan_out, withdraw):
    def adds():
        with batch.adding() as more:
            more.add(export)

    batch = fan_out(export)
    withdraw(batch)
    with pytest.raises(AlreadyFinished, match="was withdrawn"):
        adds()
    assert len(messages(database)) == 1


def test_withdrawing_a_batch_again_or_one_that_finished_changes_nothing(
    bus, database, work, fan_out, withdraw
):
    batch = fan_out(export)
    assert [withdraw(batch), withdraw(batch)] == [1, 0]
    finished = fan_out(export)
    work()
    assert withdraw(finished) == 0
    with bus.services.database.autocommit() as connection:
        assert batches.find(connection, finished.batch_id).withdrawn_at is None
        assert batches.find(connection, batch.batch_id).withdrawn_at is not None
    assert database.rows("SELECT DISTINCT resolved_at IS NULL FROM pgbus.batches") == [(False,)]


def test_a_batch_whose_finish_was_lost_can_be_finished_once(bus, database, fan_out):
    """The statement that ends the last member finishes it, unless somebody kept it locked."""
    batch = fan_out(export, export)
    with bus.services.database.autocommit() as connection:
        assert not batches.finish(connection, batch.batch_id)
        database.rows("UPDATE pgbus.batch_counters SET open = 0, completed = completed + 1")
        assert batches.finish(connection, batch.batch_id)
        assert not batches.finish(connection, batch.batch_id)
        assert not batches.finish(connection, UNKNOWN)
    assert (counts(batch), len(completions(database))) == ((2, 0, 2, 0, 0), 1)


def test_the_end_of_a_member_adds_to_no_index(bus, database, work):
    with Batch.open() as builder:
        builder.add_many(export, [()] * 40)
    for _ in range(30):
        work.one()
    bus.close()  # a connection that ends tells of what it did

    def updates(table):
        return database.rows(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s", table
        )

    for table in ("batch_jobs", "batch_counters"):
        eventually(lambda table=table: updates(table) == [(30, 30)])


def test_workers_are_woken_once_for_each_queue_and_for_callbacks(bus, database, work):
    with database.connection(autocommit=True) as listening:
        listening.execute("LISTEN pgbus")
        with Batch.open(on_complete=done) as builder:
            builder.add_many(export, [()] * 3)
            builder.add(export.options(priority=0))
        heard = [one.payload for one in listening.notifies(timeout=5, stop_after=2)]
        assert heard == [QUEUE, f"{QUEUE}_p0"]
        for _ in range(4):
            work.one()
        heard = [one.payload for one in listening.notifies(timeout=5, stop_after=1)]
    assert (heard, Batch.find(builder.batch_id).finished) == (["pgbus_callbacks"], True)
