"""Executing: one delivered message at a time, settled by what came of it."""

import asyncio
import logging
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from decimal import Decimal
from unittest.mock import ANY

import psycopg
import pytest
from blinker import signal
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker
from support.driving import Driver

from pgbus import Batch, Pgbus, current_delivery, job, register_subject
from pgbus.engine.definition.delivery import JobDelivery
from pgbus.engine.jobs.execute import backoff, execute
from pgbus.engine.observe.emission import BatchFinished, JobCompleted, JobDeadLettered, JobFailed
from pgbus.engine.storage import jobs, messages

QUEUE = "pgbus_default"
DEAD = "pgbus_default_dlq"
PAYLOAD_ERROR = "pgbus.engine.errors.PayloadError"

calls = []


class Model(DeclarativeBase):
    pass


class Vendor(Model):
    __tablename__ = "vendors"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


register_subject(Vendor)


@job
def note(*args, **kwargs):
    calls.append((args, kwargs))


@job(max_retries=2)
def fail(error=None):
    calls.append(error)
    raise error or ValueError("no luck")


@job(max_retries=0)
def last_try():
    raise ValueError("no luck")


NOTE = f"{__name__}.note"
FAIL = f"{__name__}.fail"


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
        for name in ("job_completed", "job_failed", "job_dead_lettered", "batch_finished"):
            listening.enter_context(signal(f"pgbus.{name}").connected_to(hear))
        yield heard


@pytest.fixture
def work(bus, driver, database):
    """Takes the one message there is, whatever its time, and executes it."""

    def work():
        delivery = take()
        execute(bus.services, delivery)
        return delivery

    def take():
        for (queue,) in database.rows("SELECT queue_name FROM pgmq.meta"):
            database.rows(f"UPDATE pgmq.q_{queue} SET vt = clock_timestamp()")
        [delivery] = driver.take()
        return delivery

    work.take = take
    return work


def waiting(database, queue=QUEUE):
    if not database.value("SELECT to_regclass(%s) IS NOT NULL", f"pgmq.q_{queue}"):
        return 0
    return database.value(f"SELECT count(*) FROM pgmq.q_{queue}")


def archived(database, queue=QUEUE):
    return database.value(f"SELECT count(*) FROM pgmq.a_{queue}")


def failed_jobs(database):
    return database.rows(
        "SELECT queue, message_id, job, read_count, error_class, error_message"
        " FROM pgbus.failed_jobs"
    )


def dead_letters(database, queue=DEAD):
    return database.rows(f"SELECT message, headers FROM pgmq.q_{queue}")


def send(bus, body, queue=QUEUE):
    bus.ensure_queues([queue])
    with bus.services.database.autocommit() as connection:
        return messages.send(connection, queue, body, wait=0, not_before=None)


def test_a_job_that_returns_is_archived_and_told(bus, database, work, told):
    message_id = note.enqueue(7, copy=True)
    work()
    assert calls == [((7,), {"copy": True})]
    assert (waiting(database), archived(database), failed_jobs(database)) == (0, 1, [])
    [completed] = told
    assert (completed.job, completed.queue, completed.message_id) == (NOTE, QUEUE, message_id)
    assert 0 <= completed.seconds < 5


def test_an_async_job_runs_on_the_event_loop_and_knows_its_delivery(bus, database, work):
    @job
    async def later(value):
        await asyncio.sleep(0)
        calls.append((value, current_delivery()))

    message_id = later.enqueue(5)
    work()
    assert calls == [(5, JobDelivery(QUEUE, message_id, 1, later.name))]
    assert archived(database) == 1


def test_a_job_knows_its_delivery_only_while_it_runs(bus, work):
    @job
    def asks():
        calls.append(current_delivery())
        if current_delivery().read_count == 1:
            raise ValueError

    message_id = asks.enqueue()
    work()
    assert current_delivery() is None
    work()
    assert calls == [JobDelivery(QUEUE, message_id, count, asks.name) for count in (1, 2)]
    assert current_delivery() is None


def test_arguments_come_back_as_they_were(bus, work):
    given = (2**200 + 1, Decimal("1.10"), (1, 2), {"a"}, timedelta(days=1), b"\0", 1.5)
    note.enqueue(*given, nested={"$decimal": 1})
    work()
    assert calls == [(given, {"nested": {"$decimal": 1}})]
    assert [type(one) for one in calls[0][0]] == [type(one) for one in given]


def test_a_success_after_failures_forgets_them(bus, database, work, told):
    @job
    def second_time_lucky():
        if current_delivery().read_count == 1:
            raise ValueError("no luck")

    second_time_lucky.enqueue()
    work()
    assert len(failed_jobs(database)) == 1
    work()
    assert (waiting(database), archived(database), failed_jobs(database)) == (0, 1, [])
    assert [type(one) for one in told] == [JobFailed, JobCompleted]


def test_an_archive_that_was_lost_with_its_connection_is_done_again(bus, database, work, told):
    note.enqueue()
    database.rows(f"""
        CREATE SEQUENCE archives;
        CREATE FUNCTION cut_the_first() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('archives') = 1 THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER cut AFTER INSERT ON pgmq.a_{QUEUE} EXECUTE FUNCTION cut_the_first();
    """)
    work()
    assert (len(calls), waiting(database), archived(database), len(told)) == (1, 0, 1, 1)
    assert database.value("SELECT last_value FROM archives") == 2


@pytest.mark.parametrize(
    ("body", "statement", "event"),
    [(note, "complete", JobCompleted), (last_try, "dead_letter", JobDeadLettered)],
)
@pytest.mark.parametrize("in_batch", [True, False], ids=["a batch's", "its own"])
def test_an_end_whose_answer_was_lost_is_told_once_like_any_other(
    bus, database, work, told, monkeypatch, body, statement, event, in_batch
):
    if in_batch:
        with bus.active(), Batch.open() as members:
            members.add(body)
    else:
        body.enqueue()
    real, answers = getattr(jobs, statement), []

    def losing_the_first_answer(*arguments):
        answers.append(real(*arguments))
        if len(answers) == 1:
            raise psycopg.OperationalError("the connection is lost")
        return answers[-1]

    monkeypatch.setattr(jobs, statement, losing_the_first_answer)
    work()
    assert len(answers) == 2
    assert [type(one) for one in told] == [event, *([BatchFinished] if in_batch else [])]


def test_a_batch_that_another_member_finished_is_not_told_again(bus, work, told, monkeypatch):
    with bus.active(), Batch.open() as members:
        members.add(note)
        members.add(note)
    first, real = work.take(), jobs.complete

    def losing_the_answer(connection, delivery):
        monkeypatch.setattr(jobs, "complete", real)
        real(connection, delivery)
        execute(bus.services, second)
        raise psycopg.OperationalError("the connection is lost")

    [second] = Driver(bus).take()
    monkeypatch.setattr(jobs, "complete", losing_the_answer)
    execute(bus.services, first)
    assert [type(one) for one in told] == [JobCompleted, BatchFinished, JobCompleted]


def test_a_dead_letter_of_another_delivery_is_not_told_again(
    bus, database, work, told, monkeypatch
):
    last_try.enqueue()
    early, late = work.take(), work.take()
    real = jobs.dead_letter

    def late_one_comes_between(*arguments):
        monkeypatch.setattr(jobs, "dead_letter", real)
        execute(bus.services, late)
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(jobs, "dead_letter", late_one_comes_between)
    execute(bus.services, early)
    assert [(type(one), one.read_count) for one in told] == [(JobDeadLettered, 2)]


@pytest.mark.parametrize("failures", [0, 1], ids=["at first", "after a failure"])
def test_a_message_that_two_deliveries_complete_is_told_once(bus, database, work, told, failures):
    note.enqueue()
    database.rows(f"UPDATE pgmq.q_{QUEUE} SET read_ct = %s", failures)
    delivery = work.take()
    execute(bus.services, delivery)
    execute(bus.services, delivery)
    assert (len(calls), archived(database), [type(one) for one in told]) == (2, 1, [JobCompleted])


def test_a_job_that_raises_is_due_again_and_its_error_kept(bus, database, work, told):
    message_id = fail.enqueue()
    work()
    left = database.value(f"SELECT vt - clock_timestamp() FROM pgmq.q_{QUEUE}")
    assert timedelta(seconds=3) < left <= timedelta(seconds=5)
    assert failed_jobs(database) == [(QUEUE, message_id, FAIL, 1, "ValueError", "no luck")]
    backtrace = database.value("SELECT error->'backtrace'->>0 FROM pgbus.failed_jobs")
    assert backtrace.endswith(" in fail")
    assert told == [JobFailed(FAIL, QUEUE, message_id, 1, "ValueError", ANY)]


def test_a_later_error_takes_the_place_of_the_one_before(bus, database, work):
    @job
    def fails_differently():
        raise (ValueError("one"), KeyError("two"))[current_delivery().read_count - 1]

    message_id = fails_differently.enqueue()
    work()
    before = database.value("SELECT failed_at FROM pgbus.failed_jobs")
    work()
    [(_, found, _, read_count, error_class, message)] = failed_jobs(database)
    assert (found, read_count, error_class, message) == (message_id, 2, "KeyError", "'two'")
    assert database.value("SELECT failed_at FROM pgbus.failed_jobs") > before


@pytest.mark.parametrize(("read_count", "most"), [(1, 5), (2, 10), (6, 160), (7, 300), (400, 300)])
def test_the_wait_doubles_up_to_five_minutes_and_is_spread(read_count, most):
    waits = [backoff(read_count) for _ in range(200)]
    assert most * 0.85 <= min(waits) < max(waits) <= most
    assert max(waits) - min(waits) > most * 0.05


@pytest.mark.parametrize(("priority", "queue"), [(0, f"{QUEUE}_p0"), (2, f"{QUEUE}_p2")])
def test_a_retry_keeps_its_priority_and_all_priorities_share_the_dead_letters(
    bus, database, work, priority, queue
):
    fail.options(priority=priority).enqueue()
    work()
    assert (waiting(database, queue), failed_jobs(database)[0][0]) == (1, queue)
    work()
    work()
    assert (waiting(database, queue), failed_jobs(database)) == (0, [])
    [(_, headers)] = dead_letters(database)
    assert headers["dead_letter"]["queue"] == queue


def test_text_that_postgresql_refuses_is_recorded_all_the_same(bus, database, work, caplog):
    # pytest-xdist cannot hand on a captured log with a surrogate in it.
    caplog.set_level(logging.CRITICAL, "pgbus.jobs")

    @job
    def fails_badly():
        raise ValueError("nul \0, surrogate \ud800")

    fails_badly.enqueue()
    work()
    assert failed_jobs(database)[0][5] == "nul \u2400, surrogate \\ud800"


def test_an_exception_outside_the_ordinary_hierarchy_is_a_failure(bus, database, work):
    @job
    async def cancelled():
        raise asyncio.CancelledError

    cancelled.enqueue()
    work()
    assert failed_jobs(database)[0][4] == "asyncio.exceptions.CancelledError"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_passes_and_leaves_the_message(bus, database, work, told, error):
    @job
    def ends():
        raise error

    ends.enqueue()
    with pytest.raises(error):
        work()
    assert (waiting(database), archived(database), failed_jobs(database)) == (1, 0, [])
    assert (told, current_delivery()) == ([], None)


def test_a_failure_of_an_earlier_delivery_leaves_the_message_to_the_later(
    bus, database, work, told
):
    fail.enqueue()
    slow = work.take()
    quick = work.take()
    until = database.value(f"SELECT vt FROM pgmq.q_{QUEUE}")
    execute(bus.services, slow)
    assert database.value(f"SELECT vt FROM pgmq.q_{QUEUE}") == until
    assert (failed_jobs(database), told) == ([], [])
    execute(bus.services, quick)
    assert (len(failed_jobs(database)), len(told)) == (1, 1)


def test_the_end_of_an_earlier_delivery_leaves_the_message_to_the_later(bus, database, work, told):
    fail.enqueue()
    for _ in range(2):
        work.take()
    last = work.take()
    later = work.take()
    execute(bus.services, last)
    assert (len(calls), waiting(database), waiting(database, DEAD), told) == (1, 1, 0, [])
    execute(bus.services, later)
    assert (len(calls), waiting(database), waiting(database, DEAD), len(told)) == (1, 0, 1, 1)


def test_a_failure_of_a_discarded_message_leaves_nothing_behind(bus, database, work, told):
    @job(max_retries=0)
    def discarded():
        database.rows("SELECT pgmq.delete(%s, %s::bigint)", QUEUE, current_delivery().message_id)
        raise ValueError

    discarded.enqueue()
    work()
    assert (waiting(database), waiting(database, DEAD), failed_jobs(database)) == (0, 0, [])
    assert told == []


def test_after_its_retries_a_message_is_a_dead_letter(bus, database, work, told):
    message_id = fail.enqueue()
    body = database.value(f"SELECT message FROM pgmq.q_{QUEUE}")
    work()
    work()
    assert waiting(database, DEAD) == 0
    work()
    assert len(calls) == 3
    assert (waiting(database), archived(database), failed_jobs(database)) == (0, 0, [])
    [(moved, headers)] = dead_letters(database)
    assert moved == body
    told_there = headers["dead_letter"]
    assert told_there.pop("failed_at")
    assert told_there.pop("error")["backtrace"][0].endswith(" in fail")
    assert told_there == {
        "queue": QUEUE,
        "message_id": message_id,
        "read_count": 3,
        "error_class": "ValueError",
        "error_message": "no luck",
    }
    assert told[2:] == [JobDeadLettered(FAIL, QUEUE, message_id, 3, "ValueError", ANY)]


def test_without_retries_the_first_failure_is_the_last(bus, database, work):
    @job(max_retries=0)
    def once():
        raise ValueError

    once.enqueue()
    work()
    assert (waiting(database), waiting(database, DEAD)) == (0, 1)


def test_a_move_that_breaks_off_halfway_leaves_the_message_where_it_was(bus, database, work, told):
    fail.enqueue()
    work()
    work()
    database.rows("""
        CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'the last write of the move fails'; END $$;
        CREATE TRIGGER broken BEFORE DELETE ON pgbus.failed_jobs EXECUTE FUNCTION broken();
    """)
    with pytest.raises(psycopg.errors.RaiseException):
        work()
    assert (waiting(database), waiting(database, DEAD)) == (1, 0)
    assert [type(one) for one in told] == [JobFailed, JobFailed]
    database.rows("DROP TRIGGER broken ON pgbus.failed_jobs")
    work()
    assert (waiting(database), waiting(database, DEAD), failed_jobs(database)) == (0, 1, [])


def test_headers_of_a_message_go_along_to_the_dead_letters(bus, database, work):
    bus.ensure_queues([QUEUE])
    database.rows("SELECT pgmq.send(%s, '5'::jsonb, '{\"trace\": \"t1\"}'::jsonb)", QUEUE)
    work()
    [(_, headers)] = dead_letters(database)
    assert (headers["trace"], headers["dead_letter"]["queue"]) == ("t1", QUEUE)


@pytest.mark.parametrize("body", ["[]", "5", '"text"', "null", '{"some": "thing"}'])
def test_a_body_that_is_no_envelope_is_a_dead_letter_at_once(bus, database, work, told, body):
    message_id = send(bus, body)
    note.enqueue("behind it")
    work()
    assert database.value(f"SELECT message::text FROM pgmq.q_{DEAD}") == body
    [(_, headers)] = dead_letters(database)
    assert "is no job's envelope" in headers["dead_letter"]["error_message"]
    assert told == [JobDeadLettered(None, QUEUE, message_id, 1, PAYLOAD_ERROR, None)]
    work()
    assert calls == [(("behind it",), {})]


def test_a_message_without_any_body_is_a_dead_letter(bus, database, work):
    bus.ensure_queues([QUEUE])
    database.rows("SELECT pgmq.send(%s, NULL::jsonb)", QUEUE)
    work()
    assert (waiting(database), waiting(database, DEAD)) == (0, 1)


def test_an_unknown_job_is_a_dead_letter_that_names_it(bus, database, work, told):
    send(bus, '{"job": "os.abort", "arguments": {"args": [], "kwargs": {}}}')
    work()
    [(_, headers)] = dead_letters(database)
    assert headers["dead_letter"]["error_class"] == "pgbus.engine.errors.UnknownJob"
    assert "declares the job os.abort" in headers["dead_letter"]["error_message"]
    assert [one.job for one in told] == ["os.abort"]


@pytest.mark.parametrize(
    ("arguments", "error_class"),
    [
        ("[7]", "PayloadError"),
        ('{"args": [{"$decimal": "seven"}], "kwargs": {}}', "PayloadError"),
        ('{"args": [{"$subject": ["Ghost", "1"]}], "kwargs": {}}', "UnknownSubject"),
    ],
)
def test_arguments_that_cannot_be_read_make_a_dead_letter(
    database, work_with_vendors, told, arguments, error_class
):
    bus, work = work_with_vendors
    send(bus, f'{{"job": "{NOTE}", "arguments": {arguments}}}')
    work()
    assert calls == []
    [(_, headers)] = dead_letters(database)
    assert headers["dead_letter"]["error_class"] == f"pgbus.engine.errors.{error_class}"
    assert [one.job for one in told] == [NOTE]


def test_arguments_that_no_longer_fit_the_function_are_tried_again(bus, database, work):
    send(bus, f'{{"job": "{FAIL}", "arguments": {{"args": [1, 2], "kwargs": {{}}}}}}')
    work()
    assert (waiting(database), failed_jobs(database)[0][4]) == (1, "TypeError")


def test_the_same_error_raised_by_the_job_itself_is_tried_again(bus, database, work):
    @job
    def enqueues_badly():
        note.enqueue(object())

    enqueues_badly.enqueue()
    work()
    assert (waiting(database), failed_jobs(database)[0][4]) == (
        1,
        "pgbus.engine.errors.PayloadError",
    )


def test_a_message_whose_workers_died_each_time_is_not_run_again(bus, database, work, told):
    fail.enqueue()
    for _ in range(3):
        work.take()
    work()
    assert calls == []
    [(_, headers)] = dead_letters(database)
    dead = headers["dead_letter"]
    assert dead["error_class"].endswith("JobCrashed")
    assert "delivered 4 times and may be executed 3 times" in dead["error_message"]
    assert [(type(one), one.read_count) for one in told] == [(JobDeadLettered, 4)]


def test_the_last_allowed_delivery_after_crashes_is_still_run(bus, database, work):
    note.enqueue()
    for _ in range(5):
        work.take()
    work()
    assert (len(calls), archived(database)) == (1, 1)


@pytest.fixture
def with_host(database):
    """Makes a bus with the host's parts, and the function that executes its next message."""
    buses = []

    def make(**host):
        bus = Pgbus(database_url=database.url, **host)
        buses.append(bus)

        def work():
            [delivery] = Driver(bus).take()
            execute(bus.services, delivery)

        return bus, work

    yield make
    for bus in buses:
        bus.close()


@pytest.fixture
def work_with_vendors(database, with_host):
    Model.metadata.create_all(database.engine)
    return with_host(session_factory=sessionmaker(database.engine))


def vendor_names(database):
    return [name for (name,) in database.rows("SELECT name FROM vendors ORDER BY id")]


def test_a_subject_is_loaded_anew_and_saved_when_the_job_returns(database, work_with_vendors):
    _, work = work_with_vendors

    @job
    def rename(vendor, *, to):
        calls.append(vendor.name)
        vendor.name = to

    with sessionmaker(database.engine)() as session:
        vendor = Vendor(id=7, name="old")
        session.add(vendor)
        session.commit()
        rename.options(session=session).enqueue(vendor, to="new")
        vendor.name = "newer"
        session.commit()
    work()
    assert (calls, vendor_names(database)) == (["newer"], ["new"])


def test_what_a_failed_job_did_to_a_subject_is_rolled_back(database, work_with_vendors):
    _, work = work_with_vendors

    @job
    def spoil(vendor):
        vendor.name = "spoilt"
        raise ValueError

    database.rows("INSERT INTO vendors VALUES (7, 'good')")
    spoil.enqueue(Vendor(id=7))
    work()
    assert (vendor_names(database), len(failed_jobs(database))) == (["good"], 1)


def test_a_write_to_a_subject_that_cannot_be_saved_fails_the_job(database, work_with_vendors):
    _, work = work_with_vendors

    @job
    def empty(vendor):
        vendor.name = None

    database.rows("INSERT INTO vendors VALUES (7, 'good')")
    empty.enqueue(Vendor(id=7))
    work()
    assert (archived(database), failed_jobs(database)[0][4]) == (0, "sqlalchemy.exc.IntegrityError")


def test_a_subject_that_is_gone_is_none(database, work_with_vendors):
    _, work = work_with_vendors
    note.enqueue(Vendor(id=7))
    work()
    assert calls == [((None,), {})]


def test_a_scoped_session_is_removed_after_the_job(database, with_host):
    Model.metadata.create_all(database.engine)
    database.rows("INSERT INTO vendors VALUES (7, 'good')")
    sessions = scoped_session(sessionmaker(database.engine))
    _, work = with_host(session_factory=sessions)

    @job
    def reads(vendor):
        calls.append(sessions.scalars(select(Vendor)).one() is vendor)

    reads.enqueue(Vendor(id=7))
    work()
    assert calls == [True]
    assert not sessions.registry.has()


def test_what_a_job_wrote_in_a_scoped_session_is_kept_only_when_it_returns(database, with_host):
    Model.metadata.create_all(database.engine)
    sessions = scoped_session(sessionmaker(database.engine))
    _, work = with_host(session_factory=sessions)

    @job
    def adds(number, *, fails):
        sessions.add(Vendor(id=number, name=f"vendor {number}"))
        sessions.flush()
        if fails:
            raise ValueError

    adds.enqueue(1, fails=False)
    adds.enqueue(2, fails=True)
    work()
    work()
    assert vendor_names(database) == ["vendor 1"]
    assert not sessions.registry.has()


def test_an_adapters_subject_needs_no_session_factory(with_host):
    class Barge:
        pass

    register_subject(
        Barge, type_name="Barge", id_of=lambda _: "7", load=lambda key, _: f"ship {key}"
    )
    _, work = with_host()
    note.enqueue(Barge())
    work()
    assert calls == [(("ship 7",), {})]


def test_a_missing_session_factory_is_a_failure_that_names_it(database, with_host):
    _, work = with_host()
    note.enqueue(Vendor(id=7))
    work()
    assert (calls, waiting(database)) == ([], 1)
    assert "session_factory" in failed_jobs(database)[0][5]


def test_a_job_runs_inside_around(with_host):
    trail = []

    @contextmanager
    def around():
        trail.append("in")
        yield
        trail.append(("out", len(calls)))

    _, work = with_host(around=around)
    note.enqueue()
    work()
    assert trail == ["in", ("out", 1)]


@contextmanager
def fails_to_enter():
    raise OSError("cannot enter")
    yield


@contextmanager
def fails_to_leave():
    yield
    raise OSError("cannot leave")


@pytest.mark.parametrize("around", [fails_to_enter, fails_to_leave])
def test_an_around_that_raises_fails_the_job(database, with_host, around):
    _, work = with_host(around=around)
    note.enqueue()
    work()
    assert (waiting(database), failed_jobs(database)[0][4]) == (1, "OSError")


def test_an_around_that_swallows_errors_does_not_turn_them_into_success(database, with_host):
    class Swallowing(nullcontext):
        def __exit__(self, *_):
            return True

    _, work = with_host(around=Swallowing)
    fail.enqueue()
    work()
    assert (archived(database), waiting(database)) == (0, 1)
    assert "around= swallowed what" in failed_jobs(database)[0][5]
