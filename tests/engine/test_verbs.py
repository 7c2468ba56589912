"""What each outside verb does to a run, its attempts, its messages and its trail."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import ClassVar
from uuid import UUID

import pytest
from blinker import signal
from sqlalchemy.orm import Session
from support.driving import Driver

from pgbus import Pgbus, Workflow, on_exception, register_subject, removed_step, step
from pgbus.engine.decision import Held
from pgbus.engine.definition import registry
from pgbus.engine.errors import (
    AlreadyRunning,
    InvalidTransition,
    RunLocked,
    RunMoved,
    RunNotFound,
    SchemaOutdated,
    StepNotDefined,
)
from pgbus.engine.runner import control
from pgbus.engine.runner.control import Request
from pgbus.engine.states import Move, Verb

HOUR = timedelta(hours=1)


class Parcel:
    def __init__(self, number):
        self.number = number


register_subject(
    Parcel,
    type_name="test_verbs.Parcel",
    id_of=lambda parcel: str(parcel.number),
    load=lambda key, _session: Parcel(int(key)),
)


class Weather(Exception):
    pass


class Delivery(Workflow[Parcel]):
    policies = (on_exception(Weather, action="reattempt", wait=HOUR),)
    ran: ClassVar[list[str]] = []

    @step
    def pack(self):
        self.ran.append("pack")
        error = {"weather": Weather, "fire": RuntimeError}.get(self.arguments.get("meets"))
        if error:
            raise error
        if self.arguments.get("stops"):
            self.pause()

    archive = removed_step()

    @step
    def send(self):
        self.ran.append("send")

    @step
    def confirm(self):
        self.ran.append("confirm")


class Weighed(Workflow):
    @step
    def weigh(self): ...


class Archived(Workflow):
    @step
    def archive(self): ...


class Quitter(Workflow):
    @step
    def only(self):
        self.cancel()


class Moved(Workflow, queue="moved"):
    @step
    def pack(self): ...


class Postponed(Workflow):
    @step(wait=HOUR)
    def first(self): ...

    @step(wait=timedelta(minutes=30))
    def second(self): ...


class Scattered(Workflow, queue="scattered_a"):
    @step
    def first(self):
        self.pause()

    @step(job_options={"queue": "scattered_b", "priority": 0})
    def second(self): ...


@pytest.fixture(autouse=True)
def nothing_ran():
    Delivery.ran.clear()


def deploy(monkeypatch, old, new):
    """From here on the dotted name of `old` means what `new` declares."""
    name = old._definition.name
    monkeypatch.setitem(registry._definitions, name, replace(new._definition, name=name))


@contextmanager
def heard(name):
    """The events of this name that are sent within the block."""
    told = []
    with signal(name).connected_to(told.append):
        yield told


def trail(run):
    return [(str(e.event), e.step_name, e.attempt, e.actor) for e in run.events]


def messages(database, run, queue="pgbus_workflows"):
    """(id, seconds until it is visible) of the run's messages."""
    return database.rows(
        f"SELECT msg_id, extract(epoch FROM vt - clock_timestamp())::float FROM pgmq.q_{queue}"
        " WHERE message ->> 'workflow_id' = %s ORDER BY msg_id",
        run.workflow_id,
    )


def newest(run):
    return run.steps[-1]


def test_a_paused_run_is_not_claimed_whatever_messages_are_left(bus, driver, database):
    run = Delivery.start().pause()
    driver.drain()
    assert Delivery.ran == []
    assert newest(run).status == "scheduled"
    assert messages(database, run) == []


def test_a_pause_stamps_its_moment_and_resume_clears_it(bus, driver, database):
    def paused_at():
        return database.value("SELECT paused_at FROM pgbus.workflows")

    run = Delivery.start()
    updated = run.reload()._row.updated_at
    run.pause()
    assert run._row.updated_at > updated
    assert paused_at() is not None
    run.resume()
    assert paused_at() is None


def test_pause_and_resume_keep_the_attempt_and_its_due_time(bus, driver, database):
    run = Postponed.start()
    before = newest(run)
    run.pause()
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") is None
    run.resume()
    assert newest(run).step_id == before.step_id
    assert newest(run).attempt == 1
    assert newest(run).scheduled_at == before.scheduled_at
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") == before.scheduled_at


def test_a_due_attempt_resumed_runs_once_however_many_messages_it_had(bus, driver, database):
    run = Delivery.start()
    for _ in range(3):
        run.pause()
        run.resume()
    driver.drain()
    assert run.reload().status == "finished"
    assert Delivery.ran == ["pack", "send", "confirm"]
    assert messages(database, run) == []


def test_an_attempt_that_came_due_while_paused_is_due_from_the_resume_and_runs_at_once(
    bus, driver, database
):
    run = Postponed.start().pause()
    paused_at = database.value(
        "UPDATE pgbus.workflow_steps SET scheduled_at = scheduled_at - interval '2 hours'"
        " RETURNING now()"
    )
    run.resume()
    driver.drain()
    assert run.steps[0].status == "completed"
    assert paused_at <= run.steps[0].scheduled_at <= run.steps[0].started_at


def test_resume_of_a_failed_step_makes_a_new_attempt_now(bus, driver):
    run = Delivery.start(meets="fire")
    driver.drain()
    run.reload().resume(actor="ann")
    assert [(s.attempt, s.status) for s in run.steps] == [(1, "failed"), (2, "scheduled")]
    assert trail(run)[-2:] == [("resumed", "pack", 1, "ann"), ("step_scheduled", "pack", 2, "ann")]
    driver.drain()
    assert Delivery.ran == ["pack", "pack"]


def test_resume_after_a_completed_step_goes_to_the_next_that_is_not_removed(bus, driver):
    run = Delivery.start(stops=True)
    driver.drain()
    run.resume()
    assert run.current_step == "send"
    driver.drain()
    assert run.reload().status == "finished"
    assert Delivery.ran == ["pack", "send", "confirm"]


def test_resume_after_a_completed_step_gives_the_next_its_wait(bus, driver, database):
    run = Postponed.start().run_now()
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)
    run.resume()
    wait = newest(run).scheduled_at - datetime.now(UTC)
    assert abs(wait - timedelta(minutes=30)) < timedelta(minutes=1)
    assert messages(database, run) == []


def test_a_body_that_goes_on_is_performing_again_after_resume_and_advances(bus, driver):
    run = Delivery.start()
    (delivery,) = driver.take()
    run.pause()
    assert run.resume().status == "performing"
    driver.perform(delivery)
    driver.drain()
    assert run.reload().status == "finished"
    assert Delivery.ran == ["pack", "send", "confirm"]


def test_a_pause_leaves_a_running_body_its_message_so_that_its_workers_death_is_noticed(
    bus, driver, database
):
    run = Delivery.start()
    (delivery,) = driver.take()
    run.pause()
    assert newest(run).message_id == delivery.message_id
    database.rows("UPDATE pgmq.q_pgbus_workflows SET vt = clock_timestamp()")
    (again,) = driver.take()
    assert again.verdict == "crashed"


def test_a_held_reattempt_waits_its_wait_after_resume(bus, driver):
    run = Delivery.start(meets="weather")
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)
    assert run.reload().status == "paused"
    run.resume()
    wait = newest(run).scheduled_at - datetime.now(UTC)
    assert abs(wait - HOUR) < timedelta(minutes=1)
    assert [s.held for s in run.steps] == [None, None]


def test_what_was_held_is_applied_once(bus, driver):
    run = Delivery.start()
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)
    assert run.steps[0].held == Held(Move.ADVANCE)
    run.resume()
    run.pause()
    run.resume()
    assert [(s.step_name, s.attempt) for s in run.steps] == [("pack", 1), ("send", 1)]


@pytest.mark.parametrize("joined", [False, True])
def test_a_step_the_class_no_longer_declares_is_named_and_nothing_is_changed(
    bus, driver, database, monkeypatch, joined
):
    run = Weighed.start().pause()
    deploy(monkeypatch, Weighed, Delivery)
    before = run.events
    with Session(database.engine) as session:
        for verb in (run.resume, run.skip):
            with pytest.raises(StepNotDefined, match=r"declares no step 'weigh'.*pack"):
                verb(session=session if joined else None)
        session.commit()
    assert run.reload().status == "paused"
    assert newest(run).status == "scheduled"
    assert run.events == before
    run.resume_at("pack")
    driver.drain()
    assert run.reload().status == "finished"


def test_a_run_on_a_step_that_was_removed_moves_on_when_resumed(bus, driver, monkeypatch):
    run = Archived.start().pause()
    deploy(monkeypatch, Archived, Delivery)
    run.resume()
    driver.drain()
    assert run.reload().status == "finished"
    assert Delivery.ran == ["send", "confirm"]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_resume_is_all_or_nothing(bus, driver, database, joined, held):
    run = Scattered.start()
    (delivery,) = driver.take()
    if held:
        run.pause()
    driver.perform(delivery)
    database.rows("SELECT pgmq.drop_queue('pgbus_scattered_b_p0')")
    attempts, events = run.steps, run.events
    with Session(database.engine) as session:
        with pytest.raises(Exception, match="q_pgbus_scattered_b_p0"):
            run.resume(session=session if joined else None)
        session.commit()
    assert run.reload().status == "paused"
    assert (run.steps, run.events) == (attempts, events)
    assert (attempts[-1].held is not None) is held


def test_a_verb_sends_to_a_queue_that_no_worker_has_made_yet(bus, driver, database):
    run = Scattered.start()
    driver.drain()
    database.rows("SELECT pgmq.drop_queue('pgbus_scattered_b_p0')")
    with_web_process = Pgbus(database_url=database.url)
    try:
        with_web_process.find(run.workflow_id).resume()
    finally:
        with_web_process.close()
    assert len(messages(database, run, "pgbus_scattered_b_p0")) == 1


def test_a_left_over_message_of_another_queue_does_not_take_the_step_to_the_wrong_workers(
    bus, driver, database
):
    run = Scattered.start().pause()
    assert len(messages(database, run, "pgbus_scattered_a")) == 1
    run.skip()
    run.reload()
    database.rows("DELETE FROM pgmq.q_pgbus_scattered_b_p0")
    driver.drain()
    assert newest(run).status == "scheduled"
    assert messages(database, run, "pgbus_scattered_a") == []


def test_resume_sends_to_the_queue_that_the_class_names_by_now(bus, driver, database, monkeypatch):
    run = Delivery.start().pause()
    deploy(monkeypatch, Delivery, Moved)
    run.resume()
    assert newest(run).queue == "pgbus_moved"
    assert [message_id for message_id, _ in messages(database, run, "pgbus_moved")] == [
        newest(run).message_id
    ]


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("pause", "pgbus.workflow_paused"),
        ("cancel", "pgbus.workflow_cancelled"),
        ("resume", "pgbus.workflow_finished"),
        ("skip", "pgbus.workflow_finished"),
    ],
)
def test_the_host_is_told_where_a_verb_brought_the_run(bus, driver, verb, name):
    run = Moved.start()
    if verb == "resume":
        (delivery,) = driver.take()
        run.pause()
        driver.perform(delivery)
    if verb == "skip":
        run.pause()
    with heard(name) as told:
        getattr(run, verb)()
    assert [(one.workflow_class, one.workflow_id) for one in told] == [
        (run.workflow_class, run.workflow_id)
    ]


def test_the_host_is_told_nothing_of_a_verb_that_is_refused(bus):
    run = Moved.start().cancel()
    with heard("pgbus.workflow_cancelled") as told, pytest.raises(InvalidTransition):
        run.cancel()
    assert told == []


@pytest.mark.parametrize(
    ("step_name", "problem"),
    [("unheard", "declares no step 'unheard'"), ("archive", "has removed its step 'archive'")],
)
def test_resume_at_a_step_that_cannot_run_changes_nothing(bus, driver, step_name, problem):
    run = Delivery.start().pause()
    before = run.steps, run.events
    with pytest.raises(StepNotDefined, match=problem):
        run.resume_at(step_name)
    assert run.reload().status == "paused"
    assert (run.steps, run.events) == before


def test_resume_at_runs_a_step_again_that_completed(bus, driver):
    run = Delivery.start(stops=True)
    driver.drain()
    run.resume_at("pack", actor="ann", reason="damaged")
    resumed, scheduled = run.events[-2:]
    assert (resumed.actor, resumed.reason, resumed.details) == ("ann", "damaged", {"step": "pack"})
    assert (scheduled.step_name, scheduled.attempt, scheduled.actor) == ("pack", 2, "ann")
    driver.drain()
    assert Delivery.ran == ["pack", "pack"]
    assert [s.status for s in run.steps] == ["completed", "completed"]


def test_resume_at_may_go_forward_and_closes_the_open_attempt(bus, driver):
    run = Postponed.start().pause()
    run.resume_at("second")
    closed, fresh = run.steps
    assert (closed.status, closed.outcome) == ("cancelled", "cancelled")
    assert closed.finished_at is not None
    assert fresh.scheduled_at - datetime.now(UTC) < timedelta(seconds=5)
    driver.drain()
    assert run.reload().status == "finished"
    assert run.steps[0].started_at is None


def test_a_body_whose_run_was_resumed_elsewhere_comes_late_and_changes_nothing(bus, driver):
    run = Delivery.start()
    (old,) = driver.take()
    run.pause()
    run.resume_at("confirm")
    driver.perform(old)
    assert [(s.step_name, s.status) for s in run.steps] == [
        ("pack", "cancelled"), ("confirm", "scheduled"),
    ]  # fmt: skip
    assert trail(run)[-1] == ("late_completion_ignored", "pack", 1, "system")
    driver.drain()
    assert run.reload().status == "finished"
    assert Delivery.ran == ["pack", "confirm"]


def test_resume_at_drops_what_was_held(bus, driver):
    run = Delivery.start()
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)
    run.resume_at("confirm")
    assert run.steps[0].held is None
    driver.drain()
    assert Delivery.ran == ["pack", "confirm"]


@pytest.mark.parametrize("claimed", [False, True])
def test_cancel_closes_the_open_attempt_with_its_end(bus, driver, database, claimed):
    run = Delivery.start()
    if claimed:
        (delivery,) = driver.take()
    run.cancel()
    (attempt,) = run.steps
    assert (attempt.status, attempt.outcome) == ("cancelled", "cancelled")
    assert attempt.finished_at is not None
    assert run.ended_at is not None
    if claimed:
        driver.perform(delivery)
        assert trail(run)[-1][0] == "late_completion_ignored"
    driver.drain()
    assert run.reload().status == "cancelled"
    assert messages(database, run) == []


def test_a_body_that_cancels_a_run_that_was_cancelled_comes_late_like_any_other(bus, driver):
    run = Quitter.start()
    (delivery,) = driver.take()
    run.cancel()
    with heard("pgbus.workflow_cancelled") as told:
        driver.perform(delivery)
    assert trail(run)[-2:] == [
        ("cancelled", "only", 1, "app"), ("late_completion_ignored", "only", 1, "system"),
    ]  # fmt: skip
    assert told == []


def test_cancel_leaves_an_attempt_that_ended_as_it_is(bus, driver):
    run = Delivery.start(meets="fire")
    driver.drain()
    before = newest(run)
    run.cancel()
    assert newest(run) == before


def test_skip_of_a_failed_step_keeps_its_error_and_goes_on(bus, driver):
    run = Delivery.start(meets="fire")
    driver.drain()
    failed = newest(run)
    run.skip(actor="ann", reason="never mind")
    skipped, following = run.steps
    assert skipped.finished_at == failed.finished_at
    assert (skipped.status, skipped.outcome) == ("skipped", "skipped")
    assert skipped.error_class == "RuntimeError"
    assert following.step_name == "send"
    event = run.events[-2]
    assert (event.event, event.reason, event.step_name) == ("step_skipped", "never mind", "pack")
    driver.drain()
    assert run.reload().status == "finished"


def test_skip_drops_what_was_held(bus, driver):
    run = Delivery.start(meets="weather")
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)
    run.skip()
    assert [(s.step_name, s.held) for s in run.steps] == [("pack", None), ("send", None)]


def test_skip_says_that_there_is_nothing_to_skip_after_a_completed_step(bus, driver):
    run = Delivery.start(stops=True)
    driver.drain()
    with pytest.raises(InvalidTransition, match=r"step pack is completed.*nothing to skip"):
        run.skip()


def test_run_now_starts_a_far_off_step_at_once(bus, driver, database):
    run = Postponed.start()
    assert messages(database, run) == []
    run.run_now()
    assert newest(run).attempt == 1
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") is None
    driver.drain()
    assert run.steps[0].status == "completed"


def test_run_now_sends_a_step_that_is_due_again(bus, driver, database):
    run = Delivery.start()
    database.rows("DELETE FROM pgmq.q_pgbus_workflows")
    run.run_now()
    driver.drain()
    assert run.reload().status == "finished"


def test_run_now_tells_the_moment_on_the_trail(bus, driver):
    run = Postponed.start().run_now()
    moment = datetime.fromisoformat(run.events[-1].details["scheduled_at"])
    assert moment == newest(run).scheduled_at


def test_a_naive_moment_is_refused_with_the_mend(bus):
    run = Postponed.start()
    before = run.events
    naive = datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    for moment in (naive, "2030-01-01", None):
        with pytest.raises(ValueError, match=r"aware datetime.*time zone"):
            run.reschedule(moment)
    assert run.events == before


def test_reschedule_into_the_past_means_now(bus, driver):
    run = Postponed.start().reschedule(datetime(2000, 1, 1, tzinfo=UTC))
    age = datetime.now(UTC) - newest(run).scheduled_at
    assert abs(age) < timedelta(seconds=5)
    driver.drain()
    assert run.steps[0].status == "completed"


def test_reschedule_far_off_leaves_it_to_the_timer(bus, database):
    at = datetime(2040, 5, 6, 7, 8, tzinfo=timezone(timedelta(hours=5)))
    run = Delivery.start().reschedule(at)
    assert newest(run).scheduled_at == at
    assert newest(run).message_id is None
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") == at


def test_reschedule_nearby_sends_the_message_for_its_time(bus, database):
    at = datetime.now(UTC) + timedelta(seconds=40)
    run = Postponed.start().reschedule(at)
    [(message_id, seconds)] = messages(database, run)
    assert message_id == newest(run).message_id
    assert 20 < seconds <= 41
    assert database.value("SELECT send_at FROM pgbus.workflow_steps") is None


@pytest.mark.parametrize("later", [timedelta(seconds=50), timedelta(days=3)])
def test_a_message_left_over_from_a_reschedule_to_later_claims_nothing_and_goes(
    bus, driver, database, later
):
    run = Delivery.start()
    [(early, _)] = messages(database, run)
    run.reschedule(datetime.now(UTC) + later)
    driver.drain()
    assert newest(run).status == "scheduled"
    left = [message_id for message_id, _ in messages(database, run)]
    assert early not in left
    assert left == ([newest(run).message_id] if later < HOUR else [])


def test_the_later_message_of_a_reschedule_claims(bus, driver, database):
    run = Delivery.start()
    run.reschedule(datetime.now(UTC) + timedelta(seconds=50))
    driver.drain()
    database.rows("UPDATE pgbus.workflow_steps SET scheduled_at = clock_timestamp()")
    database.rows("UPDATE pgmq.q_pgbus_workflows SET vt = clock_timestamp()")
    driver.drain()
    assert run.reload().status == "finished"


def test_a_left_over_message_that_comes_when_the_step_is_due_claims_nothing(bus, driver, database):
    run = Delivery.start()
    [(left_over, _)] = messages(database, run)
    run.run_now()
    (first,) = driver.take() or driver.take()
    assert first.message_id == newest(run).message_id != left_over
    driver.perform(first)
    driver.drain()
    assert Delivery.ran == ["pack", "send", "confirm"]


def test_a_worker_that_waits_with_a_message_sent_anew_meanwhile_claims_nothing_with_it(
    bus, database
):
    asks_guards = Driver(bus, unguarded=[])
    run = Delivery.start()
    (delivery,) = asks_guards.take()
    assert delivery.verdict == "guarded"
    run.run_now()
    asks_guards.perform(delivery)
    assert newest(run).status == "scheduled"
    asks_guards.drain()
    assert run.reload().status == "finished"


def test_a_rerun_is_a_new_run_about_the_same_and_the_two_know_of_each_other(bus, driver):
    old = Delivery.start(Parcel(7), weight=2)
    driver.drain()
    new = old.rerun(actor="ann", reason="once more")
    assert new.workflow_id != old.workflow_id
    assert (new.status, old.reload().status) == ("ready", "finished")
    assert (new._row.subject_type, new._row.subject_id) == ("test_verbs.Parcel", "7")
    assert new.arguments == {"weight": 2}
    assert new.rerun_of == old.workflow_id
    assert new.reload().rerun_of == old.workflow_id
    assert old.reruns == [new.workflow_id]
    assert (old.rerun_of, new.reruns) == (None, [])
    event = old.events[-1]
    assert (event.event, event.actor, event.reason) == ("rerun", "ann", "once more")
    assert (event.from_status, event.to_status) == ("finished", "finished")
    assert event.details == {"workflow_id": new.workflow_id}
    started, scheduled = new.events
    assert (started.actor, started.reason) == ("ann", "once more")
    assert started.details == {"rerun_of": old.workflow_id}
    assert scheduled.actor == "ann"
    driver.drain()
    assert new.reload().status == "finished"


def test_a_rerun_forgets_the_idempotency_key_so_it_may_happen_twice(bus, driver):
    old = Delivery.options(idempotency_key="once").start()
    driver.drain()
    first, second = old.rerun(), old.rerun()
    assert old.reruns == [first.workflow_id, second.workflow_id]


def test_a_rerun_with_a_key_happens_once(bus, driver):
    old = Delivery.start()
    driver.drain()
    first = old.rerun(idempotency_key="press 1")
    repeated = old.rerun(idempotency_key="press 1")
    second = old.rerun(idempotency_key="press 2")
    assert (repeated.workflow_id, repeated.duplicate_start) == (first.workflow_id, True)
    assert old.reruns == [first.workflow_id, second.workflow_id]
    assert [event.event for event in old.events].count("rerun") == 2


def test_a_rerun_whose_subject_is_taken_names_the_holder_and_changes_nothing(bus, driver):
    old = Delivery.start(Parcel(7))
    driver.drain()
    holder = Delivery.start(Parcel(7))
    before = old.events
    with pytest.raises(AlreadyRunning, match=holder.workflow_id) as refused:
        old.rerun()
    assert refused.value.run.workflow_id == holder.workflow_id
    assert old.events == before
    assert old.reruns == []


def test_a_rerun_on_an_outdated_schema_names_the_command(bus, driver, database):
    run = Delivery.start().cancel()
    other = Pgbus(database_url=database.url)
    try:
        database.rows("COMMENT ON TABLE pgbus.schema_version IS 'older'")
        with pytest.raises(SchemaOutdated, match="pgbus migrate"):
            other.find(run.workflow_id).rerun()
    finally:
        other.close()


def test_the_actor_is_app_unless_the_caller_says(bus):
    run = Postponed.start().pause()
    run.resume(actor="dashboard:alice")
    assert [event.actor for event in run.events[-2:]] == ["app", "dashboard:alice"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        ("", None),
        (" \n ", None),
        (" because ", "because"),
        ("é" * 1001, "é" * 1000),
        ("a\0b\ud800", "a\N{SYMBOL FOR NULL}b\\ud800"),
    ],
)
def test_a_reason_is_cut_made_storable_and_absent_when_blank(bus, given, kept):
    run = Postponed.start().pause(reason=given)
    assert run.events[-1].reason == kept


def test_an_actor_that_postgresql_cannot_store_is_made_storable(bus):
    run = Postponed.start().pause(actor="mallory\0")
    assert run.events[-1].actor == "mallory\N{SYMBOL FOR NULL}"


def test_a_long_text_in_an_events_details_is_cut(bus, driver):
    run = Verbose.start()
    driver.drain()
    details = [event.details for event in run.events if event.event == "step_failed"]
    assert details == [{"error_class": f"{__name__}.{'E' * 1500}"[:1000]}]


class Verbose(Workflow):
    @step
    def only(self):
        raise type("E" * 1500, (Exception,), {"__module__": __name__})


class Terse(Workflow):
    @step
    def only(self):
        self.pause(reason="no\0 more " + "x" * 2000)


@pytest.mark.parametrize("held", [False, True])
def test_a_bodys_reason_that_postgresql_cannot_store_does_not_keep_the_run_performing(
    bus, driver, held
):
    run = Terse.start()
    (delivery,) = driver.take()
    if held:
        run.pause()
    driver.perform(delivery)
    assert run.reload().status == "paused"
    if not held:
        assert run.events[-1].reason.startswith("no\N{SYMBOL FOR NULL} more x")
        assert len(run.events[-1].reason) == 1000


def ask(bus, workflow_id, verb):
    more = {Verb.RESUME_AT: ["pack"], Verb.RESCHEDULE: [datetime.now(UTC)]}.get(verb, [])
    if verb is Verb.RERUN:
        from pgbus.engine.runner import start

        return start.rerun(bus.services, workflow_id, Request())
    if verb is Verb.SIGNAL:
        from pgbus.engine.definition.signal import Sending
        from pgbus.engine.runner import signals

        return signals.signal(bus.services, workflow_id, Sending("go"))
    return getattr(control, verb)(bus.services, workflow_id, *more, Request())


@pytest.mark.parametrize("workflow_id", ["0" * 32, "", "7", "no-uuid\0", "'; --"])
def test_a_verb_on_what_is_no_run_says_so(bus, workflow_id):
    for verb in Verb:
        with pytest.raises(RunNotFound, match="There is no run " + re.escape(workflow_id)):
            ask(bus, workflow_id, verb)


def test_a_verb_on_a_run_that_was_deleted_says_so(bus, database):
    run = Postponed.start()
    database.rows("DELETE FROM pgbus.workflow_steps")
    database.rows("DELETE FROM pgbus.workflows")
    for verb in Verb:
        with pytest.raises(RunNotFound, match=run.workflow_id):
            ask(bus, run.workflow_id, verb)


def test_an_id_may_be_written_in_any_way_that_a_uuid_may(bus):
    run = Postponed.start()
    for spelling in (run.workflow_id.upper(), f"{{{run.workflow_id}}}", UUID(run.workflow_id)):
        assert Postponed.find(spelling).workflow_id == run.workflow_id


def test_a_verb_on_a_run_that_another_transaction_keeps_locked_gives_up_and_says_so(bus, database):
    run = Postponed.start()
    before = run.events
    database.rows("ALTER FUNCTION pgbus.lock_run SET lock_timeout = '50ms'")
    with database.connection() as holder:
        holder.execute("SELECT FROM pgbus.workflows FOR UPDATE")
        with pytest.raises(RunLocked, match=f"Run {run.workflow_id} has been locked"):
            run.pause()
    assert run.events == before
    assert run.pause().status == "paused"


def test_a_run_is_locked_for_ten_seconds_at_most(database):
    settings = database.value(
        "SELECT proconfig FROM pg_proc WHERE proname = 'lock_run' AND pronamespace = 'pgbus'::regnamespace"
    )
    assert settings == ["lock_timeout=10s"]


def test_a_stale_handle_asks_for_the_run_as_it_is_now(bus, driver):
    run = Delivery.start()
    stale = Delivery.find(run.workflow_id)
    run.cancel()
    assert stale.status == "ready"
    with pytest.raises(InvalidTransition, match="it is cancelled, and pause needs it ready") as no:
        stale.pause()
    assert no.value.status == "cancelled"
    assert stale.reload().status == "cancelled"


#: Verbs that can be asked of a run as it was seen, by the state that they need it in.
GUARDED = {
    "ready": {
        "pause": lambda run, **options: run.pause(**options),
        "run_now": lambda run, **options: run.run_now(**options),
        "reschedule": lambda run, **options: run.reschedule(datetime.now(UTC) + HOUR, **options),
        "cancel": lambda run, **options: run.cancel(**options),
    },
    "paused": {
        "resume": lambda run, **options: run.resume(**options),
        "resume_at": lambda run, **options: run.resume_at("second", **options),
        "skip": lambda run, **options: run.skip(**options),
        "cancel": lambda run, **options: run.cancel(**options),
    },
}


@pytest.mark.parametrize(
    ("state", "verb"), [(state, verb) for state, verbs in GUARDED.items() for verb in verbs]
)
def test_a_verb_asked_of_the_run_as_it_was_seen_changes_nothing_once_it_moved(bus, state, verb):
    ask = GUARDED[state][verb]
    run = Postponed.start()
    if state == "paused":
        run.pause()
    seen = Postponed.find(run.workflow_id)
    # Afterwards status and attempt are what they were.
    run.reschedule(datetime.now(UTC) + 2 * HOUR) if state == "ready" else run.resume().pause()
    before = run.events
    with pytest.raises(RunMoved, match=f"has moved since .* {state} at first now") as refused:
        ask(seen, if_unmoved=True)
    assert refused.value.status == state
    assert run.events == before
    assert ask(seen.reload(), if_unmoved=True) is seen
    assert len(run.events) > len(before)


def test_a_run_that_moved_where_the_verb_is_not_allowed_has_moved_first_of_all(bus):
    run = Postponed.start()
    seen = Postponed.find(run.workflow_id)
    run.cancel()
    with pytest.raises(RunMoved, match=r"pause of run .* cancelled at first now") as refused:
        seen.pause(if_unmoved=True)
    assert refused.value.status == "cancelled"


def test_a_handle_saw_the_run_as_its_start_and_its_own_verbs_left_it(bus):
    run = Postponed.start().pause(if_unmoved=True).resume(if_unmoved=True)
    (many,) = Postponed.start_many([(None, {})])
    for one in (run, many):
        assert one.cancel(if_unmoved=True).status == "cancelled"


def test_a_signal_that_is_only_stored_does_not_move_the_run(bus):
    run = Postponed.start()
    run.signal("hurry")
    assert run.pause(if_unmoved=True).status == "paused"


def test_a_signal_to_the_run_as_it_was_seen_is_not_stored_once_it_moved(bus):
    run = Postponed.start()
    seen = Postponed.find(run.workflow_id)
    run.pause()
    with pytest.raises(RunMoved, match=r"signal of run .* paused at first now"):
        seen.signal("hurry", if_unmoved=True)
    assert run.signals == []
    assert seen.reload().signal("hurry", if_unmoved=True).name == "hurry"


def test_a_body_that_ends_moves_its_paused_run(bus, driver):
    run = Delivery.start()
    (delivery,) = driver.take()
    seen = Delivery.find(run.workflow_id).pause()
    driver.perform(delivery)
    with pytest.raises(RunMoved):
        seen.resume(if_unmoved=True)


def test_a_handle_shows_the_run_as_its_own_verb_left_it(bus):
    run = Postponed.start()
    assert run.pause() is run
    assert run.status == "paused"


def test_a_run_whose_class_is_gone_can_be_found_paused_and_cancelled(bus, monkeypatch):
    run = Postponed.start()
    monkeypatch.delitem(registry._definitions, run.workflow_class)
    found = Workflow.find(run.workflow_id)
    assert found.pause().status == "paused"
    assert found.available_actions == ("cancel", "signal")
    assert found.cancel().status == "cancelled"
