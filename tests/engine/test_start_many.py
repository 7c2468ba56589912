"""A bulk start: thousands of runs in a few statements, each as good as a single one."""

import secrets
from datetime import timedelta

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from support.hosts import NOTHING, Purchase, messages, stored

from pgbus import Workflow, register_subject, step
from pgbus.engine.errors import AlreadyRunning, PayloadError
from pgbus.engine.runner import start
from pgbus.engine.states import Event, RunStatus


class Reminder(Workflow, queue="mail"):
    @step
    def write(self): ...


class LateReminder(Workflow, queue="mail"):
    @step(wait=timedelta(minutes=5))
    def write(self): ...


class Ferry:
    """A subject whose id may be longer than an index takes."""

    def __init__(self, name):
        self.name = name


register_subject(Ferry, id_of=lambda ferry: ferry.name, load=lambda name, _session: Ferry(name))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(start, "_CHUNK", 2)


@pytest.fixture
def statements(monkeypatch):
    """The calls of the database function that starts a chunk, and of the look-up of holders."""
    seen = []
    for module, name in ((start.starts, "start_runs"), (start.runs, "ongoing_of_subjects")):
        original = getattr(module, name)

        def counted(*args, name=name, original=original, **kwargs):
            seen.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)
    return seen


def test_thousands_start_in_the_order_of_the_items(bus, database, driver, statements):
    results = Reminder.start_many((Purchase(id=n), {"n": n}) for n in range(2500, 0, -1))
    assert [run.arguments["n"] for run in results] == list(range(2500, 0, -1))
    assert stored(database) == {
        "workflows": 2500, "workflow_steps": 2500, "workflow_events": 5000, "messages": 2500,
    }  # fmt: skip
    subjects = dict(database.rows("SELECT workflow_id::text, subject_id FROM pgbus.workflows"))
    assert [subjects[run.workflow_id] for run in results] == [str(n) for n in range(2500, 0, -1)]
    assert statements == ["start_runs"] * 3


def test_every_message_belongs_to_the_run_that_names_it(bus, database):
    Reminder.start_many([(None, {})] * 30)
    bodies = {message_id: body["workflow_id"] for _, message_id, _, body in messages(database)}
    named = database.rows("SELECT message_id, workflow_id::text FROM pgbus.workflow_steps")
    assert len(bodies) == 30
    assert dict(named) == bodies


def test_a_bulk_started_run_is_as_a_single_one(bus, database):
    single = Reminder.options(actor="alice", reason="asked").start(Purchase(id=1), plan="pro")
    [many] = Reminder.options(actor="alice", reason="asked").start_many(
        [(Purchase(id=2), {"plan": "pro"})]
    )

    def told(run):
        events = [
            (e.event, e.step_name, e.attempt, e.actor, e.reason, e.from_status, e.to_status)
            for e in run.events
        ]
        [attempt] = run.steps
        return events, attempt.status, attempt.queue, attempt.step_name, attempt.attempt

    assert told(many) == told(single)
    assert [event.event for event in many.events] == [Event.STARTED, Event.STEP_SCHEDULED]
    [due] = database.rows(
        "SELECT s.scheduled_at - w.created_at, s.send_at, s.step_id - w.step_id"
        " FROM pgbus.workflows w JOIN pgbus.workflow_steps s USING (workflow_id)"
        " WHERE workflow_id = %s",
        many.workflow_id,
    )
    assert due == (timedelta(0), None, 0)
    again = bus.find(many.workflow_id)
    assert (many.status, many.current_step, many.created_at) == (
        again.status, again.current_step, again.created_at,
    )  # fmt: skip
    assert many._row.step_id == again._row.step_id


def test_bulk_started_runs_run(bus, driver):
    results = Reminder.start_many([(None, {})] * 5)
    assert driver.drain() == 5
    assert {run.reload().status for run in results} == {RunStatus.FINISHED}


def test_a_far_first_step_waits_for_the_timer(bus, database):
    runs = LateReminder.start_many([(None, {})] * 3)
    assert messages(database) == []
    for run in runs:
        assert run.steps[0].scheduled_at == run.created_at + timedelta(minutes=5)
    assert database.rows("SELECT DISTINCT send_at - scheduled_at FROM pgbus.workflow_steps") == [
        (timedelta(0),)
    ]


def test_a_busy_subject_gives_its_error_in_its_place(bus, database, small_chunks):
    holder = Reminder.start(Purchase(id=3))
    results = Reminder.start_many([(Purchase(id=n), {}) for n in (5, 4, 3, 2, 1)])
    assert isinstance(results[2], AlreadyRunning)
    assert results[2].run.workflow_id == holder.workflow_id
    assert not any(isinstance(results[n], AlreadyRunning) for n in (0, 1, 3, 4))
    assert stored(database)["messages"] == 5


def test_of_a_subject_that_comes_twice_the_first_item_wins(bus, database, small_chunks):
    results = Reminder.start_many([(Purchase(id=n % 2), {"n": n}) for n in range(8)])
    winners = {0: results[0], 1: results[1]}
    assert [winners[n].arguments for n in (0, 1)] == [{"n": 0}, {"n": 1}]
    for n in range(2, 8):
        assert isinstance(results[n], AlreadyRunning)
        assert results[n].run.workflow_id == winners[n % 2].workflow_id
    assert stored(database)["workflows"] == 2


def test_losers_are_looked_up_a_chunk_at_a_time(bus, statements):
    items = [(Purchase(id=n), {}) for n in range(50)]
    Reminder.start_many(items)
    del statements[:]
    assert all(isinstance(one, AlreadyRunning) for one in Reminder.start_many(items))
    assert statements == ["start_runs", "ongoing_of_subjects"]


def test_who_lost_to_a_run_that_just_ended_is_started(bus, database, monkeypatch):
    holder = Reminder.start(Purchase(id=1))
    look_up = start.runs.ongoing_of_subjects

    def ended_meanwhile(*args):
        holder.cancel()
        monkeypatch.setattr(start.runs, "ongoing_of_subjects", look_up)
        return look_up(*args)

    monkeypatch.setattr(start.runs, "ongoing_of_subjects", ended_meanwhile)
    ours, other = Reminder.start_many([(Purchase(id=1), {"n": 1}), (Purchase(id=2), {"n": 2})])
    assert (ours.arguments, other.arguments) == ({"n": 1}, {"n": 2})
    assert holder.reload().status is RunStatus.CANCELLED
    assert stored(database)["workflows"] == 3


def test_one_bad_item_starts_none_and_is_named(bus, database):
    with pytest.raises(PayloadError) as raised:
        Reminder.start_many([(None, {"price": 1}), (None, {"price": object()})])
    assert raised.value.path == "items[1].arguments.price"
    assert stored(database) == NOTHING


def test_a_failure_in_a_later_chunk_starts_none(bus, database, small_chunks, monkeypatch):
    start_runs = start.starts.start_runs
    calls = []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("the power is out")
        return start_runs(*args, **kwargs)

    monkeypatch.setattr(start.starts, "start_runs", failing)
    with pytest.raises(RuntimeError, match="the power is out"):
        Reminder.start_many([(None, {})] * 6)
    assert stored(database) == NOTHING


def test_a_failure_in_a_later_chunk_leaves_the_hosts_transaction_without_any(
    bus, database, small_chunks
):
    items = [(None, {})] * 3 + [(Ferry(secrets.token_hex(5_000)), {})]
    with Session(database.engine) as session:
        Reminder.options(session=session).start(n=0)
        with pytest.raises(OperationalError, match="index row"):
            Reminder.options(session=session).start_many(items)
        Reminder.options(session=session).start(n=1)
        session.commit()
    assert stored(database)["workflows"] == 2


def test_no_items_start_nothing(bus, database):
    assert Reminder.start_many([]) == []
    assert stored(database) == NOTHING


@pytest.mark.parametrize("driver_name", ["psycopg", "psycopg2"])
def test_documents_reach_the_database_as_they_are(bus, database, driver_name):
    nasty = {"text": "a \"quoted\" 100% {brace} \\ :name '' é😀", "n": 10**40, "list": [None]}
    engine = sqlalchemy.create_engine(database.sqlalchemy_url(driver_name))
    with engine.connect() as connection:
        results = Reminder.options(session=connection).start_many([(None, nasty)] * 2)
        results.append(Reminder.options(session=connection).start(**nasty))
        connection.commit()
    engine.dispose()
    results += Reminder.start_many([(None, nasty)])
    assert [bus.find(run.workflow_id).arguments for run in results] == [nasty] * 4
