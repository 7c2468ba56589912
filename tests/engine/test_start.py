"""What a single start writes, and what it refuses."""

import dataclasses
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from support.hosts import NOTHING, ONE_RUN, Purchase, make_purchases, messages, stored

from pgbus import Pgbus, Workflow, register_subject, removed_step, step
from pgbus.engine.errors import (
    AlreadyRunning,
    DefinitionError,
    PayloadError,
    PayloadTooLarge,
    UnknownSubject,
)
from pgbus.engine.states import AttemptStatus, Event, RunStatus
from pgbus.engine.subjects import SubjectReference

MINUTE_NEAR = timedelta(seconds=59)
MINUTE_FAR = timedelta(seconds=61)


class Account(Workflow):
    @step
    def open(self): ...

    @step
    def greet(self): ...


class PremiumAccount(Account):
    pass


class Near(Workflow):
    @step(wait=MINUTE_NEAR)
    def act(self): ...


class Far(Workflow):
    @step(wait=MINUTE_FAR)
    def act(self): ...


class NearByMessage(Workflow, queue="mail", priority=0, wait=58):
    @step(wait=3, job_options={"wait": MINUTE_NEAR})
    def act(self): ...


class FarByMessage(Workflow, queue="mail"):
    @step(wait=1, job_options={"queue": "slow", "priority": 2, "wait": MINUTE_FAR})
    def act(self): ...


class NextCentury(Workflow):
    moment = datetime(2101, 1, 1, tzinfo=UTC)

    @step(wait=1, job_options={"wait_until": moment})
    def act(self): ...


class LongAgo(Workflow):
    @step(job_options={"wait_until": datetime(2001, 1, 1, tzinfo=UTC)})
    def act(self): ...


class Moved(Workflow):
    old = removed_step()

    @step
    def new(self): ...


class Retired(Workflow):
    old = removed_step()


class Ship:
    """A subject that an adapter loads."""

    def __init__(self, name):
        self.name = name


register_subject(Ship, id_of=lambda ship: ship.name, load=lambda name, _session: Ship(name))


class Stranger:
    pass


def test_a_start_returns_the_run_as_it_is_stored(bus, database):
    make_purchases(database, 1)
    run = Account.options(idempotency_key="k").start(Purchase(id=1), plan="pro")
    assert (run.status, run.current_step) == (RunStatus.READY, "open")
    assert run.workflow_class == f"{__name__}.Account"
    assert (run.duplicate_start, run.ended_at, run.rerun_of) == (False, None, None)
    assert run.arguments == {"plan": "pro"}
    assert not run.definition_outdated
    again = bus.find(run.workflow_id)
    same_text = dataclasses.replace(again._row, encoded_arguments=run._row.encoded_arguments)
    assert (run._row, run.arguments) == (same_text, again.arguments)


def test_a_start_writes_the_run_its_attempt_its_events_and_its_message(bus, database):
    run = Account.start()
    assert stored(database) == ONE_RUN
    [attempt] = run.steps
    assert (attempt.step_name, attempt.attempt) == ("open", 1)
    assert attempt.status is AttemptStatus.SCHEDULED
    assert attempt.step_id == run._row.step_id
    [(queue, message_id, visible_at, body)] = messages(database)
    assert (attempt.queue, attempt.message_id) == (queue, message_id)
    assert body == {"workflow_id": run.workflow_id}
    assert visible_at == attempt.scheduled_at


def test_the_id_is_a_uuid_of_version_7_in_order_of_time(bus, database):
    before = datetime.now(UTC)
    run = Account.start()
    after = datetime.now(UTC)
    value = uuid.UUID(run.workflow_id)
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    milliseconds = value.int >> 80
    assert int(before.timestamp() * 1000) <= milliseconds <= int(after.timestamp() * 1000)


def test_the_trail_begins_with_the_actor_and_the_reason(bus):
    run = Account.options(actor="alice", reason="asked for").start()
    started, scheduled = run.events
    assert (started.event, started.actor, started.reason) == (Event.STARTED, "alice", "asked for")
    assert (started.from_status, started.to_status) == (None, RunStatus.READY)
    assert (started.step_name, started.attempt) == (None, None)
    assert (scheduled.event, scheduled.actor) == (Event.STEP_SCHEDULED, "alice")
    assert scheduled.reason is None
    assert (scheduled.step_name, scheduled.attempt) == ("open", 1)
    assert (scheduled.from_status, scheduled.to_status) == (RunStatus.READY, RunStatus.READY)


def test_the_default_actor_is_app(bus):
    assert {event.actor for event in Account.start().events} == {"app"}


@pytest.mark.parametrize(("workflow", "seconds"), [(Near, 59), (NearByMessage, 59)])
def test_a_step_due_within_a_minute_has_its_message_at_once(bus, database, workflow, seconds):
    run = workflow.start()
    [attempt] = run.steps
    [(queue, message_id, visible_at, _)] = messages(database)
    assert visible_at == attempt.scheduled_at == run.created_at + timedelta(seconds=seconds)
    assert (attempt.message_id, attempt.queue) == (message_id, queue)
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") is None


@pytest.mark.parametrize(("workflow", "seconds"), [(Far, 61), (FarByMessage, 61)])
def test_a_step_due_later_than_a_minute_waits_for_the_timer(bus, database, workflow, seconds):
    run = workflow.start()
    [attempt] = run.steps
    assert messages(database) == []
    assert attempt.message_id is None
    assert attempt.scheduled_at == run.created_at + timedelta(seconds=seconds)
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") == attempt.scheduled_at


def test_the_queue_and_the_priority_are_the_steps_else_the_class_else_the_setting(bus):
    assert [workflow.start().steps[0].queue for workflow in (Near, NearByMessage, FarByMessage)] == [
        "pgbus_workflows", "pgbus_mail_p0", "pgbus_slow_p2",
    ]  # fmt: skip


def test_wait_until_moves_the_first_step_later(bus, database):
    [attempt] = NextCentury.start().steps
    assert attempt.scheduled_at == NextCentury.moment
    assert messages(database) == []


def test_a_wait_until_in_the_past_is_now(bus, database):
    run = LongAgo.start()
    assert run.steps[0].scheduled_at == run.created_at
    assert stored(database) == ONE_RUN


def test_a_run_begins_after_the_gravestones(bus):
    run = Moved.start()
    assert run.current_step == run.steps[0].step_name == "new"


def test_a_class_of_gravestones_only_cannot_be_started(bus, database):
    with pytest.raises(DefinitionError, match="Retired declares no step that is not removed"):
        Retired.start()
    assert stored(database) == NOTHING


def test_a_definition_is_stored_once(bus, database):
    Account.start()
    again = Pgbus(database_url=database.url)
    again.start(Account)
    again.close()
    bus.start(Account)
    [(name, digest, steps)] = database.rows(
        "SELECT workflow_class, digest, steps FROM pgbus.workflow_definitions"
    )
    assert name == f"{__name__}.Account"
    assert [one["name"] for one in steps] == ["open", "greet"]
    assert database.rows("SELECT DISTINCT definition_digest FROM pgbus.workflows") == [(digest,)]


# Idempotency keys


def test_a_used_key_gives_the_run_it_started(bus, database):
    first = Account.options(idempotency_key="k", actor="alice").start(plan="pro")
    again = Account.options(idempotency_key="k", actor="bob", reason="twice").start(plan="free")
    assert (again.workflow_id, again.duplicate_start) == (first.workflow_id, True)
    assert again.arguments == {"plan": "pro"}
    assert {event.actor for event in again.events} == {"alice"}
    assert stored(database) == ONE_RUN


@pytest.mark.parametrize("verb", ["pause", "cancel", "finish"])
def test_a_used_key_gives_its_run_whatever_became_of_it(bus, driver, database, verb):
    first = Account.options(idempotency_key="k").start()
    if verb == "finish":
        driver.drain()
    else:
        getattr(first, verb)()
    before = stored(database)
    again = Account.options(idempotency_key="k").start()
    assert (again.workflow_id, again.duplicate_start) == (first.workflow_id, True)
    assert again.status is first.reload().status
    assert stored(database) == before


def test_a_key_belongs_to_one_class(bus, database):
    runs = [workflow.options(idempotency_key="k").start() for workflow in (Account, PremiumAccount)]
    assert [run.duplicate_start for run in runs] == [False, False]
    assert stored(database)["workflows"] == 2


@pytest.mark.parametrize("blank", [None, "", "  "])
def test_a_blank_key_is_none(bus, database, blank):
    for _ in range(2):
        assert not Account.options(idempotency_key=blank).start().duplicate_start
    assert database.rows("SELECT DISTINCT idempotency_key FROM pgbus.workflows") == [(None,)]


def test_a_key_of_255_characters_is_told_from_one_that_differs_in_the_last(bus):
    keys = ["ß" * 254 + last for last in "ab"]
    first, other = (Account.options(idempotency_key=key).start() for key in keys)
    assert not other.duplicate_start
    again = Account.options(idempotency_key=keys[0]).start()
    assert again.workflow_id == first.workflow_id


def test_a_used_key_goes_before_a_busy_subject(bus, database):
    subject = Purchase(id=1)
    first = Account.options(idempotency_key="k").start(subject)
    again = Account.options(idempotency_key="k").start(subject)
    assert (again.workflow_id, again.duplicate_start) == (first.workflow_id, True)


def test_the_key_of_another_class_does_not_answer_for_a_busy_subject(bus, database):
    holder = Account.start(Purchase(id=1))
    PremiumAccount.options(idempotency_key="k").start()
    with pytest.raises(AlreadyRunning) as raised:
        Account.options(idempotency_key="k").start(Purchase(id=1))
    assert raised.value.run.workflow_id == holder.workflow_id


# One ongoing run per subject


@pytest.mark.parametrize("key", [None, "other"])
def test_a_busy_subject_is_refused_and_the_holder_told(bus, database, key):
    holder = Account.options(idempotency_key="k").start(Purchase(id=1))
    with pytest.raises(AlreadyRunning) as raised:
        Account.options(idempotency_key=key).start(Purchase(id=1))
    assert raised.value.run.workflow_id == holder.workflow_id
    assert not raised.value.run.duplicate_start
    for part in ("Purchase 1", "Account", holder.workflow_id, "ready at open"):
        assert part in str(raised.value)
    assert stored(database) == ONE_RUN
    raised.value.run.cancel()
    assert Account.start(Purchase(id=1)).workflow_id != holder.workflow_id


def test_a_paused_run_holds_its_subject(bus):
    holder = Account.start(Purchase(id=1)).pause()
    with pytest.raises(AlreadyRunning) as raised:
        Account.start(Purchase(id=1))
    assert raised.value.run.status is RunStatus.PAUSED
    assert raised.value.run.workflow_id == holder.workflow_id


@pytest.mark.parametrize("end", ["cancel", "finish"])
def test_an_ended_run_frees_its_subject(bus, driver, end):
    first = Account.start(Purchase(id=1))
    driver.drain() if end == "finish" else first.cancel()
    assert first.reload().ended_at is not None
    assert Account.start(Purchase(id=1)).workflow_id != first.workflow_id


def test_a_run_that_is_performing_holds_its_subject(bus, driver):
    holder = Account.start(Purchase(id=1))
    driver.take()
    with pytest.raises(AlreadyRunning) as raised:
        Account.start(Purchase(id=1))
    assert raised.value.run.workflow_id == holder.workflow_id
    assert raised.value.run.status is RunStatus.PERFORMING


def test_a_subclass_has_a_slot_of_its_own(bus, database):
    Account.start(Purchase(id=1))
    PremiumAccount.start(Purchase(id=1))
    with pytest.raises(AlreadyRunning):
        PremiumAccount.start(Purchase(id=1))
    assert stored(database)["workflows"] == 2


def test_subjects_of_the_same_id_but_another_type_do_not_meet(bus, database):
    Account.start(Purchase(id=1))
    Account.start(Ship("1"))
    assert stored(database)["workflows"] == 2


def test_runs_without_a_subject_are_not_limited(bus, database):
    for _ in range(3):
        Account.start()
    assert stored(database)["workflows"] == 3


# Refused before anything is written


def test_an_unregistered_subject_is_refused_at_the_start(bus, database):
    with pytest.raises(UnknownSubject, match=r"register_subject\(Stranger\)"):
        Account.start(Stranger())
    with pytest.raises(PayloadError, match=r"arguments\.by\[0\]: .*register_subject"):
        Account.start(by=[Stranger()])
    assert stored(database) == NOTHING
    assert database.value("SELECT count(*) FROM pgbus.workflow_definitions") == 0


@pytest.mark.parametrize(
    "value", [float("nan"), "\0", "\ud800", datetime.fromisoformat("2026-01-01"), {1: 2}, object()]
)
def test_an_argument_that_cannot_be_stored_is_named_by_its_path(bus, database, value):
    with pytest.raises(PayloadError) as raised:
        Account.start(items=[{"price": 1}, {"price": value}])
    assert raised.value.path == "arguments.items[1].price"
    assert stored(database) == NOTHING


def test_arguments_may_fill_the_cap_and_not_exceed_it(bus, database):
    limit = bus.settings.workflow_max_payload_size
    room = limit - len('{"text":""}')
    run = Account.start(text="é" * (room // 2) + "x" * (room % 2))
    assert bus.find(run.workflow_id).arguments["text"].startswith("é")
    with pytest.raises(PayloadTooLarge, match=f"^arguments: {limit + 1} bytes"):
        Account.start(text="x" * (room + 1))
    assert stored(database) == ONE_RUN


def test_a_subject_among_the_arguments_is_stored_as_a_reference(bus, database):
    run = Account.start(customers=(Purchase(id=3), Ship("Argo")))
    customers = (SubjectReference("Purchase", "3"), SubjectReference("Ship", "Argo"))
    assert run.arguments == {"customers": customers}
    assert bus.find(run.workflow_id).arguments == {"customers": customers}


def test_an_adapters_subject_needs_no_session(bus):
    assert Account.start(Ship("Argo")).subject.name == "Argo"


# Connections


def test_a_start_outlives_the_end_of_every_idle_connection(bus, database):
    Account.start()
    database.rows(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'pgbus'"
    )
    Account.start()
    assert stored(database)["workflows"] == 2


def test_a_held_connection_that_died_while_idle_is_replaced(bus, database):
    with bus.services.database.held():
        Account.start()
        database.rows(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pgbus'"
        )
        Account.start()
        Account.start_many([(None, {})])
    assert stored(database)["workflows"] == 3


def test_workers_are_woken_when_a_step_is_sent_and_not_for_a_far_one(bus, database):
    with database.connection(autocommit=True) as listener:
        listener.execute(f"LISTEN {bus.settings.schema}")
        FarByMessage.start()
        FarByMessage.start_many([(None, {})])
        Account.start()
        heard = [notice.payload for notice in listener.notifies(timeout=2, stop_after=1)]
    assert heard == ["pgbus_workflows"]
