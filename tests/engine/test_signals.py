"""Signals sent to runs: stored, taken by the step that waits for them, refused, sent again."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal

import blinker
import pytest
from sqlalchemy.orm import sessionmaker
from support.hosts import Purchase, make_purchases, messages
from support.replay import told
from support.scripts import play, script

from pgbus import SignalMatcher, Workflow, on_exception, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import (
    NotOngoing,
    PayloadError,
    PayloadTooLarge,
    RunNotFound,
    SignalKeyReused,
)
from pgbus.engine.observe.emission import SignalReceived
from pgbus.engine.runner import signals as sending
from pgbus.engine.states import AttemptStatus, Event, RunStatus, SignalStatus, Verb


class Parcel(Workflow[Purchase]):
    """Packs, waits until it is shipped, and files."""

    @step
    def pack(self):
        return play(self)

    @step(wait_for="shipped", job_options={"queue": "bills"})
    def bill(self):
        return play(self)

    @step
    def file(self): ...


class Express(Parcel):
    """Another class, of the same subjects."""


class Relay(Workflow):
    """Takes two signals of one name."""

    @step(wait_for="baton")
    def first(self):
        return play(self)

    @step(wait_for="baton")
    def second(self):
        return play(self)


class Choosy(Workflow):
    """Takes what comes from Europe; it does without a signal that does not say."""

    @step(
        wait_for=SignalMatcher("shipped", lambda payload: payload["region"] == "eu"),
        policies=[on_exception(KeyError, action="skip")],
    )
    def bill(self):
        return play(self)


@pytest.fixture
def bus_options(database):
    return {"session_factory": sessionmaker(database.engine)}


@pytest.fixture
def got():
    """The signals that bodies of `bill`, `first` and `second` ran with."""
    got = []

    def note(workflow):
        got.append(workflow.received_signal)

    script(bill=note, first=note, second=note)
    yield got
    script()


@pytest.fixture
def parked(bus, driver, got):
    """A run that waits to be shipped."""
    run = Parcel.start()
    driver.drain()
    return run.reload()


@pytest.fixture
def heard():
    payloads = []
    receiver = payloads.append
    blinker.signal("pgbus.workflow.signal").connect(receiver)
    return payloads, receiver


@pytest.fixture
def unload(monkeypatch):
    """Takes a class out of this process; gives what loads it again."""

    def unload(workflow):
        definition = workflow._definition
        monkeypatch.delitem(registry._definitions, definition.name)
        return lambda: registry._definitions.__setitem__(definition.name, definition)

    return unload


def statuses(run):
    return [(signal.name, str(signal.status)) for signal in run.signals]


def test_a_step_without_its_signal_parks_and_nothing_is_sent_for_it(database, parked):
    _, waiting = parked.steps
    assert (parked.status, waiting.status) == (RunStatus.WAITING, AttemptStatus.WAITING)
    assert (waiting.waiting_for, waiting.timeout_at, waiting.outcome) == ("shipped", None, None)
    assert waiting.waiting_since >= waiting.started_at
    assert waiting.finished_at is None
    assert messages(database) == []
    assert told(parked)[-3:] == [Event.STEP_SCHEDULED, Event.STEP_STARTED, Event.STEP_WAITING]
    parks = parked.events[-1]
    assert parks.details == {"wait_for": "shipped", "timeout_at": None}
    assert (parks.from_status, parks.to_status) == (RunStatus.PERFORMING, RunStatus.WAITING)
    assert Verb.SIGNAL in parked.available_actions


def test_a_signal_schedules_the_waiting_step_for_now_on_its_own_queue(database, parked):
    sent = parked.signal("shipped", {"carrier": "dhl"})
    _, woken = parked.reload().steps
    assert (parked.status, woken.status) == (RunStatus.READY, AttemptStatus.SCHEDULED)
    assert (woken.attempt, woken.waiting_since) == (1, None)
    assert woken.scheduled_at >= sent.received_at
    [(queue, message_id, visible, body)] = messages(database)
    assert (queue, message_id, body) == (
        "pgbus_bills", woken.message_id, {"workflow_id": parked.workflow_id}
    )  # fmt: skip
    assert visible >= sent.received_at
    assert statuses(parked) == [("shipped", "claimed")]
    assert told(parked)[-3:] == [
        Event.SIGNAL_RECEIVED, Event.SIGNAL_CLAIMED, Event.STEP_SCHEDULED
    ]  # fmt: skip
    claimed = parked.events[-2]
    assert (claimed.from_status, claimed.to_status) == (RunStatus.WAITING, RunStatus.READY)
    assert claimed.details == {"name": "shipped", "signal_id": sent.signal_id}


def test_the_woken_step_runs_with_its_signal_and_consumes_it(driver, parked, got):
    sent = parked.signal("shipped", {"carrier": "dhl"})
    driver.drain()
    assert got == [sent]
    assert got[0].payload == {"carrier": "dhl"}
    assert parked.reload().status is RunStatus.FINISHED
    assert [attempt.attempt for attempt in parked.steps] == [1, 1, 1]
    (stored,) = parked.signals
    assert (stored.status, stored.step_name) == (SignalStatus.CONSUMED, "bill")
    assert stored.received_at <= stored.claimed_at <= stored.consumed_at


def test_a_signal_before_its_step_waits_is_kept_and_taken_at_the_gate(bus, driver, got):
    run = Parcel.start()
    sent = run.signal("shipped")
    assert (run.reload().status, statuses(run)) == (RunStatus.READY, [("shipped", "pending")])
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED
    assert got == [sent]
    assert Event.STEP_WAITING not in told(run)
    claimed = next(event for event in run.events if event.event is Event.SIGNAL_CLAIMED)
    assert (claimed.step_name, claimed.from_status, claimed.to_status) == (
        "bill", RunStatus.PERFORMING, RunStatus.PERFORMING
    )  # fmt: skip


def test_a_body_may_signal_its_own_run(bus, driver, got):
    script(
        pack=lambda self: bus.find(self.workflow_id).signal("shipped"),
        bill=lambda self: got.append(self.received_signal),
    )
    run = Parcel.start()
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED
    received = next(event for event in run.events if event.event is Event.SIGNAL_RECEIVED)
    assert (received.from_status, received.step_name) == (RunStatus.PERFORMING, "pack")
    assert len(got) == 1


def test_the_oldest_is_taken_and_the_others_stay(driver, parked, got):
    parked.signal("lost", {"n": 0})
    assert parked.reload().status is RunStatus.WAITING
    parked.signal("shipped", {"n": 1})
    parked.signal("shipped", {"n": 2})
    driver.drain()
    assert [signal.payload for signal in got] == [{"n": 1}]
    assert statuses(parked) == [
        ("lost", "pending"),
        ("shipped", "consumed"),
        ("shipped", "pending"),
    ]


def test_two_steps_take_two_signals_of_one_name_in_the_order_they_came(bus, driver, got):
    run = Relay.start()
    for number in (1, 2):
        run.signal("baton", {"n": number})
    driver.drain()
    assert [signal.payload["n"] for signal in got] == [1, 2]
    assert run.reload().status is RunStatus.FINISHED


def test_what_the_matcher_refuses_stays_pending_and_wakes_nothing(bus, driver, got):
    run = Choosy.start()
    run.signal("shipped", {"region": "us"})
    driver.drain()
    run.signal("shipped", {"region": "uk"})
    assert run.reload().status is RunStatus.WAITING
    run.signal("shipped", {"region": "eu"})
    driver.drain()
    assert [signal.payload["region"] for signal in got] == ["eu"]
    assert [str(signal.status) for signal in run.signals] == ["pending", "pending", "consumed"]


@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_a_run_that_is_over_takes_no_signal(driver, parked, end):
    if end == "cancel":
        parked.cancel()
    else:
        parked.signal("shipped", idempotency_key="k")
        driver.drain()
    trail, stored = told(parked), statuses(parked)
    for key in (None, "k"):
        with pytest.raises(
            NotOngoing, match=r"and signal needs it ready or .* or paused"
        ) as refused:
            parked.signal("shipped", idempotency_key=key)
    assert refused.value.status == parked.reload().status
    assert (told(parked), statuses(parked)) == (trail, stored)


def test_a_run_that_is_not_there_takes_no_signal(database, parked):
    database.rows("DELETE FROM pgbus.workflow_steps; DELETE FROM pgbus.workflows")
    with pytest.raises(RunNotFound, match=parked.workflow_id):
        parked.signal("shipped")


def test_a_redelivery_stores_and_wakes_nothing_and_returns_the_first(bus, driver, got):
    run = Relay.start()
    first = run.signal("baton", {"n": 1}, "event-7")
    driver.drain()
    assert (run.reload().status, run.current_step) == (RunStatus.WAITING, "second")
    again = run.signal("baton", {"n": 2}, "event-7", actor="webhook", reason="retry")
    assert run.reload().status is RunStatus.WAITING
    assert (first.duplicate_delivery, again.duplicate_delivery) == (False, True)
    assert (again.signal_id, again.payload, again.actor) == (first.signal_id, {"n": 1}, "app")
    assert statuses(run) == [("baton", "consumed")]
    event = run.events[-1]
    assert (event.event, event.actor, event.reason) == (Event.SIGNAL_RECEIVED, "webhook", "retry")
    assert event.details == {"name": "baton", "idempotency_key": "event-7", "duplicate": True}
    assert (event.from_status, event.to_status) == (RunStatus.WAITING, RunStatus.WAITING)
    assert driver.drain() == 0


def test_a_key_of_another_name_is_refused_and_leaves_nothing(parked):
    parked.signal("lost", idempotency_key="event-7")
    trail = told(parked)
    with pytest.raises(SignalKeyReused, match=r"'event-7' with the signal 'lost' .* 'shipped'"):
        parked.signal("shipped", idempotency_key="event-7")
    assert told(parked) == trail
    assert parked.reload().status is RunStatus.WAITING


@pytest.mark.parametrize("key", ["", "  ", " " * 300, None])
def test_a_blank_key_is_no_key(parked, key):
    one, other = (parked.signal("lost", idempotency_key=key) for _ in range(2))
    assert (one.idempotency_key, other.duplicate_delivery) == (None, False)
    assert len(parked.signals) == 2


def test_one_key_serves_each_run_once(bus):
    runs = [Parcel.start() for _ in range(2)]
    sent = [run.signal("lost", idempotency_key="event-7") for run in runs]
    assert [signal.duplicate_delivery for signal in sent] == [False, False]


def test_a_name_and_a_key_have_at_most_255_characters(parked):
    sent = parked.signal("n" * 255, idempotency_key="k" * 255)
    assert (sent.name, sent.idempotency_key) == ("n" * 255, "k" * 255)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("n" * 256,), "no signal's name; give a str of 1 to 255"),
        (("",), "'' is no signal's name"),
        ((7,), "7 is no signal's name"),
        (("nul \0",), "leave out NUL"),
        (("shipped", {}, "k" * 256), "idempotency_key has 256 characters, at most 255 fit"),
        (("shipped", {}, 7), "idempotency_key is 7; give a str"),
        (("shipped", {}, "half \ud83d"), "give a str without NUL and lone surrogates"),
    ],
)
def test_what_cannot_be_a_name_or_key_is_refused_before_anything_happens(
    parked, arguments, problem
):
    trail = told(parked)
    with pytest.raises(ValueError, match=problem):
        parked.signal(*arguments)
    assert (told(parked), parked.signals) == (trail, [])


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"at": [1, object()]}, r"^payload\.at\[1\]: "),
        ({1: "one"}, "^payload: "),
        ([("carrier", "dhl")], "^payload: is a list; give a mapping of names to values"),
        ("dhl", "^payload: is a str; give a mapping"),
        ({"nan": float("nan")}, r"^payload\.nan: "),
    ],
)
def test_a_payload_that_cannot_be_stored_is_refused_with_its_path(parked, payload, problem):
    with pytest.raises(PayloadError, match=problem):
        parked.signal("shipped", payload)
    assert (parked.reload().status, parked.signals) == (RunStatus.WAITING, [])


def test_a_payload_has_the_cap_of_arguments(bus, parked):
    limit = bus.settings.workflow_max_payload_size
    fits = {"x": "y" * (limit - len('{"x":""}'))}
    assert parked.signal("lost", fits).payload == fits
    with pytest.raises(PayloadTooLarge, match=rf"^payload: {limit + 1} bytes"):
        parked.signal("shipped", {"x": fits["x"] + "y"})
    assert parked.reload().status is RunStatus.WAITING


@pytest.mark.parametrize("payload", [None, {}])
def test_no_payload_reads_back_as_an_empty_mapping(driver, parked, got, payload):
    assert parked.signal("shipped", payload).payload == {}
    driver.drain()
    assert [signal.payload for signal in got] == [{}]
    assert parked.signals[0].payload == {}


def test_a_payload_comes_back_as_it_was_sent_a_subject_loaded(database, driver, parked, got):
    make_purchases(database, 1)
    payload = {"cost": Decimal("1.10"), "at": datetime(2030, 1, 1, tzinfo=UTC), "ids": (2**70, 1)}

    def note(self):
        received = dict(self.received_signal.payload)
        got.append((received.pop("of").state, received))

    script(bill=note)
    parked.signal("shipped", payload | {"of": Purchase(id=1)})
    driver.drain()
    assert got == [("new", payload)]


def test_who_sent_a_signal_and_why_goes_with_it_and_on_the_trail(driver, parked, got):
    parked.signal("shipped", actor="webhook", reason=" carrier callback ")
    received, claimed, scheduled = parked.events[-3:]
    assert {event.actor for event in (received, claimed, scheduled)} == {"webhook"}
    assert (received.reason, claimed.reason) == ("carrier callback", None)
    assert received.details == {"name": "shipped", "idempotency_key": None, "duplicate": False}
    driver.drain()
    assert (got[0].actor, got[0].reason) == ("webhook", "carrier callback")
    assert parked.events[-1].actor == "system"


def test_a_signal_is_told_of_once_it_is_stored(parked, heard):
    payloads, _ = heard
    of = (parked.workflow_class, parked.workflow_id)
    parked.signal("lost", idempotency_key="k")
    parked.signal("lost", idempotency_key="k")
    for refused in (PayloadError, SignalKeyReused):
        with suppress(refused):
            parked.signal("shipped", {"x": object()} if refused is PayloadError else None, "k")
    assert payloads == [
        SignalReceived(*of, "lost", duplicate=False),
        SignalReceived(*of, "lost", duplicate=True),
    ]


def test_a_paused_run_gives_its_waiting_step_the_signal_and_stays_paused(
    database, driver, parked, got
):
    parked.pause()
    sent = parked.signal("shipped", actor="webhook")
    assert parked.reload().status is RunStatus.PAUSED
    assert parked.steps[-1].status is AttemptStatus.SCHEDULED
    assert (statuses(parked), messages(database)) == ([("shipped", "claimed")], [])
    assert [(event.event, event.to_status) for event in parked.events[-2:]] == [
        (Event.SIGNAL_CLAIMED, RunStatus.PAUSED),
        (Event.STEP_SCHEDULED, RunStatus.PAUSED),
    ]
    assert driver.drain() == 0
    parked.resume()
    driver.drain()
    assert (got, parked.reload().status) == ([sent], RunStatus.FINISHED)


def test_a_paused_run_keeps_a_signal_for_a_step_to_come(bus, driver, got):
    run = Parcel.start().pause()
    run.signal("shipped")
    assert statuses(run) == [("shipped", "pending")]
    run.resume()
    driver.drain()
    assert (len(got), run.reload().status) == (1, RunStatus.FINISHED)


def test_a_run_paused_after_its_wake_keeps_the_signal(driver, parked, got):
    sent = parked.signal("shipped")
    parked.pause()
    driver.drain()
    assert (got, statuses(parked)) == ([], [("shipped", "claimed")])
    parked.resume()
    driver.drain()
    assert got == [sent]


def test_where_the_class_is_not_loaded_a_worker_wakes_the_step(
    database, driver, parked, got, unload
):
    load = unload(Parcel)
    sent = parked.signal("shipped", {"carrier": "dhl"})
    assert parked.reload().status is RunStatus.WAITING
    assert statuses(parked) == [("shipped", "pending")]
    load()
    [(queue, *_)] = messages(database)
    assert queue == "pgbus_bills"
    driver.perform(*driver.take())
    assert (parked.reload().status, len(messages(database))) == (RunStatus.READY, 1)
    assert [event.actor for event in parked.events[-2:]] == ["system", "system"]
    driver.drain()
    assert (got, parked.reload().status) == ([sent], RunStatus.FINISHED)


def test_a_paused_run_of_a_class_not_loaded_gets_its_signal_from_a_worker(
    driver, parked, got, unload
):
    load = unload(Parcel)
    parked.pause()
    parked.signal("shipped")
    load()
    driver.drain()
    assert (parked.reload().status, statuses(parked)) == (
        RunStatus.PAUSED, [("shipped", "claimed")]
    )  # fmt: skip
    parked.resume()
    driver.drain()
    assert len(got) == 1


def test_a_worker_without_the_class_leaves_the_look_to_another(
    database, driver, parked, got, unload, caplog
):
    load = unload(Parcel)
    parked.signal("shipped")
    (delivery,) = driver.take()
    assert delivery.verdict == "waiting"
    assert driver.perform(delivery) is None
    assert f"Step bill of run {parked.workflow_id} has got what it waits for" in caplog.text
    later = database.value("SELECT vt > now() + interval '50 s' FROM pgmq.q_pgbus_bills")
    assert (later, parked.reload().status) == (True, RunStatus.WAITING)
    load()
    driver.redeliver()
    driver.drain()
    assert len(got) == 1


def test_a_look_that_finds_nothing_to_take_ends_with_its_message(database, driver, parked, unload):
    load = unload(Parcel)
    parked.signal("lost")
    load()
    driver.drain()
    assert messages(database) == []
    assert (parked.reload().status, statuses(parked)) == (
        RunStatus.WAITING, [("lost", "pending")]
    )  # fmt: skip


def test_a_matcher_that_raises_in_the_worker_that_looks_is_left_to_the_policies(
    database, driver, bus, got, unload
):
    run = Choosy.start()
    driver.drain()
    load = unload(Choosy)
    run.signal("shipped")
    load()
    driver.drain()
    (attempt,) = run.steps
    assert (attempt.status, attempt.error_class) == (AttemptStatus.SKIPPED, "KeyError")
    assert (run.reload().status, statuses(run)) == (
        RunStatus.FINISHED, [("shipped", "pending")]
    )  # fmt: skip
    assert (got, messages(database)) == ([], [])


@pytest.fixture
def order(database):
    make_purchases(database, 2)
    return Purchase(id=1)


def test_the_ongoing_run_of_the_subject_gets_it(bus, order):
    over = Parcel.start(order).cancel()
    run = Parcel.start(order)
    other = Parcel.start(Purchase(id=2))
    sent = Parcel.signal(
        order, "shipped", payload={"n": 1}, idempotency_key="k", actor="a", reason="r"
    )
    (stored,) = run.signals
    assert (stored.signal_id, stored.payload) == (sent.signal_id, {"n": 1})
    assert (stored.idempotency_key, stored.actor, stored.reason) == ("k", "a", "r")
    assert over.signals == other.signals == []
    assert Parcel.signal(order, "shipped", idempotency_key="k").duplicate_delivery is True


@pytest.mark.parametrize(("asked", "running"), [(Parcel, Express), (Express, Parcel)])
def test_only_a_run_of_this_very_class_counts(bus, order, asked, running):
    run = running.start(order)
    with pytest.raises(NotOngoing, match=rf"Purchase 1 has no ongoing run of .*{asked.__name__}"):
        asked.signal(order, "shipped")
    assert run.signals == []


@pytest.mark.parametrize("cancelled", [False, True])
def test_without_an_ongoing_run_it_raises_or_is_none(bus, order, cancelled):
    if cancelled:
        Parcel.start(order).cancel()
    with pytest.raises(NotOngoing, match=r"the signal 'shipped'; start one, or pass missing="):
        Parcel.signal(order, "shipped", missing="raise")
    assert Parcel.signal(order, "shipped", missing="ignore") is None


def test_a_run_that_ends_between_look_up_and_lock_counts_as_none(bus, order, monkeypatch):
    look_up = sending.runs.ongoing_of_subjects

    def then_cancel(*arguments):
        found = look_up(*arguments)
        for row in found.values():
            bus.find(row.workflow_id).cancel()
        return found

    monkeypatch.setattr(sending.runs, "ongoing_of_subjects", then_cancel)
    run = Parcel.start(order)
    assert Parcel.signal(order, "shipped", missing="ignore") is None
    assert (run.reload().status, run.signals) == (RunStatus.CANCELLED, [])
    Parcel.start(order)
    with pytest.raises(NotOngoing, match="it is cancelled"):
        Parcel.signal(order, "shipped")


def test_ignoring_a_missing_run_ignores_no_other_problem(bus, order):
    Parcel.start(order)
    with pytest.raises(PayloadError):
        Parcel.signal(order, "shipped", payload={"x": object()}, missing="ignore")


@pytest.mark.parametrize("missing", ["skip", None, True])
def test_another_way_to_miss_is_a_value_error(bus, order, missing):
    with pytest.raises(ValueError, match=f"missing={missing!r} is unknown; choose 'raise'"):
        Parcel.signal(order, "shipped", missing=missing)


def test_no_subject_is_a_value_error(bus):
    Parcel.start()
    with pytest.raises(ValueError, match=r"use Run\.signal"):
        Parcel.signal(None, "shipped", missing="ignore")


def test_a_record_of_another_class_is_a_type_error(bus):
    with pytest.raises(TypeError, match="Parcel is about Purchase"):
        Parcel.signal(object(), "shipped", missing="ignore")
