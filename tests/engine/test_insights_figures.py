"""The figures of attempts that the engine itself made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.driving import Driver
from support.sweeps import age, turn

from pgbus import FanOut, Workflow, fan_out, job, on_exception, step
from pgbus.engine.insights import windows
from pgbus.engine.insights.headline import Worse
from pgbus.engine.insights.performance import performance
from pgbus.engine.insights.reading import now, reading
from pgbus.engine.insights.windows import Window
from pgbus.engine.jobs.execute import execute
from pgbus.engine.processes.presence import Presence
from pgbus.engine.states import RunStatus
from pgbus.engine.storage.claims import Idle
from pgbus.engine.sweep import expired_waits
from pgbus.engine.sweep.stalls import Stalls

LONG = 30 * 60


class Cracked(Exception): ...


class Chipped(Exception): ...


class Damp(Exception): ...


class Kiln(Workflow):
    policies = (
        on_exception(Cracked, action="cancel"),
        on_exception(Chipped, action="skip"),
        on_exception(Damp, action="reattempt", max_reattempts=1),
    )

    @step
    def fire(self):
        match self.arguments.get("does"):
            case "try again" if self.attempt == 1:
                self.reattempt(wait=0)
            case "raise":
                raise {kind.__name__: kind for kind in (Cracked, Chipped, Damp, OSError)}[
                    self.arguments["error"]
                ]


class Lid(Workflow):
    @step(skip_if=lambda _self: True)
    def close(self): ...


class Ferry(Workflow):
    @step(wait_for="docked", wait_timeout=LONG)
    def board(self): ...


class Barge(Workflow):
    @step(wait_for="docked", wait_timeout=LONG, on_timeout="skip")
    def board(self): ...


@job
def lift(): ...


class Convoy(Workflow):
    @fan_out
    def load(self, batch: FanOut):
        batch.add(lift)


@pytest.fixture
def told(bus):
    """How a class is doing."""

    def told(workflow):
        name = f"{workflow.__module__}.{workflow.__qualname__}"
        with reading(bus.services) as connection:
            span = windows.span(bus.settings, Window.DAY, now(connection))
            return performance(connection, bus.settings, name, span, span.since.tzinfo)

    return told


@pytest.fixture
def first_step(told):
    """The figures of the class's first step."""
    return lambda workflow: told(workflow).steps[0].figures


class TestPickup:
    def test_it_is_from_when_the_step_was_due(self, database, driver, first_step):
        age(database, "30 minutes", Kiln.start())
        driver.drain()
        assert LONG <= first_step(Kiln).pickup.p50 < LONG + 60
        assert first_step(Kiln).run.p50 < 60

    def test_after_a_wait_it_is_from_the_wake(self, database, driver, first_step):
        run = Ferry.start()
        driver.drain()
        age(database, "29 minutes", run)
        run.signal("docked")
        driver.drain()
        found = first_step(Ferry)
        assert (found.ended, found.pickup.samples, found.run.samples) == (1, 1, 1)
        assert found.pickup.p99 < 60
        assert found.run.p99 < 60

    def test_one_that_was_woken_and_never_claimed_has_none(self, driver, first_step):
        run = Ferry.start()
        driver.drain()
        run.signal("docked")
        run.cancel()
        found = first_step(Ferry)
        assert (found.ended, found.pickup.samples, found.run.samples) == (1, 0, 0)

    def test_after_a_pause_it_is_from_the_resume(self, database, driver, first_step):
        run = Kiln.start().pause()
        age(database, "30 minutes", run)
        run.resume()
        driver.drain()
        assert first_step(Kiln).pickup.p99 < 60


def test_the_run_time_of_a_fan_out_has_its_jobs_in_it(bus, database, driver, first_step):
    run = Convoy.start()
    driver.perform(driver.take()[0])
    age(database, "30 minutes", run)
    while not isinstance(taken := driver.take(), Idle):
        for delivery in taken:
            if delivery.is_job:
                execute(bus.services, delivery)
            else:
                driver.perform(delivery)
    assert run.reload().status is RunStatus.FINISHED
    found = first_step(Convoy)
    assert LONG <= found.run.p50 < LONG + 60
    assert found.pickup.p50 < 60


def test_no_body_ended_of_a_wait_that_timed_out(bus, database, driver, first_step):
    for workflow in (Ferry, Barge):
        run = workflow.start()
        driver.drain()
        age(database, "31 minutes", run)
    expired_waits.sweep(turn(bus))
    paused, skipped = first_step(Ferry), first_step(Barge)
    assert (paused.ended, paused.failed, paused.skipped, paused.run.samples) == (1, 1, 0, 0)
    assert (skipped.ended, skipped.failed, skipped.skipped, skipped.run.samples) == (1, 1, 1, 0)


def test_no_body_ended_of_a_step_that_its_guard_skips(driver, first_step):
    Lid.start()
    driver.drain()
    found = first_step(Lid)
    assert (found.ended, found.skipped, found.run.samples, found.pickup.samples) == (1, 1, 0, 1)


def stall(bus, driver, database):
    run = Kiln.start()
    driver.take()
    age(database, "2 hours", run)
    Stalls().sweep(turn(bus))


def cancel_while_it_runs(bus, driver, database):
    run = Kiln.start()
    driver.take()
    run.cancel()


def pause_while_it_runs(bus, driver, database):
    run = Kiln.start()
    (delivery,) = driver.take()
    run.pause()
    driver.perform(delivery)


def fail_and_be_skipped(bus, driver, database):
    run = Kiln.start(does="raise", error="OSError")
    driver.drain()
    run.skip()


def does(**arguments):
    def what(bus, driver, database):
        Kiln.start(**arguments)
        driver.drain()

    return what


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (does(), (1, 0, 0, 0, 1, 1)),
        (does(does="try again"), (2, 0, 1, 0, 2, 2)),
        (does(does="raise", error="OSError"), (1, 1, 0, 0, 1, 1)),
        (does(does="raise", error="Cracked"), (1, 1, 0, 0, 1, 1)),
        (does(does="raise", error="Chipped"), (1, 1, 0, 1, 0, 1)),
        (does(does="raise", error="Damp"), (2, 2, 1, 0, 2, 2)),
        (fail_and_be_skipped, (1, 1, 0, 1, 0, 1)),
        (cancel_while_it_runs, (1, 0, 0, 0, 0, 1)),
        (lambda *_: Kiln.start().cancel(), (1, 0, 0, 0, 0, 0)),
        (pause_while_it_runs, (1, 0, 0, 0, 1, 1)),
        (stall, (1, 1, 0, 0, 0, 1)),
    ],
)
def test_an_end_counts_by_what_it_was(bus, driver, database, first_step, what, expected):
    what(bus, driver, database)
    found = first_step(Kiln)
    assert (
        found.ended,
        found.failed,
        found.reattempted,
        found.skipped,
        found.run.samples,
        found.pickup.samples,
    ) == expected


def test_a_step_that_nobody_declares_ran_no_body(bus, driver, database, told):
    run = Kiln.start()
    database.rows("UPDATE pgbus.workflows SET current_step = 'glaze'")
    database.rows("UPDATE pgbus.workflow_steps SET step_name = 'glaze'")
    database.rows("UPDATE pgbus.workflow_events SET step_name = 'glaze' WHERE attempt = 1")
    Driver(bus, unguarded=[]).drain()
    assert run.reload().status is RunStatus.PAUSED
    fire, glaze = told(Kiln).steps
    assert (fire.declared, fire.here, fire.figures.ended) == (True, {}, 0)
    assert (glaze.step_name, glaze.declared, glaze.here) == ("glaze", False, {"paused": 1})
    assert (glaze.figures.failed, glaze.figures.run.samples) == (1, 0)


def test_a_step_that_fails_more_often_since_a_deploy_is_marked(driver, told):
    def deployed(revision, *, failing, of=20):
        driver.worker = replace(driver.worker, revision=revision)
        for number in range(of):
            Kiln.start(**({"does": "raise", "error": "Cracked"} if number < failing else {}))
        driver.drain()

    deployed(None, failing=1)
    deployed("r1", failing=2)
    deployed("r2", failing=12)
    found = told(Kiln)
    assert [(one.revision, one.total.ended, one.total.failed) for one in found.revisions] == [
        ("r2", 20, 12),
        ("r1", 20, 2),
        (None, 20, 1),
    ]
    # From 5 % to 10 % it rose by five points, which is not more than five.
    assert [one.worse for one in found.revisions] == [{"fire": pytest.approx(0.5)}, {}, {}]
    headline = found.headline
    assert (headline.kind, headline.step_name, headline.revision) == (
        Worse.FAILURE_RATE,
        "fire",
        "r2",
    )
    assert (headline.now, headline.before) == (0.6, 0.1)
    assert headline.since == found.revisions[0].first_at > found.revisions[1].first_at

    deployed("r1", failing=0, of=1)
    assert [one.revision for one in told(Kiln).revisions] == ["r1", "r2", None]
    assert told(Kiln).headline is None


def test_while_a_deployment_goes_on_the_newer_revision_stays_the_newest(bus, driver, told):
    """Both claim in turns; the older is left again when the roll-out is undone."""

    def runs(revision):
        presence = Presence("worker", revision, dict)
        with bus.services.database.autocommit() as connection:
            presence.beat_when_due(connection)
        return presence

    def claims(revision):
        driver.worker = replace(driver.worker, revision=revision)
        Kiln.start()
        driver.drain()

    def told_of():
        return [(one.revision, one.running) for one in told(Kiln).revisions]

    runs("r1")
    claims("r1")
    newer = runs("r2")
    for revision in ("r2", "r1"):
        claims(revision)
        assert told_of() == [("r2", True), ("r1", True)]
    r2, r1 = told(Kiln).revisions
    assert (r2.compared, r1.compared) == (True, False)

    newer.leave_if_possible(bus.services.database)
    assert told_of() == [("r1", True), ("r2", False)]
    assert told(Kiln).revisions[0].first_at == r1.first_at < r2.first_at
