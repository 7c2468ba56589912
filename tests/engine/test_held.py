"""Runs paused while their body ran: the outcome is recorded, and held until resume."""

import pytest
from support.replay import told
from support.scripts import Scripted, script

from pgbus import Workflow, on_exception, step
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus


class Declined(Exception): ...


class WithPolicies(Workflow):
    policies = (
        on_exception(LookupError, action="skip"),
        on_exception(OSError, action="cancel"),
        on_exception(Declined, action="reattempt", wait=600),
    )

    @step
    def first(self):
        raise self.arguments_error()

    @step
    def second(self): ...

    def arguments_error(self):
        kinds = {"skip": LookupError, "cancel": OSError, "reattempt": Declined, "none": ValueError}
        return kinds[self.arguments["error"]]


@pytest.fixture
def pause_during(bus, driver, monkeypatch):
    """Starts a run, pauses it while its first body runs, lets the body end; returns the run."""

    def pause_during(end=None, workflow=Scripted, **arguments):
        def body(self):
            self.output(attempt=self.attempt)
            if self.attempt == 1:
                bus.find(self.workflow_id).pause(reason="hold it", actor="alice")
            return end and end(self)

        script(first=body)
        run = workflow.start(**arguments)
        driver.drain()
        return run.reload()

    return pause_during


@pytest.fixture
def pause_around_an_error(bus, driver, monkeypatch):
    def pause_around_an_error(error):
        kinds = WithPolicies.arguments_error

        def pausing(self):
            bus.find(self.workflow_id).pause()
            return kinds(self)

        monkeypatch.setattr(WithPolicies, "arguments_error", pausing)
        run = WithPolicies.start(error=error)
        driver.drain()
        monkeypatch.setattr(WithPolicies, "arguments_error", kinds)
        return run.reload()

    return pause_around_an_error


def messages(database):
    return database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows")


def assert_held(database, run, *, status, outcome, last):
    (attempt,) = run.steps
    assert (run.status, run.ended_at) == (RunStatus.PAUSED, None)
    assert (attempt.status, attempt.outcome) == (status, outcome)
    assert attempt.finished_at is not None
    assert told(run)[:4] == [
        Event.STARTED, Event.STEP_SCHEDULED, Event.STEP_STARTED, Event.PAUSED
    ]  # fmt: skip
    assert told(run)[4:] == [last]
    assert messages(database) == 0


@pytest.mark.parametrize(
    ("end", "status", "outcome", "last"),
    [
        (None, AttemptStatus.COMPLETED, Outcome.COMPLETED, Event.STEP_COMPLETED),
        (
            lambda self: self.pause(),
            AttemptStatus.COMPLETED, Outcome.PAUSED, Event.STEP_COMPLETED,
        ),
        (lambda self: self.skip(), AttemptStatus.SKIPPED, Outcome.SKIPPED, Event.STEP_SKIPPED),
    ],
    ids=["return", "pause", "skip"],
)  # fmt: skip
def test_resume_goes_on_with_the_next_step(
    database, driver, pause_during, end, status, outcome, last
):
    run = pause_during(end)
    assert_held(database, run, status=status, outcome=outcome, last=last)
    assert run.steps[0].output == {"attempt": 1}
    run.resume()
    assert (run.status, run.current_step) == (RunStatus.READY, "second")
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED
    assert [attempt.step_name for attempt in run.steps] == ["first", "second"]


def test_resume_finishes_a_run_whose_body_finished_it(database, pause_during):
    run = pause_during(lambda self: self.finish(reason="enough"))
    assert_held(
        database, run,
        status=AttemptStatus.COMPLETED, outcome=Outcome.FINISHED, last=Event.STEP_COMPLETED,
    )  # fmt: skip
    run.resume(actor="bob")
    assert (run.status, len(run.steps)) == (RunStatus.FINISHED, 1)
    assert [(event.event, event.reason) for event in run.events[-2:]] == [
        (Event.RESUMED, None), (Event.FINISHED, "enough")
    ]  # fmt: skip


def test_resume_reattempts_with_the_wait_the_body_asked_for(database, driver, pause_during):
    run = pause_during(lambda self: self.attempt == 1 and self.reattempt(wait=600))
    assert_held(
        database, run,
        status=AttemptStatus.FAILED, outcome=Outcome.REATTEMPTED, last=Event.STEP_REATTEMPTED,
    )  # fmt: skip
    run.resume()
    _, following = run.steps
    assert (run.status, following.attempt) == (RunStatus.READY, 2)
    assert (following.scheduled_at - following.created_at).total_seconds() == pytest.approx(600, 1)
    run.run_now()
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_bodys_cancel_takes_effect_at_once(database, pause_during):
    run = pause_during(lambda self: self.cancel(reason="gone"))
    (attempt,) = run.steps
    assert run.status is RunStatus.CANCELLED
    assert run.ended_at is not None
    assert (attempt.status, attempt.outcome) == (AttemptStatus.CANCELLED, Outcome.CANCELLED)
    last = run.events[-1]
    assert (last.event, last.from_status, last.to_status, last.reason) == (
        Event.CANCELLED, RunStatus.PAUSED, RunStatus.CANCELLED, "gone"
    )  # fmt: skip
    assert messages(database) == 0


def test_resume_tries_a_failed_step_again_at_once(database, pause_around_an_error):
    run = pause_around_an_error("none")
    assert_held(
        database, run,
        status=AttemptStatus.FAILED, outcome=Outcome.PAUSED, last=Event.STEP_FAILED,
    )  # fmt: skip
    assert run.steps[0].error_class == "ValueError"
    run.resume()
    assert (run.status, run.steps[-1].attempt) == (RunStatus.READY, 2)


def test_resume_applies_what_a_policy_said(database, driver, pause_around_an_error):
    run = pause_around_an_error("skip")
    assert_held(
        database, run,
        status=AttemptStatus.SKIPPED, outcome=Outcome.SKIPPED, last=Event.STEP_SKIPPED,
    )  # fmt: skip
    run.resume()
    assert (run.status, run.current_step) == (RunStatus.READY, "second")


def test_a_policys_cancel_waits_for_resume(database, pause_around_an_error):
    run = pause_around_an_error("cancel")
    assert_held(
        database, run,
        status=AttemptStatus.FAILED, outcome=Outcome.CANCELLED, last=Event.STEP_FAILED,
    )  # fmt: skip
    run.resume()
    assert run.status is RunStatus.CANCELLED
    assert told(run)[-2:] == [Event.RESUMED, Event.CANCELLED]


def test_a_policys_reattempt_waits_for_resume(database, pause_around_an_error):
    run = pause_around_an_error("reattempt")
    assert_held(
        database, run,
        status=AttemptStatus.FAILED, outcome=Outcome.REATTEMPTED, last=Event.STEP_REATTEMPTED,
    )  # fmt: skip
    run.resume()
    following = run.steps[-1]
    assert (following.scheduled_at - following.created_at).total_seconds() == pytest.approx(600, 1)


def test_resume_before_the_body_ended_makes_nothing_of_the_pause(bus, driver):
    def body(self):
        run = bus.find(self.workflow_id)
        run.pause()
        assert run.resume().status is RunStatus.PERFORMING

    script(first=body)
    run = Scripted.start()
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_held_outcome_can_be_overruled_by_resume_at(driver, pause_during):
    run = pause_during(lambda self: self.attempt == 1 and self.finish())
    run.resume_at("first")
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED
    assert [(attempt.step_name, attempt.attempt) for attempt in run.steps] == [
        ("first", 1), ("first", 2), ("second", 1)
    ]  # fmt: skip


def test_a_held_outcome_of_a_cancelled_run_is_never_applied(database, driver, pause_during):
    run = pause_during()
    run.cancel()
    assert database.value("SELECT count(*) FROM pgbus.workflow_steps WHERE held IS NOT NULL") == 0
    assert driver.drain() == 0
    assert (run.reload().status, len(run.steps)) == (RunStatus.CANCELLED, 1)
