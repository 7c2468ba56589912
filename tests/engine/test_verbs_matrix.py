"""Every outside verb in every state a run and its newest attempt can be in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pgbus import Workflow, fan_out, job, on_exception, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import InvalidTransition, NotOngoing, NotPaused, StepNotDefined
from pgbus.engine.jobs.execute import execute
from pgbus.engine.runner import waits
from pgbus.engine.states import NEEDS_CLASS, Verb


class Declined(Exception):
    pass


class Hopeless(Exception):
    pass


class Pointless(Exception):
    pass


class Twofold(Workflow):
    """Its first step does what the run's arguments say."""

    policies = (
        on_exception(Declined, action="reattempt", wait=timedelta(hours=1)),
        on_exception(Hopeless, action="cancel"),
        on_exception(Pointless, action="skip"),
    )

    @step
    def work(self):
        match self.arguments["does"]:
            case "pause":
                self.pause()
            case "finish":
                self.finish(reason="enough")
            case "cancel":
                self.cancel()
            case "fail":
                raise ValueError
            case "decline":
                raise Declined
            case "despair":
                raise Hopeless
            case "shrug":
                raise Pointless

    @step(wait=timedelta(hours=1))
    def follow(self): ...


class Lonely(Workflow):
    """Its only step is its last."""

    @step(skip_if=lambda self: self.arguments.get("skipped", False))
    def only(self):
        if self.arguments.get("pauses"):
            self.pause()


class Later(Workflow):
    @step(wait=timedelta(hours=1))
    def work(self): ...


class Expectant(Workflow):
    """Its first step waits for a signal, and gives up after an hour."""

    @step(wait_for="shipped", wait_timeout=timedelta(hours=1))
    def work(self): ...

    @step(wait=timedelta(hours=1))
    def follow(self): ...


class Undaunted(Workflow):
    """Its first step runs without its signal, too."""

    @step(wait_for="shipped", wait_timeout=timedelta(hours=1), on_timeout="run")
    def work(self): ...

    @step(wait=timedelta(hours=1))
    def follow(self): ...


@job
def tell(): ...


class Spread(Workflow):
    """Its first step waits for a job."""

    @fan_out
    def work(self, batch):
        batch.add(tell)

    @step(wait=timedelta(hours=1))
    def follow(self): ...


def _paused_meanwhile(driver, does, workflow=Twofold):
    """A run that was paused while its body ran; the body has ended since."""
    run = workflow.start(does=does)
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)
    return run


def _driven(driver, run):
    driver.drain()
    return run


def _claimed(driver):
    run = Twofold.start(does="end")
    (delivery,) = driver.take()
    assert delivery.verdict == "claimed"
    return run


def _parked(driver, workflow):
    """A run whose first step waits."""
    run = workflow.start()
    driver.perform(driver.take()[0])
    return run.reload()


def _signalled(run):
    run.signal("shipped")
    return run.reload()


def _timed_out(driver, workflow):
    run = _parked(driver, workflow)
    assert waits.expire(driver.services, driver.worker, run.workflow_id, early=True)
    return run.reload()


def _resolved(driver):
    """A run that was paused while it waited for a batch, which has ended since."""
    run = _parked(driver, Spread).pause()
    execute(driver.services, driver.take()[0])
    driver.perform(driver.take()[0])
    return run.reload()


STATES = {
    "ready, due": lambda driver: Twofold.start(does="end"),
    "ready, due later": lambda driver: Later.start(),
    "performing": _claimed,
    "paused, due": lambda driver: Twofold.start(does="end").pause(),
    "paused, due later": lambda driver: Later.start().pause(),
    "paused, body running": lambda driver: _claimed(driver).pause(),
    "paused by its body": lambda driver: _driven(driver, Twofold.start(does="pause")),
    "paused by its last body": lambda driver: _driven(driver, Lonely.start(pauses=True)),
    "paused, failed": lambda driver: _driven(driver, Twofold.start(does="fail")),
    "paused, advance held": lambda driver: _paused_meanwhile(driver, "end"),
    "paused, pause held": lambda driver: _paused_meanwhile(driver, "pause"),
    "paused, failure held": lambda driver: _paused_meanwhile(driver, "fail"),
    "paused, finish held": lambda driver: _paused_meanwhile(driver, "finish"),
    "paused, reattempt held": lambda driver: _paused_meanwhile(driver, "decline"),
    "paused, cancel held": lambda driver: _paused_meanwhile(driver, "despair"),
    "paused, skip held": lambda driver: _paused_meanwhile(driver, "shrug"),
    "waiting for a signal": lambda driver: _parked(driver, Expectant),
    "waiting for a batch": lambda driver: _parked(driver, Spread),
    "paused, waiting for a signal": lambda driver: _parked(driver, Expectant).pause(),
    "paused, waiting for a batch": lambda driver: _parked(driver, Spread).pause(),
    "paused, fan-out held": lambda driver: _paused_meanwhile(driver, "end", Spread),
    "paused, batch ended": _resolved,
    "woken": lambda driver: _signalled(_parked(driver, Expectant)),
    "woken, then paused": lambda driver: _signalled(_parked(driver, Expectant)).pause(),
    "paused, then woken": lambda driver: _signalled(_parked(driver, Expectant).pause()),
    "timed out": lambda driver: _timed_out(driver, Expectant),
    "timed out, to run": lambda driver: _timed_out(driver, Undaunted),
    "finished": lambda driver: _driven(driver, Lonely.start()),
    "finished, last skipped": lambda driver: _driven(driver, Lonely.start(skipped=True)),
    "cancelled, due": lambda driver: Twofold.start(does="end").cancel(),
    "cancelled, failed": lambda driver: _driven(driver, Twofold.start(does="despair")),
    "cancelled by its body": lambda driver: _paused_meanwhile(driver, "cancel"),
    "cancelled, completed": lambda driver: _driven(driver, Twofold.start(does="pause")).cancel(),
}

#: What each state is: its run, its newest attempt.
IS = {
    "ready, due": ("ready", "scheduled"),
    "ready, due later": ("ready", "scheduled"),
    "performing": ("performing", "in_progress"),
    "paused, due": ("paused", "scheduled"),
    "paused, due later": ("paused", "scheduled"),
    "paused, body running": ("paused", "in_progress"),
    "paused by its body": ("paused", "completed"),
    "paused by its last body": ("paused", "completed"),
    "paused, failed": ("paused", "failed"),
    "paused, advance held": ("paused", "completed"),
    "paused, pause held": ("paused", "completed"),
    "paused, failure held": ("paused", "failed"),
    "paused, finish held": ("paused", "completed"),
    "paused, reattempt held": ("paused", "failed"),
    "paused, cancel held": ("paused", "failed"),
    "paused, skip held": ("paused", "skipped"),
    "waiting for a signal": ("waiting", "waiting"),
    "waiting for a batch": ("waiting", "waiting"),
    "paused, waiting for a signal": ("paused", "waiting"),
    "paused, waiting for a batch": ("paused", "waiting"),
    "paused, fan-out held": ("paused", "waiting"),
    "paused, batch ended": ("paused", "completed"),
    "woken": ("ready", "scheduled"),
    "woken, then paused": ("paused", "scheduled"),
    "paused, then woken": ("paused", "scheduled"),
    "timed out": ("paused", "failed"),
    "timed out, to run": ("ready", "scheduled"),
    "finished": ("finished", "completed"),
    "finished, last skipped": ("finished", "skipped"),
    "cancelled, due": ("cancelled", "cancelled"),
    "cancelled, failed": ("cancelled", "failed"),
    "cancelled by its body": ("cancelled", "cancelled"),
    "cancelled, completed": ("cancelled", "completed"),
}

PAUSED_STATES = [name for name, (status, _) in IS.items() if status == "paused"]
OVER = [name for name, (status, _) in IS.items() if status in ("finished", "cancelled")]
READY_STATES = [name for name, (status, _) in IS.items() if status == "ready"]
WAITING_STATES = [name for name, (status, _) in IS.items() if status == "waiting"]
OPEN = [
    name for name, (_, attempt) in IS.items() if attempt in ("scheduled", "waiting", "in_progress")
]


def _expected():
    """(state, verb) -> (run's status, what became of the attempt, events, newest attempt).

    An event is (name, from, to, whether it is the caller's own, with actor and reason).
    """
    table = {}
    goes_on = [("resumed", "paused", "ready", True), ("step_scheduled", "ready", "ready", False)]
    ends = [("resumed", "paused", "paused", True), ("finished", "paused", "finished", False)]

    for state in (*READY_STATES, *WAITING_STATES, "performing"):
        was = IS[state][0]
        table[state, "pause"] = ("paused", IS[state][1], [("paused", was, "paused", True)], None)

    for state, (was, attempt) in IS.items():
        if state in OVER:
            continue
        closed = "cancelled" if state in OPEN else attempt
        table[state, "cancel"] = (
            "cancelled", closed, [("cancelled", was, "cancelled", True)], None,
        )  # fmt: skip

    for state in READY_STATES:
        table[state, "run_now"] = (
            "ready",
            "scheduled",
            [("run_now", "ready", "ready", True)],
            None,
        )
        table[state, "reschedule"] = (
            "ready", "scheduled", [("rescheduled", "ready", "ready", True)], None,
        )  # fmt: skip

    for state in ("paused, due", "paused, due later", "woken, then paused", "paused, then woken"):
        table[state, "resume"] = (
            "ready", "scheduled", [("resumed", "paused", "ready", True)], None,
        )  # fmt: skip
    table["paused, body running", "resume"] = (
        "performing", "in_progress", [("resumed", "paused", "performing", True)], None,
    )  # fmt: skip
    waits_on = [("resumed", "paused", "waiting", True)]
    opens = [*waits_on, ("fan_out_opened", "waiting", "waiting", False)]
    for state in ("paused, waiting for a signal", "paused, waiting for a batch"):
        table[state, "resume"] = ("waiting", "waiting", waits_on, None)
    table["paused, fan-out held", "resume"] = ("waiting", "waiting", opens, None)
    for state in ("paused, failed", "paused, failure held", "paused, reattempt held", "timed out"):
        table[state, "resume"] = ("ready", "failed", goes_on, ("work", 2))
    for state in (
        "paused by its body", "paused, advance held", "paused, pause held", "paused, batch ended",
    ):  # fmt: skip
        table[state, "resume"] = ("ready", "completed", goes_on, ("follow", 1))
    table["paused, skip held", "resume"] = ("ready", "skipped", goes_on, ("follow", 1))
    table["paused by its last body", "resume"] = ("finished", "completed", ends, None)
    table["paused, finish held", "resume"] = ("finished", "completed", ends, None)
    table["paused, cancel held", "resume"] = (
        "cancelled", "failed",
        [("resumed", "paused", "paused", True), ("cancelled", "paused", "cancelled", False)], None,
    )  # fmt: skip

    for state in PAUSED_STATES:
        closed = "cancelled" if state in OPEN else IS[state][1]
        step_name = "only" if state == "paused by its last body" else "work"
        table[state, "resume_at"] = ("ready", closed, goes_on, (step_name, 2))

    skipped = [
        ("step_skipped", "paused", "ready", True),
        ("step_scheduled", "ready", "ready", False),
    ]
    for state in WAITING_STATES:
        past = [("step_skipped", "waiting", "ready", True), skipped[1]]
        table[state, "skip"] = ("ready", "skipped", past, ("follow", 1))
    for state in PAUSED_STATES:
        if IS[state][1] in ("failed", "scheduled", "waiting"):
            table[state, "skip"] = ("ready", "skipped", skipped, ("follow", 1))
    table["paused, due later", "skip"] = (
        "finished", "skipped",
        [("step_skipped", "paused", "paused", True), ("finished", "paused", "finished", False)],
        None,
    )  # fmt: skip

    for state, (was, attempt) in IS.items():
        if state not in OVER:
            received = [("signal_received", was, was, True)]
            table[state, "signal"] = (was, attempt, received, None)
    for state, status in (
        ("waiting for a signal", "ready"),
        ("paused, waiting for a signal", "paused"),
    ):
        was = IS[state][0]
        wakes = [
            ("signal_received", was, was, True),
            ("signal_claimed", was, status, False),
            ("step_scheduled", status, status, False),
        ]
        table[state, "signal"] = (status, "scheduled", wakes, ("work", 1))

    for state in OVER:
        was, attempt = IS[state]
        table[state, "rerun"] = (was, attempt, [("rerun", was, was, True)], None)
    return table


EXPECTED = _expected()


REFUSALS = {Verb.RESUME: NotPaused, Verb.RESUME_AT: NotPaused, Verb.SIGNAL: NotOngoing}


def _ask(run, verb):
    arguments = {
        Verb.RESUME_AT: [run.steps[-1].step_name],
        Verb.RESCHEDULE: [datetime.now(UTC) + timedelta(minutes=30)],
        Verb.SIGNAL: ["shipped"],
    }
    return getattr(run, verb)(*arguments.get(verb, ()), actor="ann", reason="because")


def _everything(database):
    tables = [
        "pgbus.workflows", "pgbus.workflow_steps", "pgbus.workflow_events", "pgbus.workflow_signals",
        "pgbus.batches", "pgbus.batch_counters", "pgbus.batch_jobs",
    ]  # fmt: skip
    queues = database.rows("SELECT queue_name FROM pgmq.meta ORDER BY 1")
    tables += [f"pgmq.q_{queue}" for (queue,) in queues]
    return {table: database.rows(f"SELECT t::text FROM {table} t ORDER BY 1") for table in tables}


def test_the_states_are_what_they_are_called(bus, driver):
    for name, make in STATES.items():
        run = make(driver).reload()
        assert (name, run.status, run.steps[-1].status) == (name, *IS[name])
        if run.status not in ("finished", "cancelled"):
            run.cancel()
        driver.drain()


@pytest.mark.parametrize("state", STATES)
def test_a_verb_that_the_table_does_not_allow_names_the_state_and_changes_nothing(
    bus, driver, database, state
):
    run = STATES[state](driver)
    status, attempt = IS[state]
    everything = _everything(database)
    refused = [verb for verb in Verb if (state, verb) not in EXPECTED]
    assert set(run.available_actions).isdisjoint(refused)
    for verb in refused:
        kind = REFUSALS.get(verb, InvalidTransition)
        with pytest.raises(InvalidTransition) as refusal:
            _ask(run, verb)
        assert type(refusal.value) is kind
        assert refusal.value.status == status
        text = str(refusal.value)
        assert verb in text
        assert run.workflow_id in text
        assert f"it is {status}," in text or f"is {attempt}," in text
        assert _everything(database) == everything


@pytest.mark.parametrize(("state", "verb"), EXPECTED)
def test_a_verb_that_the_table_allows_does_what_it_says(bus, driver, state, verb):
    run = STATES[state](driver)
    before, newest = run.events, run.steps[-1]
    assert verb in run.available_actions
    status, attempt, events, scheduled = EXPECTED[state, verb]
    answer = _ask(run, verb)
    if verb not in (Verb.RERUN, Verb.SIGNAL):
        assert answer is run
        assert run.status == status
    assert run.reload().status == status
    tries = {one.step_id: one for one in run.steps}
    assert tries[newest.step_id].status == attempt

    new = run.events[len(before) :]
    assert [(e.event, e.from_status, e.to_status, e.reason == "because") for e in new] == events
    assert {e.actor for e in new} == {"ann"}
    if scheduled:
        last = run.steps[-1]
        assert (last.step_name, last.attempt, last.status) == (*scheduled, "scheduled")
        assert (new[-1].step_name, new[-1].attempt) == scheduled
        assert run.current_step == scheduled[0]
    else:
        assert run.steps[-1].step_id == newest.step_id


@pytest.mark.parametrize("state", STATES)
def test_without_its_class_a_run_takes_the_verbs_that_need_none(
    bus, driver, database, monkeypatch, state
):
    run = STATES[state](driver).reload()
    monkeypatch.delitem(registry._definitions, run.workflow_class)
    asked = [verb for verb in Verb if (state, verb) in EXPECTED]
    assert list(run.available_actions) == [verb for verb in asked if verb not in NEEDS_CLASS]
    for verb in asked:
        if verb in NEEDS_CLASS:
            everything = _everything(database)
            with pytest.raises(StepNotDefined, match=run.workflow_class):
                _ask(run, verb)
            assert _everything(database) == everything
