"""An `around=` that swallows errors: none of them passes for success, and no verb is lost."""

from contextlib import nullcontext
from typing import ClassVar

import pytest

from pgbus import Workflow, cancel_if, on_exception, step
from pgbus.engine.states import AttemptStatus, RunStatus


class Swallowing(nullcontext):
    def __exit__(self, *_):
        return True


@pytest.fixture
def bus_options():
    return {"around": Swallowing}


class Fragile(Workflow):
    """Raises in the place that its argument names."""

    ran: ClassVar[list] = []

    @cancel_if
    def cancelled(self):
        self.fail_in("cancel_if")

    def skipped(self):
        self.fail_in("skip_if")

    @step(skip_if="skipped")
    def act(self):
        self.fail_in("body")
        self.ran.append(self.workflow_id)

    def fail_in(self, place):
        if self.arguments["place"] == place:
            raise ValueError(place)


class Deciding(Fragile):
    @on_exception(RuntimeError)
    def decide(self, error):
        if self.arguments["decision"] == "raise":
            raise LookupError
        getattr(self, self.arguments["decision"])()


@pytest.fixture
def perform(driver):
    def perform(workflow, **arguments):
        run = workflow.start(**arguments)
        driver.drain()
        return run.reload()

    return perform


@pytest.mark.parametrize("place", ["cancel_if", "skip_if", "body"])
def test_an_error_that_is_swallowed_still_fails_its_attempt(perform, place):
    run = perform(Fragile, place=place)
    (attempt,) = run.steps
    assert (run.status, attempt.status) == (RunStatus.PAUSED, AttemptStatus.FAILED)
    assert "around= swallowed what its block raised (ValueError)" in attempt.error_message
    assert [cause["message"] for cause in attempt.error["causes"]] == [place]
    assert run.workflow_id not in Fragile.ran


def test_what_swallows_nothing_changes_nothing(perform):
    run = perform(Fragile, place="nowhere")
    assert (run.status, run.workflow_id in Fragile.ran) == (RunStatus.FINISHED, True)


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        ("cancel", RunStatus.CANCELLED),
        ("skip", RunStatus.FINISHED),
        ("finish", RunStatus.FINISHED),
        ("raise", RunStatus.PAUSED),
    ],
)
def test_a_policy_methods_verb_is_not_among_what_can_be_swallowed(perform, decision, status):
    run = perform(Deciding, place="body", decision=decision)
    assert run.status is status
    assert run.steps[0].error_class == "RuntimeError"
