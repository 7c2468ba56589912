"""A stretch: how far a worker goes on with a run at once, and answers of the database that get lost."""

import dataclasses
from datetime import timedelta

import pytest
from support.driving import Driver
from support.scripts import Scripted, script

from pgbus import Workflow, step
from pgbus.engine.runner import finalize
from pgbus.engine.runner.decide import Result
from pgbus.engine.runner.execute import execute
from pgbus.engine.runner.finalize import Finalizer
from pgbus.engine.runner.perform import perform
from pgbus.engine.runner.prepare import prepare
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus
from pgbus.engine.storage import endings


def ten_steps():
    return {f"step_{number}": step(lambda self: None) for number in range(10)}


class Ten(Workflow):
    locals().update(ten_steps())


class Mixed(Workflow):
    @step
    def one(self): ...

    @step(job_options={"queue": "mail"})
    def elsewhere(self): ...

    @step(skip_if=lambda self: False)
    def guarded(self): ...

    @step(wait=timedelta(seconds=30))
    def later(self): ...


class Looping(Workflow):
    @step
    def loop(self):
        if self.attempt < 30:
            self.reattempt()


class Long(Workflow):
    locals().update({f"step_{number}": step(lambda self: None) for number in range(60)})


class Short(Workflow):
    @step
    def only(self): ...


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Only the number of steps ends a stretch, however slow the machine is."""
    monkeypatch.setattr(finalize, "MAX_SECONDS", 1000)


def messages_of(run):
    """The message each attempt ran by."""
    return [(attempt.queue, attempt.message_id) for attempt in run.steps]


def test_a_stretch_has_a_bound_of_steps(driver):
    run = Ten.start()
    assert driver.drain() == 2
    by_message = messages_of(run)
    assert by_message[:8] == by_message[:1] * 8
    assert by_message[8:] == by_message[8:9] * 2
    assert by_message[8] != by_message[0]


def test_a_stretch_has_a_bound_of_time(driver, monkeypatch):
    monkeypatch.setattr(finalize, "MAX_SECONDS", 0)
    run = Ten.start()
    assert driver.drain() == 10
    assert run.reload().status is RunStatus.FINISHED


def test_a_stretch_ends_when_the_worker_stops(bus, driver):
    run = Ten.start()
    (delivery,) = driver.take()
    perform(bus.services, driver.worker, delivery, stopping=lambda: True)
    assert [attempt.status for attempt in run.steps] == [
        AttemptStatus.COMPLETED, AttemptStatus.SCHEDULED
    ]  # fmt: skip


def test_a_stretch_never_goes_into_another_queue_a_guarded_step_or_a_waiting_one(driver):
    run = Mixed.start()
    assert driver.drain() == 3
    assert [attempt.queue for attempt in run.steps] == [
        "pgbus_workflows", "pgbus_mail", "pgbus_workflows", "pgbus_workflows"
    ]  # fmt: skip
    assert len(set(messages_of(run))) == 4
    assert run.steps[-1].status is AttemptStatus.SCHEDULED


@pytest.mark.parametrize("workflow", [Looping, Long])
def test_long_runs_do_not_starve_short_ones(bus, database, driver, workflow):
    for _ in range(16):
        workflow.start()
    Short.start_many([(None, {})] * 40)
    ended = """
        SELECT count(*) FILTER (WHERE workflow_class LIKE '%.Short')
          FROM (SELECT workflow_class FROM pgbus.workflows WHERE ended_at IS NOT NULL
                 ORDER BY ended_at LIMIT 40) first
    """
    driver.drain(limit=5000)
    assert database.value(ended) == 40


class TestALostAnswer:
    """`finalize` committed, the connection broke before its answer came, and it is asked again."""

    @pytest.fixture
    def end_twice(self, bus, database, driver):
        """Ends the first step twice with the same arguments; returns both answers and the change."""

        def end_twice(body=lambda self: None, *, may_continue=(True, True), between=None):
            script(first=body)
            run = Scripted.start()
            (delivery,) = driver.take()
            finalizer = Finalizer(bus.services, driver.worker, stopping=lambda: False)
            attempt = prepare(bus.services, driver.worker, finalizer, delivery)
            ending = execute(bus.services, finalizer, attempt)
            answers, states = [], []
            for may in may_continue:
                with bus.services.database.autocommit() as connection:
                    answers.append(
                        endings.finalize(
                            connection,
                            driver.worker,
                            delivery,
                            ending.final,
                            may_continue=may,
                            takes_signals=False,
                        )
                    )
                states.append(self.state(database))
                if between and len(answers) == 1:
                    between(run)
                    states[0] = self.state(database)
            first, second = answers
            assert states[0] == states[1]
            return run.reload(), first, second

        return end_twice

    def state(self, database):
        return [
            database.rows(f"SELECT t::text FROM {table} t ORDER BY 1")
            for table in (
                "pgbus.workflows", "pgbus.workflow_steps", "pgbus.workflow_events",
                "pgmq.q_pgbus_workflows",
            )
        ]  # fmt: skip

    @pytest.mark.parametrize("may_continue", [(True, True), (True, False)])
    def test_of_a_continuing_end_is_heard_again(self, driver, end_twice, may_continue):
        """Even when the second call, later, would not have continued: the message is kept."""
        run, first, second = end_twice(may_continue=may_continue)
        assert (first.verdict, second.verdict) == ("continued", "continued")
        assert (second.step_id, second.attempt) == (first.step_id, 1)
        # Its worker dies before it hears: the message is there to tell of it.
        driver.redeliver()
        driver.drain()
        assert run.reload().steps[-1].error_class == "pgbus.engine.errors.StepStalled"

    @pytest.mark.parametrize("may_continue", [(False, False), (False, True)])
    def test_of_an_end_that_sent_a_message_is_heard_again(self, driver, end_twice, may_continue):
        run, first, second = end_twice(may_continue=may_continue)
        assert (first.verdict, second.verdict) == ("applied", "applied")
        assert driver.drain() == 1
        assert run.reload().status is RunStatus.FINISHED

    @pytest.mark.parametrize(
        ("verb", "status"),
        [
            ("pause", RunStatus.PAUSED),
            ("finish", RunStatus.FINISHED),
            ("cancel", RunStatus.CANCELLED),
            ("skip", RunStatus.READY),
            ("reattempt", RunStatus.READY),
        ],
    )
    def test_of_each_verb_is_heard_again(self, end_twice, verb, status):
        run, first, second = end_twice(
            lambda self: getattr(self, verb)(), may_continue=(False, False)
        )
        assert (first.verdict, second.verdict) == ("applied", "applied")
        assert run.status is status

    def test_of_an_error_is_heard_again(self, end_twice):
        run, first, second = end_twice(lambda self: 1 / 0, may_continue=(False, False))
        assert (first.verdict, second.verdict) == ("applied", "applied")
        assert run.status is RunStatus.PAUSED

    def test_of_a_held_end_is_heard_again(self, bus, end_twice):
        run, first, second = end_twice(
            lambda self: bus.find(self.workflow_id).pause() and None, may_continue=(True, False)
        )
        assert (first.verdict, second.verdict) == ("held", "held")
        assert run.status is RunStatus.PAUSED

    def test_of_a_late_end_is_recorded_once(self, bus, end_twice):
        def cancel_twice(self):
            bus.find(self.workflow_id).cancel()
            self.cancel()

        run, first, second = end_twice(cancel_twice, may_continue=(False, False))
        assert (first.verdict, second.verdict) == ("late", "late")
        events = [event.event for event in run.events]
        assert events.count(Event.LATE_COMPLETION_IGNORED) == 1

    def test_does_not_start_what_was_paused_or_cancelled_since(self, end_twice):
        run, first, second = end_twice(between=lambda run: run.cancel())
        assert (first.verdict, second.verdict) == ("continued", "applied")
        assert run.status is RunStatus.CANCELLED


def test_a_continuation_that_is_not_due_by_the_databases_clock_is_declined_and_sent(bus, driver):
    """The worker asks to continue; the database finds the next step due later."""
    script()
    run = Scripted.start()
    (delivery,) = driver.take()
    finalizer = Finalizer(bus.services, driver.worker, stopping=lambda: False)
    final = bus.services.decider(Scripted._definition, Scripted._definition.step("first"))
    ended = final.after_result(Result(Outcome.COMPLETED))
    later = dataclasses.replace(ended, next=dataclasses.replace(ended.next, wait=20.0))
    with bus.services.database.autocommit() as connection:
        declined = endings.finalize(
            connection, driver.worker, delivery, later, may_continue=True, takes_signals=False
        )
        assert declined.verdict == "declined"
        assert run.reload().status is RunStatus.PERFORMING
    applied = finalizer.commit(finalize.Ending(delivery, Scripted._definition, later))
    assert applied.finalized.verdict == "applied"
    assert applied.finalized.due_in == pytest.approx(20)
    assert Driver(bus).drain() == 0
