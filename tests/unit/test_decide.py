import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgbus import SignalMatcher, Workflow, fan_out, on_exception, removed_step, step
from pgbus.engine.decision import ErrorEntry, EventEntry, Held, NextAttempt, Wait
from pgbus.engine.definition.policy import PolicyAction
from pgbus.engine.runner.decide import (
    MAX_STALL_REATTEMPTS,
    Cause,
    Decider,
    Result,
    Ruling,
    limited,
    next_live_step,
    pause_on,
    rule,
    rule_stall,
    scheduled,
)
from pgbus.engine.states import (
    AttemptStatus,
    Detection,
    Event,
    Move,
    Outcome,
    RunStatus,
    StallAction,
)
from pgbus.engine.storage.batches import BatchPlan, MemberMessage, NewBatch

LATER = datetime(2030, 1, 1, tzinfo=UTC)


class Order(Workflow):
    @step
    def reserve(self): ...

    gone = removed_step()

    @step(wait=5, job_options={"queue": "mail", "wait": 7, "wait_until": LATER})
    def remind(self): ...

    @step(wait=timedelta(seconds=9), job_options={"wait": 7})
    def close(self): ...

    last = removed_step()


DEFINITION = Order._definition
ERROR = ErrorEntry("shop.Declined", "no", "{}")
TOLD = {"error_class": "shop.Declined"}


def decider(step_name="reserve"):
    return Decider(
        DEFINITION, DEFINITION.step(step_name), lambda step: f"q_{step.queue or step.name}"
    )


NEXT_OF_RESERVE = NextAttempt("remind", "q_mail", 7.0, LATER)


@pytest.mark.parametrize(
    ("result", "move", "target", "attempt", "events", "held"),
    [
        (
            Result(Outcome.COMPLETED, '{"a": 1}'),
            Move.ADVANCE, RunStatus.READY, AttemptStatus.COMPLETED,
            (EventEntry(Event.STEP_COMPLETED), EventEntry(Event.STEP_SCHEDULED)),
            Held(Move.ADVANCE),
        ),
        (
            Result(Outcome.SKIPPED, '{"a": 1}', "paid"),
            Move.ADVANCE, RunStatus.READY, AttemptStatus.SKIPPED,
            (EventEntry(Event.STEP_SKIPPED, "paid"), EventEntry(Event.STEP_SCHEDULED)),
            Held(Move.ADVANCE),
        ),
        (
            Result(Outcome.FINISHED, '{"a": 1}', "enough"),
            Move.FINISH, RunStatus.FINISHED, AttemptStatus.COMPLETED,
            (EventEntry(Event.STEP_COMPLETED), EventEntry(Event.FINISHED, "enough")),
            Held(Move.FINISH, "enough"),
        ),
        (
            Result(Outcome.PAUSED, '{"a": 1}', "look"),
            Move.STEP_PAUSE, RunStatus.PAUSED, AttemptStatus.COMPLETED,
            (EventEntry(Event.STEP_COMPLETED), EventEntry(Event.PAUSED, "look")),
            Held(Move.STEP_PAUSE, "look"),
        ),
        (
            Result(Outcome.CANCELLED, '{"a": 1}', "gone"),
            Move.STEP_CANCEL, RunStatus.CANCELLED, AttemptStatus.CANCELLED,
            (EventEntry(Event.CANCELLED, "gone"),),
            None,
        ),
        (
            Result(Outcome.REATTEMPTED, '{"a": 1}', "early", 30.0),
            Move.REATTEMPT, RunStatus.READY, AttemptStatus.FAILED,
            (EventEntry(Event.STEP_REATTEMPTED, "early"), EventEntry(Event.STEP_SCHEDULED)),
            Held(Move.REATTEMPT, wait=30.0),
        ),
    ],
    ids=lambda value: value.outcome if isinstance(value, Result) else None,
)  # fmt: skip
def test_a_result_decides(result, move, target, attempt, events, held):
    final = decider().after_result(result)
    assert (final.move, final.target, final.attempt_status) == (move, target, attempt)
    assert final.outcome is result.outcome
    assert final.events == events
    assert final.output == '{"a": 1}'
    assert final.error is None
    assert final.held == held
    following = {
        Move.ADVANCE: NEXT_OF_RESERVE,
        Move.REATTEMPT: NextAttempt("reserve", "q_reserve", 30.0),
    }
    assert final.next == following.get(move)
    assert final.reattempted_by == (Cause.BODY if move is Move.REATTEMPT else None)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.SKIPPED])
def test_after_the_last_live_step_the_run_finishes(outcome):
    final = decider("close").after_result(Result(outcome))
    assert (final.move, final.target, final.next) == (Move.FINISH, RunStatus.FINISHED, None)
    assert final.events[-1] == EventEntry(Event.FINISHED)
    # A later version may have a step after it: resume looks again.
    assert final.held == Held(Move.ADVANCE)


@pytest.mark.parametrize("detection", [None, Detection.REDELIVERY])
@pytest.mark.parametrize(
    ("ruling", "move", "target", "attempt", "outcome", "events", "held"),
    [
        (
            Ruling(PolicyAction.PAUSE, reason="why"),
            Move.STEP_PAUSE, RunStatus.PAUSED, AttemptStatus.FAILED, Outcome.PAUSED,
            (EventEntry(Event.STEP_FAILED, None, TOLD), EventEntry(Event.PAUSED, "why")),
            Held(Move.STEP_PAUSE, "why"),
        ),
        (
            Ruling(PolicyAction.CANCEL, reason="why"),
            Move.STEP_CANCEL, RunStatus.CANCELLED, AttemptStatus.FAILED, Outcome.CANCELLED,
            (EventEntry(Event.STEP_FAILED, None, TOLD), EventEntry(Event.CANCELLED, "why")),
            Held(Move.STEP_CANCEL, "why"),
        ),
        (
            Ruling(PolicyAction.REATTEMPT, 15.0, "why"),
            Move.REATTEMPT, RunStatus.READY, AttemptStatus.FAILED, Outcome.REATTEMPTED,
            (EventEntry(Event.STEP_REATTEMPTED, "why", TOLD), EventEntry(Event.STEP_SCHEDULED)),
            Held(Move.REATTEMPT, wait=15.0),
        ),
    ],
    ids=["pause", "cancel", "reattempt"],
)  # fmt: skip
def test_a_ruling_decides(ruling, move, target, attempt, outcome, events, held, detection):
    final = decider().after_error(ERROR, ruling, output='{"a": 1}', detection=detection)
    assert (final.move, final.target) == (move, target)
    assert (final.attempt_status, final.outcome) == (attempt, outcome)
    detected = EventEntry(Event.STALL_DETECTED, None, {"detection": "redelivery"})
    assert final.events == ((detected, *events) if detection else events)
    assert (final.output, final.error) == ('{"a": 1}', ERROR)
    assert final.held == held
    again = move is Move.REATTEMPT
    assert final.next == (NextAttempt("reserve", "q_reserve", 15.0) if again else None)
    assert final.reattempted_by == (Cause.POLICY if again else None)


def test_a_policys_skip_leaves_the_error_on_a_skipped_attempt():
    final = decider().after_error(ERROR, Ruling(PolicyAction.SKIP, reason="why"), output="{}")
    assert (final.move, final.attempt_status) == (Move.ADVANCE, AttemptStatus.SKIPPED)
    assert final.outcome is Outcome.SKIPPED
    assert final.events == (
        EventEntry(Event.STEP_SKIPPED, "why", TOLD),
        EventEntry(Event.STEP_SCHEDULED),
    )
    assert (final.output, final.error, final.next) == ("{}", ERROR, NEXT_OF_RESERVE)
    assert final.held == Held(Move.ADVANCE)


def test_an_attempt_whose_step_is_not_declared_can_still_end():
    final = pause_on(ERROR, detection=Detection.REDELIVERY)
    assert (final.move, final.target) == (Move.STEP_PAUSE, RunStatus.PAUSED)
    assert final == decider().after_error(
        ERROR, Ruling(PolicyAction.PAUSE), detection=Detection.REDELIVERY
    )


@pytest.mark.parametrize(
    ("held", "document"),
    [
        (Held(Move.ADVANCE), {"move": "advance"}),
        (Held(Move.FINISH, "enough"), {"move": "finish", "reason": "enough"}),
        (Held(Move.REATTEMPT, wait=30.5), {"move": "reattempt", "wait": 30.5}),
        (Held(Move.PARK, batch="{}"), {"move": "park", "batch": "{}"}),
    ],
)
def test_what_is_held_comes_back_from_its_document(held, document):
    assert json.loads(held.encode()) == document
    assert Held.decode(held.encode()) == held
    assert type(Held.decode(held.encode()).move) is Move


class Shipment(Workflow):
    @step(wait_for=SignalMatcher("shipped"))
    def receive(self): ...

    @fan_out
    def notify(self, batch): ...

    @fan_out(on_batch_failure="cancel")
    def announce(self, batch): ...

    @fan_out(on_batch_failure="skip")
    def advertise(self, batch): ...

    @step
    def close(self): ...


def deciding(step_name):
    definition = Shipment._definition
    return Decider(definition, definition.step(step_name), lambda step: f"q_{step.name}")


@pytest.mark.parametrize(
    ("timeout_at", "told"), [(LATER, "2030-01-01T00:00:00+00:00"), (None, None)]
)
def test_at_its_gate_an_attempt_parks_and_says_for_what_and_until_when(timeout_at, told):
    final = deciding("receive").park_at_gate(timeout_at)
    assert (final.move, final.target) == (Move.PARK, RunStatus.WAITING)
    assert (final.attempt_status, final.outcome) == (AttemptStatus.WAITING, None)
    assert final.events == (
        EventEntry(Event.STEP_WAITING, None, {"wait_for": "shipped", "timeout_at": told}),
    )
    assert final.wait == Wait("shipped", timeout_at)
    # It parks in the transaction that claimed it: its run cannot be paused between.
    assert (final.held, final.next, final.output) == (None, None, None)


PLAN = BatchPlan(
    NewBatch(batch_id="b1", description="Shipment#notify r1", properties="{}", step_queue="q_notify"),
    (
        MemberMessage("shop.tell", "pgbus_default", '{"job": "shop.tell"}', 5.0, None),
        MemberMessage("shop.tell", "pgbus_mail", '{"job": "shop.tell"}', 0.0, LATER),
    ),
)  # fmt: skip


def test_a_fan_out_parks_on_its_batch_and_keeps_its_output():
    final = deciding("notify").after_fan_out('{"a": 1}', PLAN)
    assert (final.move, final.target) == (Move.PARK, RunStatus.WAITING)
    assert (final.attempt_status, final.outcome) == (AttemptStatus.WAITING, None)
    assert final.events == (
        EventEntry(Event.FAN_OUT_OPENED, None, {"batch_id": "b1", "size": 2}),
        EventEntry(Event.STEP_WAITING, None, {"batch_id": "b1"}),
    )
    assert (final.output, final.wait, final.next) == ('{"a": 1}', Wait(batch=PLAN), None)
    assert final.held == Held(Move.PARK)


def test_a_batch_can_be_opened_from_what_is_held():
    held = Held.decode(Held(Move.PARK, batch=PLAN.encode()).encode())
    assert held.move is Move.PARK
    assert BatchPlan.decode(held.batch) == PLAN


def test_a_fan_out_of_nothing_has_completed():
    final = deciding("notify").after_fan_out('{"a": 1}', None)
    completed = deciding("notify").after_result(Result(Outcome.COMPLETED, '{"a": 1}'))
    none = EventEntry(Event.FAN_OUT_FINISHED, None, {"failed_jobs": 0, "total_jobs": 0})
    assert final == replace(completed, events=(none, *completed.events))
    assert final.next == NextAttempt("announce", "q_announce")


@pytest.mark.parametrize("step_name", ["notify", "announce", "advertise"])
def test_a_batch_without_failures_completes_its_step(step_name):
    of = deciding(step_name)
    assert of.after_batch(None, '{"a": 1}') == of.after_result(
        Result(Outcome.COMPLETED, '{"a": 1}')
    )


@pytest.mark.parametrize(
    ("step_name", "action"),
    [
        ("notify", PolicyAction.PAUSE),
        ("announce", PolicyAction.CANCEL),
        ("advertise", PolicyAction.SKIP),
    ],
)
def test_a_batch_with_failures_ends_its_step_as_that_says(step_name, action):
    of = deciding(step_name)
    final = of.after_batch(ERROR, '{"a": 1}')
    assert final == of.after_error(ERROR, Ruling(action), output='{"a": 1}')
    assert (final.error, final.output) == (ERROR, '{"a": 1}')


def test_a_steps_turn_comes_at_the_later_of_its_waits():
    def queue_of(step):
        return step.name

    assert scheduled(DEFINITION.step("reserve"), queue_of) == NextAttempt("reserve", "reserve")
    assert scheduled(DEFINITION.step("remind"), queue_of) == (
        NextAttempt("remind", "remind", 7.0, LATER)
    )
    assert scheduled(DEFINITION.step("close"), queue_of) == NextAttempt("close", "close", 9.0)


def test_the_next_live_step_passes_over_gravestones():
    assert next_live_step(DEFINITION, "reserve").name == "remind"
    assert next_live_step(DEFINITION, "gone").name == "remind"
    assert next_live_step(DEFINITION, "close") is None


def policy(**options):
    return on_exception(action="reattempt", **options)


def test_without_a_policy_the_run_pauses():
    assert rule(None, reattempted=0) == Ruling(PolicyAction.PAUSE)


@pytest.mark.parametrize("action", ["pause", "cancel", "skip"])
def test_an_action_that_never_reattempts_is_the_ruling(action):
    assert rule(on_exception(action=action), reattempted=500) == Ruling(PolicyAction(action))


def test_a_policy_reattempts_as_often_as_its_limit_says_and_then_does_its_terminal_action():
    limited_policy = policy(max_reattempts=2, wait=15, terminal_action="cancel")
    assert [rule(limited_policy, reattempted=n) for n in range(4)] == [
        Ruling(PolicyAction.REATTEMPT, 15.0),
        Ruling(PolicyAction.REATTEMPT, 15.0),
        Ruling(PolicyAction.CANCEL, reason="gave up after 2 reattempts"),
        Ruling(PolicyAction.CANCEL, reason="gave up after 3 reattempts"),
    ]


def test_no_limit_is_no_limit():
    unlimited = policy(max_reattempts=None)
    assert rule(unlimited, reattempted=10**6) == Ruling(PolicyAction.REATTEMPT)


def test_the_default_limit_is_a_hundred():
    assert rule(policy(), reattempted=99).action is PolicyAction.REATTEMPT
    assert rule(policy(), reattempted=100).action is PolicyAction.PAUSE


def test_a_backoff_is_asked_with_the_number_of_the_try_in_this_row():
    growing = policy(wait=lambda attempt: timedelta(seconds=10 * attempt))
    assert [rule(growing, reattempted=n).wait for n in range(3)] == [10.0, 20.0, 30.0]


def test_a_policy_methods_reattempt_is_limited_and_its_other_verbs_are_not():
    of_method = policy(max_reattempts=1, terminal_action="skip")
    again = Ruling(PolicyAction.REATTEMPT, 3.0, "soon")
    assert limited(of_method, again, reattempted=0) is again
    assert limited(of_method, again, reattempted=1) == Ruling(
        PolicyAction.SKIP, reason="gave up after 1 reattempts"
    )
    cancel = Ruling(PolicyAction.CANCEL)
    assert limited(of_method, cancel, reattempted=1) is cancel


def test_a_stalled_step_is_reattempted_a_hundred_times_in_a_row():
    assert MAX_STALL_REATTEMPTS == 100
    assert rule_stall(StallAction.REATTEMPT, reattempted=99) == (
        Ruling(PolicyAction.REATTEMPT, cause=Cause.STALL)
    )
    assert rule_stall(StallAction.REATTEMPT, reattempted=100) == (
        Ruling(PolicyAction.PAUSE, reason="gave up after 100 reattempts")
    )


def test_a_stalls_reattempt_is_of_its_own_count():
    final = decider().after_error(
        ERROR, rule_stall(StallAction.REATTEMPT, reattempted=0), detection=Detection.SWEEP
    )
    assert final.reattempted_by == Cause.STALL


@pytest.mark.parametrize("action", [StallAction.PAUSE, StallAction.CANCEL])
def test_a_stall_that_is_not_to_be_reattempted_never_is(action):
    assert rule_stall(action, reattempted=0).action is PolicyAction(action)
