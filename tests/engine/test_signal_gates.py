"""The gate of a step that waits: what it takes, what an attempt holds, what guards may ask of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, ClassVar

import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker
from support.driving import Driver
from support.hosts import messages
from support.replay import told
from support.scripts import play, script

from pgbus import SignalMatcher, Workflow, cancel_if, on_exception, removed_step, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import InvalidTransition, NotInStep
from pgbus.engine.runner import prepare
from pgbus.engine.runner.finalize import Finalizer
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus, Verb


class Declined(Exception): ...


class Lapsed(Exception): ...


class Gone(Exception): ...


def yes(_):
    return True


def no(_):
    return False


def wanted(payload):
    return Waiter.asks.get("match", yes)(payload)


class Waiter(Workflow):
    """`before`, the waiting `act`, `after`; its guards and its matcher do what the test says."""

    asks: ClassVar[dict[str, Any]] = {}

    @cancel_if
    def cancels(self):
        return self.asks.get("cancel", no)(self)

    def skips(self):
        return self.asks.get("skip", no)(self)

    @step
    def before(self):
        return play(self)

    @step(
        wait_for=SignalMatcher("go", wanted),
        skip_if="skips",
        policies=[
            on_exception(Declined, action="reattempt", max_reattempts=1),
            on_exception(Lapsed, action="skip"),
            on_exception(Gone, action="cancel"),
        ],
    )
    def act(self):
        return play(self)

    @step
    def after(self): ...


class Lenient(Waiter):
    """Its policy method looks at the signal."""

    policies = ()
    seen: ClassVar[list[Any]] = []

    @on_exception(RuntimeError)
    def lenient(self, error):
        self.seen.append(self.received_signal and self.received_signal.payload)
        self.skip()


class FromAbroad:
    """Takes signals of any name that say so."""

    def matches(self, signal):
        return signal.payload.get("abroad")


class Import(Workflow):
    @step(wait_for=FromAbroad())
    def clear(self):
        return play(self)


class Booking(Workflow):
    @step(transactional=True, wait_for="go")
    def book(self):
        self.session.execute(
            sqlalchemy.text("INSERT INTO effects VALUES (:what)"),
            {"what": self.require_signal().payload["what"]},
        )
        return play(self)


class Dying(Workflow):
    @step(wait_for="go", on_stall="reattempt")
    def reattempts(self):
        return play(self)

    @step(wait_for="go", on_stall="pause")
    def pauses(self):
        return play(self)

    @step(wait_for="go", on_stall="cancel")
    def cancels(self):
        return play(self)


def raising(error):
    def ask(_):
        raise error

    return ask


@pytest.fixture
def bus_options(database):
    return {"session_factory": sessionmaker(database.engine)}


@pytest.fixture(autouse=True)
def asks(monkeypatch):
    """What the guards and the matcher do: `cancel`, `skip` (of the instance), `match` (of a payload)."""
    asks = {}
    monkeypatch.setattr(Waiter, "asks", asks)
    monkeypatch.setattr(Lenient, "seen", [])
    yield asks
    script()


@pytest.fixture
def start(bus, driver):
    """Starts a run, signalled before or not, and drains."""

    def start(*, signalled=False, workflow=Waiter):
        run = workflow.start()
        if signalled:
            run.signal("go", {"n": 1})
        driver.drain()
        return run.reload()

    return start


def of_act(run):
    return [attempt for attempt in run.reload().steps if attempt.step_name == "act"]


def signals(run):
    return [str(signal.status) for signal in run.signals]


# What matches


def test_any_object_with_matches_takes_what_it_likes(driver, start):
    got = []
    script(clear=lambda self: got.append(self.received_signal))
    run = start(workflow=Import)
    assert run.steps[0].waiting_for == "FromAbroad"
    run.signal("arrived", {"abroad": False})
    assert run.reload().status is RunStatus.WAITING
    run.signal("seen", {"abroad": True})
    driver.drain()
    assert [signal.name for signal in got] == ["seen"]
    assert signals(run) == ["pending", "consumed"]


@pytest.mark.parametrize(
    ("error", "run_status", "status", "attempts"),
    [
        (ValueError("odd"), RunStatus.PAUSED, AttemptStatus.FAILED, 1),
        (Lapsed(), RunStatus.FINISHED, AttemptStatus.SKIPPED, 1),
        (Gone(), RunStatus.CANCELLED, AttemptStatus.FAILED, 1),
        (Declined(), RunStatus.PAUSED, AttemptStatus.FAILED, 2),
        (asyncio.CancelledError(), RunStatus.PAUSED, AttemptStatus.FAILED, 1),
    ],
)
def test_a_matcher_that_raises_at_the_gate_goes_to_the_policies(
    database, start, asks, error, run_status, status, attempts
):
    asks["match"] = raising(error)
    run = start(signalled=True)
    assert (run.status, len(of_act(run))) == (run_status, attempts)
    assert (of_act(run)[-1].status, of_act(run)[-1].error_class.rpartition(".")[2]) == (
        status, type(error).__name__
    )  # fmt: skip
    assert (signals(run), messages(database)) == (["pending"], [])


def test_a_matcher_that_raises_for_a_sender_raises_to_them_and_stores_nothing(
    database, driver, start, asks
):
    run = start()
    trail = told(run)
    asks["match"] = raising(Lapsed("no region"))
    with pytest.raises(Lapsed, match="no region"):
        run.signal("go", idempotency_key="k")
    assert (run.reload().status, run.signals, told(run)) == (RunStatus.WAITING, [], trail)
    assert messages(database) == []
    asks.clear()
    run.signal("go", idempotency_key="k")
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_matcher_is_not_asked_for_other_names(start, asks):
    run = start()
    asks["match"] = raising(Lapsed())
    run.signal("stop")
    assert signals(run) == ["pending"]


@pytest.mark.parametrize("place", ["gate", "signal"])
def test_a_matcher_that_asks_a_verb_of_its_run_is_refused(bus, start, asks, place):
    refused = []

    def pausing(_payload):
        with suppress(InvalidTransition):
            bus.find(run_ids[0]).pause()
            return True
        refused.append("refused")
        return False

    run_ids = []
    script(before=lambda self: run_ids.append(self.workflow_id))
    if place == "signal":
        run = start()
        asks["match"] = pausing
        run.signal("go")
    else:
        asks["match"] = pausing
        run = start(signalled=True)
    assert refused == ["refused"]
    assert run.reload().status is RunStatus.WAITING


# What an attempt holds


def reattempt(run, attempt):
    attempt.reattempt()


def fail(error):
    def fail(run, attempt):
        raise error

    return fail


def pause_and_reattempt(run, attempt):
    run.pause()
    attempt.reattempt()


def pause_and_fail(run, attempt):
    run.pause()
    raise ValueError


def resume(run):
    run.resume()


def resume_at(run):
    run.resume_at("act")


def resume_from_before(run):
    run.resume_at("before")


def nothing(run):
    return None


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (reattempt, nothing),
        (fail(Declined()), nothing),
        (fail(ValueError()), resume),
        (fail(ValueError()), resume_at),
        (fail(ValueError()), resume_from_before),
        (pause_and_reattempt, resume),
        (pause_and_fail, resume),
        (pause_and_fail, resume_at),
    ],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("waited", [False, True])
def test_the_next_attempt_runs_with_the_signal_of_the_one_before(
    bus, driver, start, asks, first, then, waited
):
    got, matched = [], []
    asks["match"] = lambda payload: matched.append(payload) or True

    def body(self):
        got.append((self.received_signal.payload, self.signal_ready, self.woken))
        if self.attempt == 1:
            first(bus.find(self.workflow_id), self)

    script(act=body)
    run = start(signalled=not waited)
    if waited:
        run.signal("go", {"n": 1})
        driver.drain()
    if then is not nothing:
        assert (run.reload().status, signals(run)) == (RunStatus.PAUSED, ["claimed"])
        run.signal("go", {"n": 2})
    then(run)
    driver.drain()
    assert got == [({"n": 1}, True, waited), ({"n": 1}, True, True)]
    assert matched == [{"n": 1}]
    assert signals(run)[0] == "consumed"
    assert run.reload().status is RunStatus.FINISHED


@pytest.mark.parametrize(
    ("end", "run_status"),
    [
        (lambda self: None, RunStatus.FINISHED),
        (lambda self: self.pause(), RunStatus.PAUSED),
        (lambda self: self.finish(), RunStatus.FINISHED),
        (lambda self: self.skip(), RunStatus.FINISHED),
        (lambda self: self.cancel(), RunStatus.CANCELLED),
        (raising(Lapsed()), RunStatus.FINISHED),
        (raising(Gone()), RunStatus.CANCELLED),
    ],
    ids=["return", "pause", "finish", "skip", "cancel", "policy skip", "policy cancel"],
)
@pytest.mark.parametrize("paused", [False, True])
def test_a_signal_is_consumed_when_its_step_ends(bus, driver, start, end, run_status, paused):
    def body(self):
        if paused:
            bus.find(self.workflow_id).pause()
        end(self)

    script(act=body)
    run = start(signalled=True)
    if paused and run.status is RunStatus.PAUSED:
        run.resume()
        driver.drain()
        run_status = RunStatus.FINISHED if run_status is RunStatus.PAUSED else run_status
    assert (run.reload().status, signals(run)) == (run_status, ["consumed"])
    assert run.signals[0].consumed_at is not None


@pytest.mark.parametrize("verb", [Verb.SKIP, Verb.CANCEL])
@pytest.mark.parametrize("state", ["failed", "woken"])
def test_a_verb_that_ends_the_step_consumes_its_signal(driver, start, verb, state):
    script(act=raising(ValueError()))
    if state == "failed":
        run = start(signalled=True)
    else:
        run = start().pause()
        run.signal("go")
    assert signals(run) == ["claimed"]
    getattr(run, verb)()
    driver.drain()
    assert signals(run) == ["consumed"]
    assert run.reload().status in (RunStatus.FINISHED, RunStatus.CANCELLED)


@pytest.mark.parametrize("verb", [Verb.SKIP, Verb.CANCEL])
def test_a_waiting_run_can_be_skipped_and_cancelled_without_its_signal(driver, start, verb):
    run = start()
    run.signal("stop")
    getattr(run, verb)(actor="alice", reason="enough")
    (attempt,) = of_act(run)
    assert (attempt.waiting_since, attempt.outcome) == (
        None, Outcome.SKIPPED if verb is Verb.SKIP else Outcome.CANCELLED
    )  # fmt: skip
    assert attempt.finished_at is not None
    driver.drain()
    assert signals(run) == ["pending"]
    assert run.reload().status in (RunStatus.FINISHED, RunStatus.CANCELLED)


def test_a_wait_without_a_deadline_can_be_left_by_pause_and_resume_at(driver, start):
    run = start()
    run.pause()
    run.resume_at("after")
    assert of_act(run)[0].status is AttemptStatus.CANCELLED
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


@pytest.mark.parametrize(
    ("step_name", "run_status", "signal"),
    [
        ("reattempts", RunStatus.PERFORMING, "claimed"),
        ("pauses", RunStatus.PAUSED, "claimed"),
        ("cancels", RunStatus.CANCELLED, "consumed"),
    ],
)
def test_a_stall_keeps_the_signal_unless_it_ends_the_run(
    bus, driver, step_name, run_status, signal
):
    run = Dying.start().pause().resume_at(step_name)
    run.signal("go", {"n": 1})
    dead = Driver(bus, name="dead:1")
    (delivery,) = next(taken for taken in iter(dead.take, None) if taken)
    # It passed its gate and died in the body.
    script(**{step_name: raising(SystemExit())})
    with pytest.raises(SystemExit):
        dead.perform(delivery)
    got = []
    script(**{step_name: lambda self: got.append((self.woken, self.received_signal.payload))})
    driver.redeliver()
    driver.perform(*driver.take())
    if step_name == "reattempts":
        assert signals(run) == [signal]
        driver.perform(*driver.take())
        assert got == [(True, {"n": 1})]
    else:
        assert (run.reload().status, signals(run)) == (run_status, [signal])
        assert got == []


def test_a_gravestone_consumes_what_its_step_held(bus, driver, monkeypatch):
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))

    def version(**steps):
        namespace = type(Workflow).__prepare__("Shrinking", (Workflow,))
        namespace |= {"__module__": __name__, "__qualname__": "Shrinking"} | steps
        return type(Workflow)("Shrinking", (Workflow,), namespace)

    run = version(act=step(lambda self: None, wait_for="go")).start()
    Driver(bus).drain()
    run.signal("go")
    version(act=removed_step(), after=step(lambda self: None))
    Driver(bus).drain()
    assert (run.reload().status, signals(run)) == (RunStatus.FINISHED, ["consumed"])


# What guards may ask


@pytest.fixture
def readings(asks):
    """What cancel_if, skip_if and the body of `act` read: (who, signal_ready, woken)."""
    readings = []

    def read(who):
        def read(self):
            if self.step_name == "act":
                readings.append((who, self.signal_ready, self.woken))

        return read

    asks |= {"cancel": read("cancel"), "skip": read("skip")}
    script(act=read("body"))
    return readings


def read_by(*, ready, woken, who=("cancel", "skip", "body")):
    return [(one, ready, woken) for one in who]


def test_on_a_first_claim_without_a_signal_neither_reader_is_true(start, readings):
    assert start().status is RunStatus.WAITING
    assert readings == read_by(ready=False, woken=False, who=("cancel", "skip"))


def test_a_buffered_signal_is_ready_and_woke_nothing(start, readings):
    start(signalled=True)
    assert readings == read_by(ready=True, woken=False)


def test_after_a_wake_both_readers_are_true(driver, start, readings):
    run = start()
    readings.clear()
    run.signal("go")
    driver.drain()
    assert readings == read_by(ready=True, woken=True)


def test_a_signal_that_the_matcher_refuses_is_not_ready(start, asks, readings):
    asks["match"] = no
    start(signalled=True)
    assert readings == read_by(ready=False, woken=False, who=("cancel", "skip"))


def test_a_signal_held_from_an_earlier_attempt_makes_both_readers_true(driver, start, readings):
    script(act=raising(ValueError()))
    run = start(signalled=True)
    script(act=lambda self: readings.append(("body", self.signal_ready, self.woken)))
    readings.clear()
    run.resume()
    driver.drain()
    assert readings == read_by(ready=True, woken=True)


def test_in_a_step_that_waits_for_nothing_the_readers_are_false(start):
    seen = []
    script(
        before=lambda self: seen.append(
            (self.signal_ready, self.woken, self.timed_out, self.received_signal)
        )
    )
    start(signalled=True)
    assert seen == [(False, False, False, None)]


@pytest.mark.parametrize("reader", ["signal_ready", "woken", "timed_out", "received_signal"])
def test_outside_a_step_the_readers_are_refused(reader):
    with pytest.raises(NotInStep, match=f"Waiter.{reader} is only there while a step runs"):
        getattr(Waiter(), reader)


def test_a_reader_keeps_its_answer_for_the_whole_attempt(bus, driver, start, asks):
    answers = []
    matched = []
    asks["match"] = lambda payload: matched.append(payload["n"]) or True
    asks["skip"] = lambda self: answers.append(self.signal_ready)

    def body(self):
        bus.find(self.workflow_id).signal("go", {"n": 2})
        answers.append((self.signal_ready, self.received_signal.payload["n"]))

    script(act=body)
    start(signalled=True)
    assert (answers, matched) == ([True, (True, 1)], [1])


def test_a_matcher_that_raises_for_a_guard_raises_again_at_the_gate(start, asks):
    def swallow(self):
        with suppress(Lapsed):
            return self.signal_ready
        return False

    asks |= {"match": raising(Lapsed()), "skip": swallow}
    run = start(signalled=True)
    assert (of_act(run)[0].status, signals(run)) == (AttemptStatus.SKIPPED, ["pending"])
    assert of_act(run)[0].error_class.endswith("Lapsed")


@pytest.mark.parametrize("guard", ["skip", "cancel"])
def test_a_guard_that_ends_the_step_leaves_a_pending_signal_pending(start, asks, guard):
    asks[guard] = lambda self: self.step_name == "act" and self.signal_ready
    run = start(signalled=True)
    assert of_act(run)[0].status in (AttemptStatus.SKIPPED, AttemptStatus.CANCELLED)
    assert signals(run) == ["pending"]
    assert Event.SIGNAL_CLAIMED not in told(run)


@pytest.mark.parametrize("guard", ["skip", "cancel"])
def test_a_guard_that_ends_the_step_consumes_the_signal_it_held(driver, start, asks, guard):
    asks[guard] = lambda self: self.step_name == "act" and self.woken
    run = start()
    run.signal("go")
    driver.drain()
    assert of_act(run)[0].status in (AttemptStatus.SKIPPED, AttemptStatus.CANCELLED)
    assert signals(run) == ["consumed"]
    assert run.reload().status in (RunStatus.FINISHED, RunStatus.CANCELLED)


def test_a_guard_that_raises_keeps_the_signal_it_held(driver, start, asks):
    asks["skip"] = lambda self: self.woken and raising(ValueError())(self)
    run = start()
    run.signal("go")
    driver.drain()
    assert (run.reload().status, signals(run)) == (RunStatus.PAUSED, ["claimed"])


def test_a_late_step_is_skipped_by_its_subjects_state_and_a_woken_one_is_not(driver, start, asks):
    shipped = []
    asks["skip"] = lambda self: bool(shipped) and not self.signal_ready
    ran = []
    script(act=lambda self: ran.append(self.workflow_id))
    run = start()
    shipped.append("yes")
    run.signal("go")
    driver.drain()
    assert ran == [run.workflow_id]
    late = start()
    assert (of_act(late)[0].status, ran) == (AttemptStatus.SKIPPED, [run.workflow_id])


def test_a_guard_sees_no_received_signal(driver, start, asks):
    seen = []
    asks["skip"] = lambda self: seen.append(self.received_signal)
    run = start()
    run.signal("go")
    driver.drain()
    assert seen == [None, None]


def test_require_signal_in_a_guard_is_an_error_for_the_policies(start, asks):
    asks["skip"] = lambda self: self.require_signal()
    run = start(signalled=True)
    assert of_act(run)[0].error_class == "pgbus.engine.errors.NoSignal"


def test_a_policy_method_sees_the_signal_its_body_ran_with(start):
    script(act=raising(RuntimeError()))
    run = start(signalled=True, workflow=Lenient)
    assert (run.status, Lenient.seen, signals(run)) == (
        RunStatus.FINISHED, [{"n": 1}], ["consumed"]
    )  # fmt: skip


@pytest.mark.parametrize("ask", ["skip", "match"])
def test_a_policy_method_sees_no_signal_that_its_step_did_not_take(start, asks, ask):
    asks[ask] = raising(RuntimeError())
    run = start(signalled=True, workflow=Lenient)
    assert (run.status, Lenient.seen, signals(run)) == (RunStatus.FINISHED, [None], ["pending"])


# Bodies of other kinds


def test_an_async_body_runs_with_its_signal(driver, start):
    got = []

    async def body(self):
        await asyncio.sleep(0)
        got.append((self.received_signal.payload, self.woken))

    script(act=body)
    run = start()
    run.signal("go", {"n": 1})
    driver.drain()
    assert (got, run.reload().status) == ([({"n": 1}, True)], RunStatus.FINISHED)


@pytest.fixture
def effects(database):
    database.rows("CREATE TABLE effects (what text)")
    return lambda: [what for (what,) in database.rows("SELECT what FROM effects")]


def test_a_transactional_step_consumes_its_signal_with_its_writes(driver, bus, start, effects):
    seen = []
    script(book=lambda self: seen.append(signals(bus.find(self.workflow_id))))
    run = start(workflow=Booking)
    run.signal("go", {"what": "a seat"})
    driver.drain()
    assert seen == [["claimed"]]
    assert (effects(), signals(run)) == (["a seat"], ["consumed"])
    assert run.reload().status is RunStatus.FINISHED


def test_a_transactional_step_that_fails_keeps_its_signal_and_none_of_its_writes(
    driver, start, effects
):
    script(book=raising(ValueError()))
    run = start(workflow=Booking)
    run.signal("go", {"what": "a seat"})
    driver.drain()
    assert (effects(), signals(run)) == ([], ["claimed"])
    script()
    run.resume()
    driver.drain()
    assert (effects(), signals(run)) == (["a seat"], ["consumed"])


def test_a_transactional_body_may_signal_its_own_run_in_its_transaction(
    bus, driver, start, effects
):
    def body(self):
        bus.find(self.workflow_id).signal("go", {"n": self.attempt}, session=self.session)
        if self.attempt == 1:
            raise ValueError

    script(book=body)
    run = start(workflow=Booking)
    run.signal("go", {"what": "a seat"})
    driver.drain()
    assert signals(run) == ["claimed"]
    run.reload().resume()
    driver.drain()
    assert signals(run) == ["consumed", "pending"]


# Answers that were lost


def test_a_gate_passed_in_a_transaction_whose_answer_was_lost_is_passed_once(
    bus, driver, start, readings
):
    run = Waiter.start()
    run.signal("go")
    driver.perform(*driver.take())
    (delivery,) = driver.take()
    finalizer = Finalizer(driver.services, driver.worker, stopping=lambda: True)
    with driver.services.database.autocommit() as connection:
        for _ in range(2):
            passed = prepare._under_lock(
                driver.services, driver.worker, finalizer, delivery, connection
            )
            assert passed.gate.row.status in ("pending", "claimed")
            assert (passed.gate.woken, passed.gate.row.signal_id) == (
                False, run.signals[0].signal_id
            )  # fmt: skip
    assert told(run).count(Event.SIGNAL_CLAIMED) == 1
