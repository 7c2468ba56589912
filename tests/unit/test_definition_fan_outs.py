import functools
from types import new_class

import pytest

from pgbus import Workflow, fan_out, on_exception, removed_step, step
from pgbus.engine.errors import DefinitionError
from pgbus.engine.states import OnBatchFailure


def definition_of(**steps):
    def fill(body):
        for name, declaration in steps.items():
            body[name] = declaration

    return new_class("Made", (Workflow,), exec_body=fill)._definition


def spread(self, batch):
    return type(self).__name__, batch


def run(definition, name):
    return definition.step(name).body(definition.workflow_class(), "batch")


class Vendors(Workflow):
    @step
    def reserve(self): ...

    @fan_out
    def plain(self, batch):
        return "plain", batch

    @fan_out(on_batch_failure="skip", wait=5)
    def optioned(self, batch): ...

    @fan_out
    async def asynchronous(self, batch): ...

    @fan_out
    def _(self, batch):
        return "anonymous", batch

    elsewhere = fan_out(spread)
    named = fan_out("plain")
    last = fan_out(functools.partial(lambda flag, self, batch: (flag, batch), "x"))


def test_a_fan_outs_body_gets_the_instance_and_the_builder():
    made = Vendors._definition
    assert run(made, "plain") == ("plain", "batch")
    assert run(made, "step_1") == ("anonymous", "batch")
    assert run(made, "elsewhere") == ("Vendors", "batch")
    assert run(made, "named") == ("plain", "batch")
    assert run(made, "last") == ("x", "batch")
    assert Vendors().plain(7) == ("plain", 7)


def test_only_a_fan_out_is_one():
    told = {one.name: one.fan_out for one in Vendors._definition.steps}
    assert told.pop("reserve") is False
    assert set(told.values()) == {True}


def test_a_failed_batch_pauses_unless_the_step_says_otherwise():
    made = Vendors._definition
    assert made.step("plain").on_batch_failure is OnBatchFailure.PAUSE
    assert made.step("optioned").on_batch_failure is OnBatchFailure.SKIP


def test_a_fan_out_takes_the_other_options_of_a_step():
    base = definition_of(
        first=step(lambda _self: None),
        made=fan_out(
            spread,
            wait=3,
            skip_if=lambda _self: True,
            timeout=60,
            on_stall="cancel",
            job_options={"queue": "mail"},
            policies=[on_exception(action="skip")],
            before_step="first",
        ),
    )
    made = base.steps[0]
    assert (made.name, made.wait.total_seconds(), made.timeout.total_seconds()) == ("made", 3, 60)
    assert (made.on_stall, made.queue, len(made.policies)) == ("cancel", "mail", 1)
    assert made.skip_if(None) is True


@pytest.mark.parametrize("option", ["wait_for", "wait_timeout", "on_timeout", "transactional"])
def test_a_fan_out_waits_for_its_batch_alone_and_is_never_transactional(option):
    with pytest.raises(DefinitionError, match=f"step 'made': unknown option '{option}'; there are"):
        definition_of(made=fan_out(spread, **{option: True}))


def test_an_option_that_is_like_another_but_no_slip_for_it_suggests_none():
    with pytest.raises(DefinitionError, match=r"option 'wait_for'; there are [\w, ]+$"):
        definition_of(made=fan_out(spread, wait_for="paid"))


def test_only_a_fan_out_has_a_batch_that_fails():
    with pytest.raises(DefinitionError, match="unknown option 'on_batch_failure'"):
        definition_of(made=step(lambda _self: None, on_batch_failure="skip"))


@pytest.mark.parametrize("value", ["reattempt", None, 5])
def test_what_follows_a_failed_batch_is_chosen_from_three(value):
    with pytest.raises(
        DefinitionError, match=r"on_batch_failure: .* choose from 'pause', 'cancel',"
    ):
        definition_of(made=fan_out(spread, on_batch_failure=value))


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (
            fan_out(lambda _self: None),
            r"called with \(self, batch\); too many .*; a fan_out's body takes \(self, batch\)$",
        ),
        (fan_out("missing"), "no method 'missing'; define it"),
        (
            fan_out(),
            r"None is no body; decorate a method with @fan_out\(...\), or give fan_out\(\)",
        ),
        (fan_out(5), "5 is no body"),
        (step(spread), r"is called with \(self\); missing a required argument: 'batch'$"),
    ],
)
def test_what_cannot_be_a_fan_outs_body_is_refused(declaration, problem):
    with pytest.raises(DefinitionError, match=f"Made, step 'broken': .*{problem}"):
        definition_of(broken=declaration)


def test_a_removed_fan_out_leaves_a_gravestone_like_any_other():
    gone = definition_of(made=removed_step()).step("made")
    assert (gone.removed, gone.fan_out) == (True, False)


def test_a_fan_out_needs_no_guard():
    made = Vendors._definition
    assert not made.guarded(made.step("plain"))
