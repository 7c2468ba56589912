"""What an instance offers while its attempt runs, and refuses otherwise."""

import asyncio
from datetime import timedelta

import pytest

from pgbus import StepContext, Workflow, step
from pgbus.engine.definition.scope import AttemptScope, GateReaders, Phase, step_context
from pgbus.engine.definition.verbs import (
    CancelRun,
    FinishRun,
    PauseRun,
    ReattemptStep,
    SkipStep,
    StepVerb,
    find_verb,
)
from pgbus.engine.errors import (
    AttemptLost,
    NoSignal,
    NotInStep,
    PayloadError,
    PayloadTooLarge,
    SubjectGone,
)


class Order(Workflow):
    @step
    def pay(self): ...


def attempt(phase=Phase.BODY, **changes):
    workflow = Order()
    defaults = {
        "workflow_id": "w-1",
        "workflow_class": "shop.Order",
        "step_name": "pay",
        "attempt": 3,
        "arguments": lambda: {"plan": "pro"},
        "session": lambda: "session",
        "subject": lambda: "order",
        "outputs": lambda: {"reserve": {"held": 1}},
        "is_lost": lambda: False,
        "max_payload_size": 60,
    }
    workflow._scope = AttemptScope(phase=phase, **(defaults | changes))
    return workflow


READERS = {
    "subject": "order",
    "arguments": {"plan": "pro"},
    "session": "session",
    "workflow_id": "w-1",
    "step_name": "pay",
    "attempt": 3,
    "step_idempotency_key": "pgbus-wf:w-1:pay",
    "attempt_idempotency_key": "pgbus-wf:w-1:pay:3",
    "outputs": {"reserve": {"held": 1}},
}

GATE_READERS = {
    "received_signal": None,
    "timed_out": False,
    "signal_ready": False,
    "woken": False,
}

VERBS = {
    "pause": PauseRun,
    "cancel": CancelRun,
    "reattempt": ReattemptStep,
    "skip": SkipStep,
    "finish": FinishRun,
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("reader", "value"), (READERS | GATE_READERS).items())
def test_every_phase_has_the_readers(phase, reader, value):
    assert getattr(attempt(phase), reader) == value


@pytest.mark.parametrize("reader", READERS | GATE_READERS)
def test_a_reader_outside_a_step_says_where_to_ask(reader):
    with pytest.raises(NotInStep, match=r"Order\.\w+ is only there while a step runs; .* the Run"):
        getattr(Order(), reader)


@pytest.mark.parametrize(
    "call",
    ["require_subject", "require_signal", "output", "checkpoint", *VERBS],
    ids=lambda name: name,
)
def test_nothing_of_a_step_can_be_called_outside_one(call):
    with pytest.raises(NotInStep, match="is only there while a step runs"):
        getattr(Order(), call)()


def test_a_subject_that_is_gone_is_none_or_an_error():
    gone = attempt(subject=lambda: None)
    assert gone.subject is None
    with pytest.raises(SubjectGone, match="Order w-1 has no subject"):
        gone.require_subject()
    assert attempt().require_subject() == "order"


def at_gate(**changes):
    defaults = {
        "signal_ready": lambda: False,
        "woken": lambda: False,
        "received_signal": lambda: None,
        "timed_out": False,
    }
    return attempt(gate=GateReaders(**(defaults | changes)))


def test_a_step_that_waits_reads_its_gate():
    assert at_gate(signal_ready=lambda: True).signal_ready is True
    assert at_gate(woken=lambda: True).woken is True
    assert at_gate(timed_out=True).timed_out is True
    assert at_gate(received_signal=lambda: "signal").received_signal == "signal"
    closed = at_gate()
    assert [getattr(closed, reader) for reader in GATE_READERS] == [*GATE_READERS.values()]


def test_a_signal_that_is_not_there_is_an_error_when_it_is_required():
    assert at_gate(received_signal=lambda: "signal").require_signal() == "signal"
    for without in (at_gate(timed_out=True), attempt()):
        with pytest.raises(NoSignal, match="step 'pay' of Order w-1 runs without a signal: "):
            without.require_signal()


def test_the_output_of_a_step_is_what_it_recorded_or_none():
    assert attempt().output_of("reserve") == {"held": 1}
    assert attempt().output_of("other") is None


def test_outputs_of_one_attempt_are_merged():
    workflow = attempt()
    workflow.output(a=1, self=2)
    workflow.output(a=3, b=4)
    assert workflow._scope.output == {"a": 3, "self": 2, "b": 4}


def test_an_output_that_cannot_be_stored_raises_in_the_body_and_is_not_recorded():
    workflow = attempt()
    workflow.output(a=1)
    with pytest.raises(PayloadError, match=r"output\.b"):
        workflow.output(a=2, b=object())
    assert workflow._scope.output == {"a": 1}


def test_outputs_are_capped_together():
    workflow = attempt()
    workflow.output(a="x" * 40)
    with pytest.raises(PayloadTooLarge, match="output"):
        workflow.output(b="x" * 40)
    assert list(workflow._scope.output) == ["a"]


def test_a_checkpoint_stops_a_body_whose_attempt_was_taken_away():
    attempt().checkpoint()
    with pytest.raises(AttemptLost, match="attempt 3 of 'pay' in w-1"):
        attempt(is_lost=lambda: True).checkpoint()


@pytest.mark.parametrize("phase", [Phase.GUARD, Phase.POLICY])
@pytest.mark.parametrize("call", ["output", "checkpoint"])
def test_only_a_body_records_and_checks(phase, call):
    with pytest.raises(NotInStep, match=rf"{call}\(\) in a {phase} .* body of step 'pay'"):
        getattr(attempt(phase), call)()


@pytest.mark.parametrize("phase", [Phase.BODY, Phase.POLICY])
@pytest.mark.parametrize(("verb", "kind"), VERBS.items())
def test_a_verb_ends_a_body_and_a_policy_with_its_reason(phase, verb, kind):
    with pytest.raises(StepVerb) as raised:
        getattr(attempt(phase), verb)(reason="because")
    assert type(raised.value) is kind
    assert raised.value.reason == "because"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_needs_no_reason(verb):
    with pytest.raises(StepVerb) as raised:
        getattr(attempt(), verb)()
    assert raised.value.reason is None


@pytest.mark.parametrize("verb", VERBS)
def test_a_guard_decides_by_its_answer_not_by_a_verb(verb):
    with pytest.raises(NotInStep, match=rf"{verb}\(\) in a guard of shop.Order.*return True"):
        getattr(attempt(Phase.GUARD), verb)()


@pytest.mark.parametrize(("wait", "seconds"), [(0, 0), (30, 30), (timedelta(minutes=1), 60)])
def test_reattempt_waits_as_long_as_it_says(wait, seconds):
    with pytest.raises(ReattemptStep) as raised:
        attempt().reattempt(wait=wait)
    assert raised.value.wait == timedelta(seconds=seconds)


@pytest.mark.parametrize("wait", [-1, "soon", True])
def test_a_bad_wait_of_reattempt_is_an_error_of_the_body(wait):
    with pytest.raises(ValueError, match="is no duration"):
        attempt().reattempt(wait=wait)


@pytest.mark.parametrize("verb", VERBS)
def test_except_exception_does_not_swallow_a_verb(verb):
    def body():
        try:
            getattr(attempt(), verb)()
        except Exception:  # noqa: BLE001 # what bodies do
            return "swallowed"

    with pytest.raises(VERBS[verb]):
        body()


def test_an_ordinary_error_holds_no_verb():
    assert find_verb(ValueError()) is None
    assert find_verb(ExceptionGroup("", [ValueError()])) is None


def test_a_verb_is_found_however_deep_it_is_grouped():
    verb = SkipStep()
    assert find_verb(verb) is verb
    inner = BaseExceptionGroup("", [KeyError(), verb])
    assert find_verb(BaseExceptionGroup("", [ValueError(), inner])) is verb


def test_a_verb_in_a_task_group_is_found():
    async def body():
        async with asyncio.TaskGroup() as group:
            group.create_task(finish())

    async def finish():
        attempt().finish(reason="enough")

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(body())
    assert find_verb(raised.value).reason == "enough"


ORDER = [
    CancelRun(),
    PauseRun(),
    FinishRun(),
    SkipStep(),
    ReattemptStep(timedelta(0)),
]


@pytest.mark.parametrize("at", range(len(ORDER) - 1))
def test_of_several_verbs_the_one_that_leaves_the_least_to_happen_wins(at):
    assert find_verb(BaseExceptionGroup("", ORDER[: at - 1 if at else None : -1])) is ORDER[at]


def test_of_two_equal_verbs_the_first_wins():
    first, second = PauseRun("first"), PauseRun("second")
    assert find_verb(BaseExceptionGroup("", [first, second])) is first


def test_the_step_context_is_there_only_in_an_attempt():
    context = StepContext(workflow_id="w-1", workflow_class="shop.Order", step="pay", attempt=3)
    assert StepContext.current() is None
    token = step_context.set(context)
    try:
        assert StepContext.current() == context
    finally:
        step_context.reset(token)
