"""Exception policies at work: order, limits, methods, and errors that are none of a step's."""

import asyncio
import logging
from typing import ClassVar

import pytest
from support.replay import told

from pgbus import Workflow, on_exception, step
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus


class PaymentError(Exception): ...


class DeclinedError(PaymentError): ...


class StolenError(DeclinedError): ...


class Failing(Workflow):
    """Raises what the test says, attempt by attempt; then nothing."""

    raises: ClassVar[list] = []

    def act(self):
        self.output(attempt=self.attempt)
        todo = type(self).raises
        action = todo[self.attempt - 1] if self.attempt <= len(todo) else None
        if isinstance(action, (BaseException, type)):
            raise action
        return action and action(self)

    @step
    def pay(self):
        return self.act()

    @step
    def ship(self): ...


class Twice(Failing):
    policies = (
        on_exception(PaymentError, action="reattempt", max_reattempts=2, terminal_action="cancel"),
    )


class OnceLater(Failing):
    policies = (
        on_exception(
            PaymentError, action="reattempt", wait=3600, max_reattempts=1, terminal_action="cancel"
        ),
    )


class Endless(Failing):
    policies = (on_exception(action="reattempt", max_reattempts=None),)


class Ordered(Failing):
    policies = (
        on_exception(action="cancel"),
        on_exception(PaymentError, action="pause"),
        on_exception(StolenError, action="skip"),
    )


class StepFirst(Failing):
    policies = (on_exception(StolenError, action="cancel"),)

    @step(policies=[on_exception(action="skip")], before_step="pay")
    def check(self):
        return self.act()


class Named(Failing):
    policies = (on_exception(f"{__name__}.PaymentError", action="skip"),)


class Backoff(Failing):
    policies = (
        on_exception(PaymentError, action="reattempt", wait=lambda attempt: 40 * attempt),
        on_exception(KeyError, action="reattempt", wait=lambda attempt: 1 / 0),
        on_exception(OSError, action="reattempt", wait=lambda attempt: "soon"),
    )


class Methodical(Failing):
    decide: ClassVar = None

    @on_exception(PaymentError, max_reattempts=1, terminal_action="skip")
    def declined(self, error):
        self.seen = (error, self.step_name, self.attempt)
        return type(self).decide(self, error)


@pytest.fixture
def fail(bus, driver, monkeypatch):
    def fail(workflow, *raises, decide=None):
        monkeypatch.setattr(workflow, "raises", list(raises))
        if decide:
            monkeypatch.setattr(workflow, "decide", staticmethod(decide))
        run = workflow.start()
        driver.drain()
        return run.reload()

    return fail


def test_without_a_policy_the_run_pauses_on_the_failed_step(bus, driver, fail):
    run = fail(Failing, PaymentError("no\0money"))
    (attempt,) = run.steps
    assert (run.status, run.current_step) == (RunStatus.PAUSED, "pay")
    assert (attempt.status, attempt.outcome) == (AttemptStatus.FAILED, Outcome.PAUSED)
    assert (attempt.error_class, attempt.error_message) == (
        f"{__name__}.PaymentError", "no␀money"
    )  # fmt: skip
    assert "in Failing.act" in attempt.error["backtrace"][0]
    assert (attempt.worker, attempt.revision, attempt.output) == ("test:1", "r1", {"attempt": 1})
    assert told(run)[-2:] == [Event.STEP_FAILED, Event.PAUSED]
    assert run.events[-2].details == {"error_class": f"{__name__}.PaymentError"}
    run.resume()
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_limit_of_n_allows_n_reattempts_and_then_the_terminal_action(fail):
    run = fail(Twice, *[PaymentError] * 5)
    assert [attempt.outcome for attempt in run.steps] == [
        Outcome.REATTEMPTED, Outcome.REATTEMPTED, Outcome.CANCELLED
    ]  # fmt: skip
    assert run.status is RunStatus.CANCELLED
    assert run.events[-1].reason == "gave up after 2 reattempts"
    reattempted = next(event for event in run.events if event.event is Event.STEP_REATTEMPTED)
    assert reattempted.details == {"error_class": f"{__name__}.PaymentError"}


def test_the_bodys_own_reattempts_neither_count_nor_break_the_row(fail):
    def again(self):
        self.reattempt()

    run = fail(Twice, PaymentError, again, again, again, PaymentError, again, PaymentError)
    assert [attempt.reattempted_by for attempt in run.steps] == [
        "policy", "body", "body", "body", "policy", "body", None
    ]  # fmt: skip
    assert run.status is RunStatus.CANCELLED


def test_a_pause_that_a_person_resumed_starts_the_count_again(driver, fail):
    run = fail(Twice, PaymentError, ValueError, *[PaymentError] * 3)
    assert run.status is RunStatus.PAUSED
    run.resume()
    driver.drain()
    assert [attempt.outcome for attempt in run.steps] == [
        Outcome.REATTEMPTED, Outcome.PAUSED, Outcome.REATTEMPTED, Outcome.REATTEMPTED,
        Outcome.CANCELLED,
    ]  # fmt: skip


@pytest.fixture
def pausing(bus):
    """Makes a body that pauses its run, does this, and raises."""

    def pausing(then=lambda run: None):
        def body(self):
            run = bus.find(self.workflow_id)
            run.pause()
            then(run)
            raise PaymentError

        return body

    return pausing


def assert_counted_from_one(driver, run):
    """The attempt that is scheduled fails, and has the policy's one reattempt before it."""
    run.run_now()
    driver.drain()
    assert (run.reload().status, run.steps[-2].outcome) == (RunStatus.READY, Outcome.REATTEMPTED)
    run.run_now()
    driver.drain()
    assert run.reload().status is RunStatus.CANCELLED


def test_so_does_one_of_a_run_whose_reattempt_was_scheduled_already(driver, fail):
    run = fail(OnceLater, *[PaymentError] * 3)
    run.pause()
    run.resume()
    assert_counted_from_one(driver, run)


def test_so_does_one_that_held_a_reattempt(driver, fail, pausing):
    run = fail(OnceLater, pausing(), *[PaymentError] * 2)
    assert run.status is RunStatus.PAUSED
    run.resume()
    assert_counted_from_one(driver, run)


def test_so_does_one_that_was_over_before_the_body_was(driver, fail, pausing):
    run = fail(OnceLater, PaymentError, pausing(lambda run: run.resume()), PaymentError)
    assert_counted_from_one(driver, run)


def test_so_does_one_that_was_resumed_at_the_step(driver, fail, pausing):
    run = fail(OnceLater, pausing(), *[PaymentError] * 2)
    run.resume_at("pay")
    assert_counted_from_one(driver, run)


def test_no_limit_goes_on_past_the_default_one(fail):
    run = fail(Endless, *[PaymentError] * 105)
    assert (run.status, len(run.steps)) == (RunStatus.FINISHED, 107)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StolenError, RunStatus.FINISHED),
        (DeclinedError, RunStatus.PAUSED),
        (PaymentError, RunStatus.PAUSED),
        (ValueError, RunStatus.CANCELLED),
    ],
)
def test_the_nearest_class_decides_and_the_blanket_policy_last(fail, error, status):
    assert fail(Ordered, error).status is status


def test_a_steps_blanket_policy_goes_before_the_class_ones_that_name_the_error(fail):
    run = fail(StepFirst, StolenError)
    assert run.steps[0].status is AttemptStatus.SKIPPED
    # The next step has no policy of its own.
    assert run.status is RunStatus.CANCELLED


def test_a_class_can_be_named_and_its_subclasses_are_meant_too(fail):
    assert fail(Named, StolenError).status is RunStatus.FINISHED
    assert fail(Named, ValueError).status is RunStatus.PAUSED


def test_a_policys_skip_keeps_the_error_on_the_skipped_attempt(fail):
    skipped, shipped = fail(Named, PaymentError("why")).steps
    assert (skipped.status, skipped.outcome) == (AttemptStatus.SKIPPED, Outcome.SKIPPED)
    assert skipped.error_message == "why"
    assert shipped.status is AttemptStatus.COMPLETED


def test_a_backoff_decides_when_the_next_attempt_is_due(fail):
    failed, following = fail(Backoff, PaymentError).steps
    wait = (following.scheduled_at - failed.finished_at).total_seconds()
    assert wait == pytest.approx(40, abs=1)


@pytest.mark.parametrize("error", [KeyError("k"), OSError("o")])
def test_a_backoff_that_fails_pauses_the_run_with_the_original_error(fail, error):
    run = fail(Backoff, error)
    assert (run.status, run.steps[0].error_class) == (RunStatus.PAUSED, type(error).__name__)
    assert run.events[-1].reason == "the policy itself raised"


@pytest.mark.parametrize(
    ("decide", "status", "attempt", "outcome", "last"),
    [
        (
            lambda self, error: self.cancel(reason="r"),
            RunStatus.CANCELLED, AttemptStatus.FAILED, Outcome.CANCELLED, (Event.CANCELLED, "r"),
        ),
        (
            lambda self, error: self.pause(reason="r"),
            RunStatus.PAUSED, AttemptStatus.FAILED, Outcome.PAUSED, (Event.PAUSED, "r"),
        ),
        (
            lambda self, error: self.finish(reason="r"),
            RunStatus.FINISHED, AttemptStatus.COMPLETED, Outcome.FINISHED, (Event.FINISHED, "r"),
        ),
        (
            lambda self, error: "no verb",
            RunStatus.PAUSED, AttemptStatus.FAILED, Outcome.PAUSED, (Event.PAUSED, None),
        ),
        (
            lambda self, error: self.skip(reason="r"),
            RunStatus.FINISHED, AttemptStatus.SKIPPED, Outcome.SKIPPED, (Event.FINISHED, None),
        ),
        (
            lambda self, error: self.reattempt(wait=90, reason="r"),
            RunStatus.READY, AttemptStatus.FAILED, Outcome.REATTEMPTED,
            (Event.STEP_SCHEDULED, None),
        ),
    ],
    ids=["cancel", "pause", "finish", "none", "skip", "reattempt"],
)  # fmt: skip
def test_a_policy_method_decides_by_a_verb(fail, decide, status, attempt, outcome, last):
    run = fail(Methodical, PaymentError("original"), decide=decide)
    first = run.steps[0]
    assert run.status is status
    assert (first.status, first.outcome, first.error_message) == (attempt, outcome, "original")
    assert (run.events[-1].event, run.events[-1].reason) == last


def test_a_policy_method_sees_the_error_and_the_attempt(fail):
    seen = []

    def decide(self, error):
        seen.append((str(error), self.step_name, self.attempt, self.arguments))
        self.cancel()

    fail(Methodical, DeclinedError("original"), decide=decide)
    assert seen == [("original", "pay", 1, {})]


def test_a_policy_methods_reattempts_have_its_limit(fail):
    run = fail(
        Methodical, *[PaymentError] * 5, decide=lambda self, error: self.reattempt(reason="again")
    )
    assert [attempt.status for attempt in run.steps] == [
        AttemptStatus.FAILED, AttemptStatus.SKIPPED, AttemptStatus.COMPLETED
    ]  # fmt: skip


@pytest.mark.parametrize("raised", [RuntimeError("in the policy"), asyncio.CancelledError()])
def test_an_error_in_a_policy_method_pauses_and_keeps_the_original_error(fail, raised):
    def decide(self, error):
        raise raised

    run = fail(Methodical, PaymentError("original"), decide=decide)
    assert run.status is RunStatus.PAUSED
    assert run.steps[0].error_message == "original"
    assert run.events[-1].reason == "the policy itself raised"


@pytest.mark.parametrize("reader", ["output", "checkpoint"])
def test_what_belongs_to_a_body_is_refused_in_a_policy_method(fail, reader):
    run = fail(Methodical, PaymentError("x"), decide=lambda self, error: getattr(self, reader)())
    assert run.events[-1].reason == "the policy itself raised"


class StrangeError(BaseException): ...


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
        (StrangeError(), f"{__name__}.StrangeError"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(), "StopIteration"),
    ],
)
def test_an_error_outside_of_exception_is_recorded_like_any_other(fail, error, name):
    run = fail(Failing, error)
    assert (run.status, run.steps[0].error_class) == (RunStatus.PAUSED, name)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_is_no_error_of_the_step_and_left_to_redelivery(
    bus, database, driver, fail, error
):
    with pytest.raises(error):
        fail(Endless, error)
    run = bus.find(database.value("SELECT workflow_id::text FROM pgbus.workflows"))
    (attempt,) = run.steps
    assert (run.status, attempt.status) == (RunStatus.PERFORMING, AttemptStatus.IN_PROGRESS)
    assert attempt.error_class is None
    driver.redeliver()
    driver.drain()
    assert run.reload().steps[0].error_class == "pgbus.engine.errors.StepStalled"


class MuteError(Exception):
    def __str__(self):
        raise ValueError


class BrokenHandler(logging.Handler):
    def emit(self, record):
        raise OSError("the log is full")


@pytest.mark.parametrize("handler", [logging.NullHandler, BrokenHandler])
def test_an_error_that_cannot_be_printed_or_logged_pauses_the_run_all_the_same(fail, handler):
    error = ValueError("outer")
    error.__cause__ = MuteError()
    logger, broken = logging.getLogger("pgbus.runner"), handler()
    logger.addHandler(broken)
    try:
        run = fail(Failing, error)
    finally:
        logger.removeHandler(broken)
    (attempt,) = run.steps
    assert run.status is RunStatus.PAUSED
    assert attempt.error["causes"][0]["message"].startswith("<unprintable")
