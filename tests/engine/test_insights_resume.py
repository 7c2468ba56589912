"""What a resume would do, said before, is what it does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.driving import Driver
from support.scripts import play, script

from pgbus import StepNotDefined, Workflow, fan_out, job, on_exception, removed_step, step
from pgbus.engine.definition import registry
from pgbus.engine.insights import resume, runs
from pgbus.engine.insights.resume import ResumeKind, ResumePlan
from pgbus.engine.states import Event, RunStatus

IN_2031 = datetime(2031, 1, 1, tzinfo=UTC)
MOMENT = 20


class Declined(Exception): ...


@job
def greet_resumed(name): ...


def spread(self, batch):
    batch.add(greet_resumed, "a")
    play(self)


POLICIES = (
    on_exception(LookupError, action="cancel"),
    on_exception(Declined, action="reattempt", wait=600),
)
STEPS = {
    "first": step(play),
    "second": step(play, wait=3600),
    "third": fan_out(spread),
    "fourth": step(play, job_options={"wait_until": IN_2031, "wait": 60}),
    "fifth": step(play, wait_for="paid", wait_timeout=1800),
}


def version(**steps):
    """A version of the class `Resumed`: the one loaded from now on."""
    space = type(Workflow).__prepare__("Resumed", (Workflow,))
    named = {"__module__": __name__, "__qualname__": "Resumed", "policies": POLICIES}
    return type(Workflow)("Resumed", (Workflow,), {**space, **named, **steps})


@pytest.fixture(autouse=True)
def _forget_the_class():
    yield
    registry._definitions.pop(f"{__name__}.Resumed", None)


@pytest.fixture
def paused(bus):
    """Starts a run and lets it come to a pause: in a step's body, which ends as given, or before it."""

    def paused(step_name="first", body=None, *, before=False):
        def pausing(self):
            bus.find(self.workflow_id).pause()
            return body and body(self)

        script(**{step_name: pausing})
        run = version(**STEPS).start().pause().resume_at(step_name)
        if before:
            run.pause()
        else:
            Driver(bus).drain()
        return run.reload()

    return paused


@pytest.fixture
def foretold(bus):
    def foretold(run):
        with bus.services.database.autocommit() as connection:
            return resume.plan(connection, runs.summary(connection, bus.settings, run.workflow_id))

    return foretold


def happened(run):
    """Resumes the run, and tells what came of it as a plan."""
    before, known = run.steps[-1], len(run.events)
    try:
        run.resume()
    except StepNotDefined:
        return ResumePlan(ResumeKind.REFUSED, before.step_name)
    now = run.steps[-1]
    if run.status in (RunStatus.FINISHED, RunStatus.CANCELLED):
        return ResumePlan(
            ResumeKind.FINISH if run.status is RunStatus.FINISHED else ResumeKind.CANCEL
        )
    if run.status is RunStatus.PERFORMING:
        return ResumePlan(ResumeKind.LET_STEP_END, now.step_name)
    if run.status is RunStatus.WAITING:
        if Event.FAN_OUT_OPENED in [event.event for event in run.events[known:]]:
            return ResumePlan(ResumeKind.OPEN_FAN_OUT, now.step_name)
        resumed_at = run.events[-1].created_at
        left = now.timeout_at and (now.timeout_at - resumed_at).total_seconds()
        return ResumePlan(ResumeKind.KEEP_WAITING, now.step_name, left)
    if now.step_id == before.step_id:
        # One that came due meanwhile is due from the resume.
        moved = now.scheduled_at != before.scheduled_at
        assert not moved or before.scheduled_at < now.scheduled_at <= run.events[-1].created_at
        return ResumePlan(ResumeKind.RUN_AT_TIME, now.step_name, not_before=before.scheduled_at)
    again = now.step_name == before.step_name
    wait = (now.scheduled_at - now.created_at).total_seconds()
    return ResumePlan(ResumeKind.RETRY if again else ResumeKind.CONTINUE, now.step_name, wait)


def assert_same(said, done):
    assert (said.kind, said.step_name) == (done.kind, done.step_name)
    if said.not_before is not None and done.wait_seconds is not None:
        assert said.wait_seconds < done.wait_seconds, "not_before is later"
        return
    assert said.not_before == done.not_before
    assert (said.wait_seconds is None) is (done.wait_seconds is None)
    if said.wait_seconds is not None:
        assert abs(said.wait_seconds - done.wait_seconds) < MOMENT


def failing(error):
    def failing(self):
        raise error

    return failing


HOUR, NOW = 3600, 0


@pytest.mark.parametrize(
    ("step_name", "body", "expected"),
    [
        pytest.param(
            "first", None, ResumePlan(ResumeKind.CONTINUE, "second", HOUR), id="returned"
        ),
        pytest.param(
            "first", lambda self: self.pause(), ResumePlan(ResumeKind.CONTINUE, "second", HOUR),
            id="paused by itself",
        ),
        pytest.param(
            "second", lambda self: self.skip(), ResumePlan(ResumeKind.CONTINUE, "third", NOW),
            id="skipped",
        ),
        pytest.param(
            "first", lambda self: self.finish(), ResumePlan(ResumeKind.FINISH), id="finished"
        ),
        pytest.param(
            "first", failing(LookupError()), ResumePlan(ResumeKind.CANCEL), id="a policy cancels"
        ),
        pytest.param(
            "first", failing(Declined()),
            ResumePlan(ResumeKind.RETRY, "first", 600), id="a policy reattempts",
        ),
        pytest.param(
            "first", lambda self: self.reattempt(wait=60),
            ResumePlan(ResumeKind.RETRY, "first", 60), id="reattempted",
        ),
        pytest.param(
            "first", failing(ValueError()), ResumePlan(ResumeKind.RETRY, "first", NOW), id="failed"
        ),
        pytest.param(
            "third", None, ResumePlan(ResumeKind.OPEN_FAN_OUT, "third"), id="fan-out held"
        ),
        pytest.param(
            "third", failing(ValueError()), ResumePlan(ResumeKind.RETRY, "third", NOW),
            id="fan-out failed",
        ),
    ],
)  # fmt: skip
def test_a_run_that_was_paused_while_its_body_ran(paused, foretold, step_name, body, expected):
    run = paused(step_name, body)
    said = foretold(run)
    assert said == expected
    assert_same(said, happened(run))


def test_a_run_that_was_paused_while_it_waited_for_jobs_waits_on(bus, foretold):
    script()
    run = version(**STEPS).start().pause().resume_at("third")
    Driver(bus).drain()
    run.pause()
    said = foretold(run)
    assert said == ResumePlan(ResumeKind.KEEP_WAITING, "third")
    assert_same(said, happened(run))


def test_a_wait_goes_on_with_the_time_that_was_left(bus, database, foretold):
    script()
    run = version(**STEPS).start().pause().resume_at("fifth")
    Driver(bus).drain()
    run.pause()
    database.rows(
        "UPDATE pgbus.workflow_steps SET timeout_left = '17 min' WHERE waiting_since IS NOT NULL"
    )
    said = foretold(run)
    assert said == ResumePlan(ResumeKind.KEEP_WAITING, "fifth", 17 * 60)
    assert_same(said, happened(run))


def test_a_scheduled_step_runs_at_its_time(paused, foretold):
    run = paused("first", before=True)
    said = foretold(run)
    assert said == ResumePlan(
        ResumeKind.RUN_AT_TIME, "first", not_before=run.steps[-1].scheduled_at
    )
    assert_same(said, happened(run))


def test_a_body_that_runs_is_let_to_its_end(bus, foretold):
    plans = []

    def body(self):
        run = bus.find(self.workflow_id)
        run.pause()
        plans.extend([foretold(run), happened(run)])

    script(first=body)
    version(**STEPS).start()
    Driver(bus).drain()
    said, done = plans
    assert said == ResumePlan(ResumeKind.LET_STEP_END, "first")
    assert_same(said, done)


def test_a_step_that_is_never_to_run_before_a_moment_is_said_to(paused, foretold):
    run = paused("third")
    run.resume().pause().resume_at("third").pause()
    run.skip().pause()
    assert foretold(run) == ResumePlan(
        ResumeKind.RUN_AT_TIME, "fourth", not_before=run.steps[-1].scheduled_at
    )


def test_what_follows_is_due_when_its_options_say(bus, paused, foretold):
    version_with = {"first": STEPS["first"], "fourth": STEPS["fourth"]}
    run = paused("first")
    version(**version_with)
    said = foretold(run)
    assert said == ResumePlan(ResumeKind.CONTINUE, "fourth", 60, IN_2031)
    assert_same(said, happened(run))
    assert run.steps[-1].scheduled_at == IN_2031


def test_a_run_whose_last_step_completed_finishes(paused, foretold):
    run = paused("first")
    version(first=STEPS["first"], second=removed_step())
    said = foretold(run)
    assert said == ResumePlan(ResumeKind.FINISH)
    assert_same(said, happened(run))


def test_a_run_on_a_step_that_failed_and_was_removed_goes_on_with_the_next(bus, paused, foretold):
    run = paused("first", failing(ValueError()))
    script()
    version(first=removed_step(), second=removed_step(), third=step(play))
    assert foretold(run) == ResumePlan(ResumeKind.CONTINUE, "third", NOW)
    run.resume()
    Driver(bus).drain()
    assert [attempt.step_name for attempt in run.reload().steps][-2:] == ["first", "third"]


@pytest.mark.parametrize("body", [None, failing(ValueError())], ids=["completed", "failed"])
def test_a_run_on_a_step_that_nobody_declares_cannot_be_resumed(paused, foretold, body):
    run = paused("first", body)
    version(third=step(play))
    said = foretold(run)
    assert said == ResumePlan(ResumeKind.REFUSED, "first")
    assert_same(said, happened(run))


def test_a_scheduled_step_that_nobody_declares_cannot_be_resumed(paused, foretold):
    run = paused("first", before=True)
    version(third=step(play))
    said = foretold(run)
    assert said == ResumePlan(ResumeKind.REFUSED, "first")
    assert_same(said, happened(run))


def test_nothing_is_foretold_of_a_run_that_is_not_paused_or_not_loaded(paused, foretold):
    run = paused("first")
    registry._definitions.pop(f"{__name__}.Resumed")
    assert foretold(run) is None
    version(**STEPS)
    assert foretold(run.resume()) is None
