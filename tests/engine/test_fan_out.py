"""Fan-outs: a step that adds jobs to a batch, and goes on when all of them have ended."""

from datetime import UTC, datetime, timedelta

import pytest
from blinker import signal
from sqlalchemy.orm import Session
from support.hosts import messages
from support.replay import told
from support.sweeps import age, turn

from pgbus import Workflow, fan_out, job, on_exception, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import AlreadyFinished, InvalidTransition
from pgbus.engine.jobs.batch import Batch
from pgbus.engine.jobs.execute import execute
from pgbus.engine.observe.emission import StepEnded, WorkflowPaused
from pgbus.engine.runner import waits
from pgbus.engine.runner.execute import execute as run_body
from pgbus.engine.runner.finalize import Finalizer
from pgbus.engine.runner.prepare import prepare
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus
from pgbus.engine.storage import batches
from pgbus.engine.storage.claims import Idle
from pgbus.engine.sweep.stalls import Stalls

STEPS = "pgbus_workflows"
JOBS = "pgbus_default"

heard = []
bodies = {}


@job(max_retries=0)
def tell(vendor):
    heard.append(vendor)
    if str(vendor).startswith("bad"):
        raise ValueError(vendor)


@job
def other(): ...


class Declined(Exception): ...


class Order(Workflow):
    """`notify` adds what the test says, then `ship`."""

    @fan_out
    def notify(self, batch):
        return bodies["notify"](self, batch)

    @step
    def ship(self): ...


class Forgiving(Workflow):
    @fan_out(on_batch_failure="skip")
    def notify(self, batch):
        return bodies["notify"](self, batch)

    @step
    def ship(self): ...


class Strict(Workflow):
    @fan_out(on_batch_failure="cancel")
    def notify(self, batch):
        return bodies["notify"](self, batch)

    @step
    def ship(self): ...


class Last(Workflow):
    @fan_out
    def notify(self, batch):
        return bodies["notify"](self, batch)


class Particular(Workflow):
    """Its fan-out has every option that bears on how an attempt runs."""

    @fan_out(
        skip_if=lambda self: self.arguments.get("skips", False),
        policies=[on_exception(Declined, action="reattempt", max_reattempts=1)],
        on_stall="cancel",
        timeout=timedelta(minutes=5),
        job_options={"queue": "orders", "priority": 0},
    )
    def notify(self, batch):
        return bodies["notify"](self, batch)

    @step
    def ship(self): ...


class Asynchronous(Workflow):
    @fan_out
    async def notify(self, batch):
        await bodies["notify"](self, batch)

    @step
    def ship(self): ...


def adding(*vendors):
    def add(_workflow, batch):
        batch.add_many(tell, [(vendor,) for vendor in vendors])

    return add


@pytest.fixture(autouse=True)
def three_vendors():
    """What a body adds unless the test says other."""
    heard.clear()
    does(adding("a", "b", "c"))


def does(what):
    bodies["notify"] = what


@pytest.fixture
def perform(bus, driver):
    """Works off one delivery, a job's or a step's."""

    def perform(delivery):
        if delivery.is_job:
            execute(bus.services, delivery)
        else:
            driver.perform(delivery)

    return perform


@pytest.fixture
def work(driver, perform):
    """Works off what is visible, so often (until nothing is)."""

    def work(times=100):
        for _ in range(times):
            taken = driver.take()
            if isinstance(taken, Idle):
                return
            for delivery in taken:
                perform(delivery)

    return work


@pytest.fixture
def parked(driver):
    """A run whose fan-out's body has ended."""

    def parked(workflow=Order, **arguments):
        run = workflow.start(**arguments)
        driver.perform(driver.take()[0])
        return run.reload()

    return parked


@pytest.fixture
def held(driver):
    """A run that was paused while its fan-out's body ran, which has ended since."""

    def held(workflow=Order):
        run = workflow.start()
        (delivery,) = driver.take()
        run.pause()
        driver.perform(delivery)
        return run.reload()

    return held


def batch_of(run):
    return Batch.find(run.steps[-1].batch_id)


def batch_count(database):
    return database.value("SELECT count(*) FROM pgbus.batches")


def lose_completions(database):
    database.rows(f"DELETE FROM pgmq.q_{STEPS} WHERE message ? 'batch_id'")


def queued(database, queue):
    return [message for name, _, _, message in messages(database) if name == queue]


def details(run, event):
    return [one.details for one in run.events if one.event is event]


def ends(run):
    """Steps and what became of them."""
    return [(one.step_name, one.attempt, one.status) for one in run.steps]


class TestOpening:
    def test_nothing_is_sent_while_the_body_runs(self, database, parked):
        seen = []

        def add(_workflow, batch):
            batch.add(tell, "a")
            seen.append((batch_count(database), queued(database, JOBS)))

        does(add)
        run = parked()
        assert seen == [(0, [])]
        assert (batch_of(run).total_jobs, len(queued(database, JOBS))) == (1, 1)

    def test_the_step_is_parked_and_no_message_of_it_is_left(self, database, parked):
        run = parked()
        (attempt,) = run.steps
        assert (run.status, attempt.status) == (RunStatus.WAITING, AttemptStatus.WAITING)
        assert (attempt.outcome, attempt.finished_at) == (None, None)
        assert attempt.waiting_since is not None
        assert (attempt.waiting_for, attempt.timeout_at) == (None, None)
        assert attempt.message_id is None
        assert queued(database, STEPS) == []

    def test_the_trail_names_the_batch_and_its_size(self, parked):
        run = parked()
        batch_id = run.steps[0].batch_id
        assert told(run)[3:] == [Event.FAN_OUT_OPENED, Event.STEP_WAITING]
        assert details(run, Event.FAN_OUT_OPENED) == [{"batch_id": batch_id, "size": 3}]
        assert details(run, Event.STEP_WAITING) == [{"batch_id": batch_id}]
        assert (run.events[-1].from_status, run.events[-1].to_status) == ("performing", "waiting")

    def test_the_batch_says_which_step_of_which_run_it_is_of(self, parked):
        run = parked()
        batch = batch_of(run)
        assert batch.description == f"Order#notify {run.workflow_id}"
        assert batch.properties == {
            "workflow_id": run.workflow_id,
            "step_id": run.steps[0].step_id,
        }

    def test_batch_members_and_wait_are_one_transaction(self, database, monkeypatch, parked):
        def fail(*_):
            raise RuntimeError("halfway")

        with monkeypatch.context() as broken:
            broken.setattr(batches, "add", fail)
            with pytest.raises(RuntimeError, match="halfway"):
                parked()
        assert batch_count(database) == 0
        assert queued(database, JOBS) == []
        assert database.rows("SELECT status, waiting_since FROM pgbus.workflow_steps") == [
            ("in_progress", None)
        ]
        assert database.value("SELECT status FROM pgbus.workflows") == "performing"
        assert len(queued(database, STEPS)) == 1

    def test_jobs_keep_their_own_options(self, database, parked):
        def add(_workflow, batch):
            batch.add(tell.options(queue="mail", wait=600), "late")
            batch.add(tell.options(priority=0), "urgent")
            batch.add(tell, "usual")

        does(add)
        parked()
        sent = {
            message["arguments"]["args"][0]: (queue, vt)
            for queue, _, vt, message in messages(database)
            if queue != STEPS
        }
        assert {vendor: queue for vendor, (queue, _) in sent.items()} == {
            "late": "pgbus_mail", "urgent": f"{JOBS}_p0", "usual": JOBS,
        }  # fmt: skip
        wait = sent["late"][1] - sent["usual"][1]
        assert timedelta(minutes=9) < wait < timedelta(minutes=11)

    def test_jobs_that_the_hosts_functions_enqueue_join_the_batch_while_it_collects(
        self, parked, work
    ):
        def notify_all():
            assert tell.enqueue("a") is None
            assert tell.options(wait=0).enqueue("b") is None

        def add(_workflow, batch):
            with batch.collecting():
                notify_all()
            batch.add(tell, "c")

        does(add)
        run = parked()
        assert batch_of(run).total_jobs == 3
        work()
        assert heard == ["a", "b", "c"]
        assert run.reload().status is RunStatus.FINISHED

    def test_other_jobs_are_sent_at_once_and_are_not_waited_for(self, database, parked, work):
        def add(_workflow, batch):
            batch.add(tell, "a")
            tell.enqueue("bad one")

        does(add)
        run = parked()
        assert batch_of(run).total_jobs == 1
        assert len(queued(database, JOBS)) == 2
        work()
        assert sorted(heard) == ["a", "bad one"]
        assert run.reload().status is RunStatus.FINISHED

    def test_the_builder_is_closed_when_the_body_has_ended(self, parked):
        kept = []
        does(lambda _workflow, batch: kept.append(batch) or batch.add(tell, "a"))
        parked()
        with pytest.raises(AlreadyFinished, match="has ended"):
            kept[0].add(tell, "b")

    def test_an_async_body_adds_and_collects(self, parked, work):
        async def add(_workflow, batch):
            batch.add(tell, "a")
            with batch.collecting():
                tell.enqueue("b")

        does(add)
        run = parked(Asynchronous)
        assert batch_of(run).total_jobs == 2
        work()
        assert run.reload().status is RunStatus.FINISHED

    def test_a_parked_fan_out_is_never_stalled(self, bus, database, parked):
        run = parked(Particular)
        age(database, "1 month", run)
        assert Stalls().sweep(turn(bus)) == 0
        assert run.reload().status is RunStatus.WAITING


class TestEndingBeforeThereIsABatch:
    @pytest.mark.parametrize("callback", ["on_complete", "on_success", "on_failure"])
    def test_the_callbacks_are_the_workflows_own(self, database, parked, callback):
        does(lambda _workflow, batch: setattr(batch, callback, other))
        run = parked()
        (attempt,) = run.steps
        assert run.status is RunStatus.PAUSED
        assert attempt.error_class == "AttributeError"
        assert f"{callback} of a fan-out is the workflow's own" in attempt.error_message
        assert batch_count(database) == 0

    @pytest.mark.parametrize(
        ("verb", "status", "attempt"),
        [
            ("pause", "paused", "completed"),
            ("skip", "finished", "skipped"),
            ("cancel", "cancelled", "cancelled"),
            ("finish", "finished", "completed"),
            ("reattempt", "ready", "failed"),
        ],
    )
    def test_a_verb_ends_the_step(self, database, parked, verb, status, attempt):
        def add(workflow, batch):
            batch.add(tell, "a")
            getattr(workflow, verb)()

        does(add)
        run = parked()
        assert (run.status, run.steps[0].status) == (status, attempt)
        assert batch_count(database) == 0
        assert queued(database, JOBS) == []

    def test_an_error_goes_to_the_policies(self, database, work):
        def add(workflow, batch):
            batch.add(tell, workflow.attempt)
            raise Declined

        does(add)
        run = Particular.start()
        work()
        assert run.reload().status is RunStatus.PAUSED
        assert [one.outcome for one in run.steps] == [Outcome.REATTEMPTED, Outcome.PAUSED]
        assert (batch_count(database), heard) == (0, [])

    def test_a_guard_skips_it(self, database, work):
        run = Particular.start(skips=True)
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert run.steps[0].status is AttemptStatus.SKIPPED
        assert batch_count(database) == 0

    def test_a_worker_that_dies_in_the_body_leaves_a_stall(self, driver, database, work):
        run = Particular.start()
        (guarded,) = driver.take()
        finalizer = Finalizer(driver.services, driver.worker, stopping=lambda: True)
        prepare(driver.services, driver.worker, finalizer, guarded)
        driver.redeliver()
        work()
        assert run.reload().status is RunStatus.CANCELLED
        assert run.steps[0].error_class == "pgbus.engine.errors.StepStalled"
        assert batch_count(database) == 0

    @pytest.mark.parametrize("workflow", [Order, Last])
    def test_an_empty_batch_completes_the_step_at_once(self, database, parked, workflow):
        does(lambda workflow, _batch: workflow.output(told=0))
        run = parked(workflow)
        assert run.status is RunStatus.FINISHED
        assert (run.steps[0].status, run.steps[0].output) == ("completed", {"told": 0})
        assert details(run, Event.FAN_OUT_FINISHED) == [{"failed_jobs": 0, "total_jobs": 0}]
        assert Event.STEP_WAITING not in told(run)
        assert batch_count(database) == 0

    def test_a_run_that_was_cancelled_meanwhile_opens_no_batch(self, database, driver):
        run = Order.start()
        (delivery,) = driver.take()
        run.cancel()
        driver.perform(delivery)
        assert run.reload().status is RunStatus.CANCELLED
        assert told(run)[-1] is Event.LATE_COMPLETION_IGNORED
        assert (batch_count(database), messages(database)) == (0, [])


class TestEndOfTheBatch:
    def test_the_last_members_end_completes_the_step_and_the_next_follows(
        self, database, parked, work
    ):
        run = parked()
        work(2)
        assert run.reload().status is RunStatus.WAITING
        work(1)
        assert run.reload().status is RunStatus.WAITING
        assert queued(database, STEPS) == [
            {"workflow_id": run.workflow_id, "batch_id": run.steps[0].batch_id}
        ]
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert ends(run) == [("notify", 1, "completed"), ("ship", 1, "completed")]
        assert told(run)[5:9] == [
            Event.FAN_OUT_FINISHED, Event.STEP_COMPLETED, Event.STEP_SCHEDULED, Event.STEP_STARTED
        ]  # fmt: skip
        assert details(run, Event.FAN_OUT_FINISHED) == [
            {"batch_id": run.steps[0].batch_id, "failed_jobs": 0, "total_jobs": 3}
        ]
        assert run.steps[0].waiting_since is None
        assert messages(database) == []
        assert database.value("SELECT resolved_at FROM pgbus.batches") is not None

    def test_a_fan_out_may_be_the_last_step(self, parked, work):
        run = parked(Last)
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert ends(run) == [("notify", 1, "completed")]

    @pytest.mark.parametrize("vendor", ["a", "bad"])
    def test_its_output_waits_and_is_kept_with_the_outcome(self, parked, work, vendor):
        def add(workflow, batch):
            workflow.output(told=1)
            batch.add(tell, vendor)

        does(add)
        run = parked()
        assert run.steps[0].output == {"told": 1}
        work()
        assert run.reload().steps[0].output == {"told": 1}

    def test_its_completion_travels_on_its_own_queue(self, database, driver, perform, parked):
        does(adding("a"))
        run = parked(Particular)
        perform(driver.take()[0])
        assert len(queued(database, "pgbus_orders_p0")) == 1
        perform(driver.take()[0])
        assert run.reload().current_step == "ship"

    @pytest.mark.parametrize(
        ("workflow", "status", "attempt", "outcome", "last"),
        [
            (Order, "paused", "failed", "paused", [Event.STEP_FAILED, Event.PAUSED]),
            (Strict, "cancelled", "failed", "cancelled", [Event.STEP_FAILED, Event.CANCELLED]),
            (
                Forgiving, "ready", "skipped", "skipped",
                [Event.STEP_SKIPPED, Event.STEP_SCHEDULED, Event.STEP_STARTED, Event.STEP_COMPLETED],
            ),
        ],
        ids=["pause", "cancel", "skip"],
    )  # fmt: skip
    def test_failed_members_count_as_the_step_says(
        self, parked, work, workflow, status, attempt, outcome, last
    ):
        does(adding(*range(9), "bad 1", "bad 2", "bad 3"))
        run = parked(workflow)
        work()
        first = run.reload().steps[0]
        assert run.status == ("finished" if status == "ready" else status)
        assert (first.status, first.outcome) == (attempt, outcome)
        assert first.error_class == "pgbus.engine.errors.FanOutFailed"
        assert first.error_message == "3 of 12 jobs dead-lettered"
        finished = told(run).index(Event.FAN_OUT_FINISHED)
        assert told(run)[finished + 1 : finished + 1 + len(last)] == last
        assert details(run, Event.FAN_OUT_FINISHED)[0]["failed_jobs"] == 3

    @pytest.mark.parametrize(
        ("vendors", "text"),
        [
            (("a",), "1 of 2 jobs discarded without running"),
            (("bad",), "2 of 2 jobs dead-lettered or discarded without running"),
        ],
    )
    def test_discarded_members_have_failed(self, database, parked, work, vendors, text):
        does(adding("gone", *vendors))
        run = parked()
        database.rows(
            f"SELECT pgbus.end_job('{JOBS}', msg_id, message, 'discarded')"
            f" FROM pgmq.q_{JOBS} WHERE message #>> '{{arguments,args,0}}' = 'gone'"
        )
        work()
        assert run.reload().steps[0].error_message == text

    def test_resume_after_a_failure_runs_the_body_again_with_a_fresh_batch(
        self, database, parked, work
    ):
        does(lambda workflow, batch: adding("bad" if workflow.attempt == 1 else "a")(None, batch))
        run = parked()
        work()
        run.reload().resume()
        work()
        assert run.reload().status is RunStatus.FINISHED
        first, second, _ = run.steps
        assert (first.status, second.status, second.attempt) == ("failed", "completed", 2)
        assert first.batch_id != second.batch_id
        assert batch_count(database) == 2
        assert heard == ["bad", "a"]

    @pytest.mark.parametrize("on_failure", [Order, Strict, Forgiving])
    @pytest.mark.parametrize("found_by", ["message", "resolve"])
    def test_a_batch_that_is_gone_pauses_whatever_is_to_follow_a_failure(
        self, bus, database, driver, parked, work, on_failure, found_by
    ):
        run = parked(on_failure)
        work(3)
        database.rows("DELETE FROM pgbus.batches")
        if found_by == "message":
            work()
        else:
            assert waits.resolve(bus.services, driver.worker, run.workflow_id)
            work()
        assert run.reload().status is RunStatus.PAUSED
        attempt = run.steps[0]
        assert (attempt.status, attempt.outcome) == ("failed", "paused")
        assert attempt.error_class == "pgbus.engine.errors.FanOutFailed"
        assert "the batch is gone" in attempt.error_message
        assert details(run, Event.FAN_OUT_FINISHED) == [
            {"batch_id": attempt.batch_id, "failed_jobs": None, "total_jobs": None}
        ]

    def test_a_lost_completion_is_made_up_by_whoever_looks(
        self, bus, database, driver, parked, work
    ):
        run = parked()
        assert not waits.resolve(bus.services, driver.worker, run.workflow_id)
        work(3)
        lose_completions(database)
        assert waits.resolve(bus.services, driver.worker, run.workflow_id)
        assert not waits.resolve(bus.services, driver.worker, run.workflow_id)
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert told(run).count(Event.FAN_OUT_FINISHED) == 1

    def test_a_completion_told_twice_counts_once(self, database, parked, work):
        run = parked()
        work(3)
        database.rows(f"SELECT pgmq.send('{STEPS}', message) FROM pgmq.q_{STEPS}")
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert told(run).count(Event.FAN_OUT_FINISHED) == 1
        assert messages(database) == []

    def test_a_completion_that_comes_too_early_is_no_completion(self, database, parked, work):
        run = parked()
        told_early = {"workflow_id": run.workflow_id, "batch_id": run.steps[0].batch_id}
        database.rows(f"DELETE FROM pgmq.q_{JOBS} WHERE msg_id > 1")
        database.rows(
            f"SELECT pgmq.send('{STEPS}', jsonb_build_object('workflow_id', %s::text, 'batch_id', %s::text))",
            *told_early.values(),
        )
        work()
        assert run.reload().status is RunStatus.WAITING
        assert messages(database) == []

    def test_where_its_class_is_not_loaded_the_completion_is_left_to_another_worker(
        self, bus, driver, monkeypatch, parked, work
    ):
        run = parked()
        work(3)
        with monkeypatch.context() as elsewhere:
            elsewhere.delitem(registry._definitions, run.workflow_class)
            work()
            assert not waits.resolve(bus.services, driver.worker, run.workflow_id)
        assert run.reload().status is RunStatus.WAITING
        driver.redeliver()
        work()
        assert run.reload().status is RunStatus.FINISHED

    def test_an_ending_whose_answer_was_lost_opens_no_second_batch(
        self, bus, database, driver, work
    ):
        """Also when all that it opened has ended before it is written again."""
        run = Order.start()
        ending = end_body(driver)
        finalizer = Finalizer(bus.services, driver.worker, stopping=lambda: False)
        answers = [finalizer.commit(ending), finalizer.commit(ending)]
        assert batch_count(database) == 1
        work()
        answers.append(finalizer.commit(ending))
        assert [one.finalized.verdict for one in answers] == ["applied"] * 3
        assert run.reload().status is RunStatus.FINISHED
        assert Event.LATE_COMPLETION_IGNORED not in told(run)
        assert heard == ["a", "b", "c"]


def end_body(driver):
    """Runs the body of the one step that is due; returns its ending, not yet written."""
    (delivery,) = driver.take()
    finalizer = Finalizer(driver.services, driver.worker, stopping=lambda: False)
    attempt = prepare(driver.services, driver.worker, finalizer, delivery)
    return run_body(driver.services, finalizer, attempt)


class TestPaused:
    def test_a_run_resumed_while_its_batch_runs_waits_on(self, database, parked, work):
        run = parked()
        batch_id = run.steps[0].batch_id
        run.pause()
        work(1)
        run.resume()
        assert (run.status, run.steps[0].batch_id) == (RunStatus.WAITING, batch_id)
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert (batch_count(database), heard) == (1, ["a", "b", "c"])

    def test_a_batch_that_ends_meanwhile_resolves_the_step_and_resume_goes_on(
        self, database, parked, work
    ):
        run = parked()
        run.pause()
        work()
        assert run.reload().status is RunStatus.PAUSED
        assert ends(run) == [("notify", 1, "completed")]
        assert told(run)[-2:] == [Event.FAN_OUT_FINISHED, Event.STEP_COMPLETED]
        assert messages(database) == []
        run.resume()
        assert (run.status, run.current_step) == (RunStatus.READY, "ship")
        work()
        assert run.reload().status is RunStatus.FINISHED

    @pytest.mark.parametrize(
        ("workflow", "attempt", "resumed", "then"),
        [
            (Order, "failed", "ready", [("notify", 1, "failed"), ("notify", 2, "scheduled")]),
            (Strict, "failed", "cancelled", [("notify", 1, "failed")]),
            (Forgiving, "skipped", "ready", [("notify", 1, "skipped"), ("ship", 1, "scheduled")]),
        ],
    )
    def test_what_follows_a_failure_waits_for_resume(
        self, parked, work, workflow, attempt, resumed, then
    ):
        does(adding("bad"))
        run = parked(workflow)
        run.pause()
        work()
        assert (run.reload().status, run.steps[0].status) == (RunStatus.PAUSED, attempt)
        assert run.steps[0].error_message == "1 of 1 jobs dead-lettered"
        assert run.resume().status == resumed
        assert ends(run) == then

    def test_a_completion_lost_meanwhile_is_made_up_after_resume(
        self, bus, database, driver, parked, work
    ):
        run = parked()
        run.pause()
        work(3)
        lose_completions(database)
        assert not waits.resolve(bus.services, driver.worker, run.workflow_id)
        run.resume()
        assert waits.resolve(bus.services, driver.worker, run.workflow_id)
        work()
        assert run.reload().status is RunStatus.FINISHED


class TestHeld:
    def test_a_body_that_ends_in_a_paused_run_sends_nothing(self, database, held):
        run = held()
        (attempt,) = run.steps
        assert (run.status, attempt.status) == (RunStatus.PAUSED, AttemptStatus.WAITING)
        assert (attempt.batch_id, attempt.waiting_since) == (None, None)
        assert told(run)[3:] == [Event.PAUSED, Event.STEP_WAITING]
        assert (batch_count(database), messages(database)) == (0, [])

    def test_resume_opens_the_batch_as_the_body_left_it(self, database, held):
        later = datetime(2100, 1, 1, tzinfo=UTC)

        def add(workflow, batch):
            workflow.output(told=2)
            batch.add(tell, "a")
            batch.add(tell.options(queue="mail", wait_until=later), "b")

        does(add)
        run = held()
        run.resume(actor="ann")
        (attempt,) = run.steps
        assert (run.status, attempt.output) == (RunStatus.WAITING, {"told": 2})
        assert attempt.waiting_since is not None
        assert batch_of(run).description == f"Order#notify {run.workflow_id}"
        assert [(event.event, event.actor) for event in run.events[-2:]] == [
            (Event.RESUMED, "ann"), (Event.FAN_OUT_OPENED, "ann")
        ]  # fmt: skip
        assert details(run, Event.FAN_OUT_OPENED) == [{"batch_id": attempt.batch_id, "size": 2}]
        sent = {
            queue: (vt, message["arguments"]["args"])
            for queue, _, vt, message in messages(database)
        }
        assert sent["pgbus_mail"] == (later, ["b"])
        assert sent[JOBS][1] == ["a"]

    def test_resume_goes_on_to_the_end(self, database, held, work):
        run = held()
        run.resume()
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert ends(run) == [("notify", 1, "completed"), ("ship", 1, "completed")]
        assert (batch_count(database), heard) == (1, ["a", "b", "c"])

    def test_resume_whose_transaction_is_rolled_back_sends_nothing(self, database, held):
        run = held()
        with Session(database.engine) as session:
            run.resume(session=session)
            session.rollback()
        assert (batch_count(database), messages(database)) == (0, [])
        run.reload().resume()
        assert batch_count(database) == 1

    @pytest.mark.parametrize(
        ("verb", "attempt"), [("cancel", "cancelled"), ("skip", "skipped"), ("resume_at", "cancelled")]
    )  # fmt: skip
    def test_any_other_verb_drops_the_batch(self, database, held, work, verb, attempt):
        run = held()
        getattr(run, verb)(*(["ship"] if verb == "resume_at" else []))
        assert run.steps[0].status == attempt
        assert not any("open_jobs" in event.details for event in run.events)
        work()
        assert run.reload().status == ("cancelled" if verb == "cancel" else "finished")
        assert (batch_count(database), messages(database), heard) == (0, [], [])

    def test_a_message_that_comes_meanwhile_means_nothing(self, database, caplog, held, work):
        run = held()
        database.rows(
            f"SELECT pgmq.send('{STEPS}', jsonb_build_object('workflow_id', %s::text))",
            run.workflow_id,
        )
        work()
        assert (run.reload().status, run.steps[0].status) == ("paused", "waiting")
        assert (messages(database), caplog.messages) == ([], [])

    def test_the_body_is_not_run_again(self, held, work):
        runs = []
        does(lambda workflow, batch: runs.append(workflow.attempt) or batch.add(tell, "a"))
        run = held()
        run.resume()
        work()
        assert runs == [1]

    def test_an_ending_whose_answer_was_lost_is_held_once(self, bus, database, driver):
        run = Order.start()
        ending = end_body(driver)
        run.pause()
        finalizer = Finalizer(bus.services, driver.worker, stopping=lambda: False)
        answers = [finalizer.commit(ending) for _ in range(2)]
        assert [one.finalized.verdict for one in answers] == ["held", "held"]
        assert told(run).count(Event.STEP_WAITING) == 1
        assert Event.LATE_COMPLETION_IGNORED not in told(run)
        run.resume()
        assert finalizer.commit(ending).finalized.verdict == "applied"
        assert (batch_count(database), len(queued(database, JOBS))) == (1, 3)

    def test_an_empty_batch_is_a_completed_step(self, held, work):
        does(lambda _workflow, _batch: None)
        run = held()
        assert (run.status, run.steps[0].status) == (RunStatus.PAUSED, AttemptStatus.COMPLETED)
        run.resume()
        work()
        assert run.reload().status is RunStatus.FINISHED


#: How a run that waits for a batch can be made not to.
WITHDRAWALS = {
    "cancel": lambda run: run.cancel(),
    "skip": lambda run: run.skip(),
    "resume_at": lambda run: run.pause().resume_at("notify"),
    "skip, paused": lambda run: run.pause().skip(),
    "cancel, paused": lambda run: run.pause().cancel(),
}


class TestWithdrawn:
    """Cancel, skip and resume_at of a run that waits for a batch."""

    @pytest.fixture(params=WITHDRAWALS)
    def withdraw(self, request):
        return WITHDRAWALS[request.param]

    def test_members_that_were_not_delivered_are_discarded_without_running(
        self, database, parked, work, withdraw
    ):
        run = parked()
        batch = batch_of(run)
        work(1)
        does(lambda _workflow, _batch: None)
        withdraw(run)
        work()
        batch.reload()
        assert heard == ["a"]
        assert (batch.completed_jobs, batch.discarded_jobs, batch.finished) == (1, 2, True)
        assert messages(database) == []

    def test_members_that_run_end(self, driver, perform, parked, work, withdraw):
        run = parked()
        batch = batch_of(run)
        (running,) = driver.take()
        does(lambda _workflow, _batch: None)
        withdraw(run)
        perform(running)
        work()
        batch.reload()
        assert heard == ["a"]
        assert (batch.completed_jobs, batch.discarded_jobs) == (1, 2)

    def test_a_member_that_is_to_be_tried_again_is_not(self, database, parked, work):
        @job(max_retries=5)
        def flaky():
            heard.append("flaky")
            raise ValueError

        does(lambda _workflow, batch: batch.add(flaky))
        run = parked()
        batch = batch_of(run)
        work(1)
        run.cancel()
        database.rows(f"UPDATE pgmq.q_{JOBS} SET vt = clock_timestamp()")
        work()
        assert heard == ["flaky"]
        assert (batch.reload().discarded_jobs, batch.finished) == (1, True)

    def test_the_event_says_how_many_were_open(self, parked, work, withdraw):
        run = parked()
        batch_id = run.steps[0].batch_id
        work(1)
        withdraw(run)
        (open_jobs,) = (one.details for one in run.events if "open_jobs" in one.details)
        expected = {"batch_id": batch_id, "open_jobs": 2}
        assert {name: open_jobs[name] for name in expected} == expected
        assert run.events[told_with(run, "open_jobs")].event in (
            Event.CANCELLED, Event.STEP_SKIPPED, Event.RESUMED,
        )  # fmt: skip

    def test_the_batchs_end_touches_the_run_no_more(self, database, parked, work):
        run = parked()
        run.cancel()
        before = len(run.events)
        work()
        assert run.reload().status is RunStatus.CANCELLED
        assert len(run.events) == before
        assert run.steps[0].status is AttemptStatus.CANCELLED
        assert database.value("SELECT count(*) FROM pgbus.batches WHERE finished_at IS NULL") == 0

    def test_a_fresh_attempt_waits_for_its_own_batch_alone(self, parked, work):
        run = parked()
        first = batch_of(run)
        run.pause().resume_at("notify")
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert ends(run) == [
            ("notify", 1, "cancelled"), ("notify", 2, "completed"), ("ship", 1, "completed")
        ]  # fmt: skip
        assert heard == ["a", "b", "c"]
        assert first.reload().discarded_jobs == 3
        assert told(run).count(Event.FAN_OUT_FINISHED) == 1

    def test_skip_goes_on_with_the_next_step(self, parked, work):
        run = parked()
        run.skip()
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert ends(run) == [("notify", 1, "skipped"), ("ship", 1, "completed")]

    def test_a_completion_on_its_way_comes_to_nothing(self, database, parked, work):
        run = parked()
        work(3)
        run.cancel()
        assert details(run, Event.CANCELLED) == [
            {"batch_id": run.steps[0].batch_id, "open_jobs": 0}
        ]
        work()
        assert run.reload().status is RunStatus.CANCELLED
        assert messages(database) == []
        batch = Batch.find(run.steps[0].batch_id)
        assert (batch.completed_jobs, batch.discarded_jobs) == (3, 0)

    def test_a_cancel_that_is_rolled_back_withdraws_nothing(self, database, parked, work):
        run = parked()
        with Session(database.engine) as session:
            run.cancel(session=session)
            session.rollback()
        work()
        assert run.reload().status is RunStatus.FINISHED
        assert heard == ["a", "b", "c"]

    def test_a_batch_that_is_gone_does_not_keep_a_run_from_being_cancelled(self, database, parked):
        run = parked()
        database.rows("DELETE FROM pgbus.batches")
        assert run.cancel().status is RunStatus.CANCELLED

    def test_resume_at_needs_a_paused_run(self, parked):
        run = parked()
        with pytest.raises(InvalidTransition, match="resume_at needs it paused"):
            run.resume_at("notify")
        assert batch_of(run).open_jobs == 3


def told_with(run, detail):
    """Which event of the run's trail has this detail."""
    return next(place for place, event in enumerate(run.events) if detail in event.details)


def test_a_signal_to_a_run_that_waits_for_a_batch_wakes_nothing(parked, work):
    run = parked()
    run.signal("shipped")
    assert run.reload().status is RunStatus.WAITING
    assert told(run)[-1] is Event.SIGNAL_RECEIVED
    work()
    assert run.reload().status is RunStatus.FINISHED


def test_hosts_are_told_of_a_fan_outs_end_and_not_of_its_parking(parked, work):
    ended = []
    with (
        signal("pgbus.workflow.step").connected_to(ended.append),
        signal("pgbus.workflow_paused").connected_to(ended.append),
    ):
        does(adding("bad"))
        run = parked()
        assert ended == []
        work()
    of = (run.workflow_class, run.workflow_id)
    failed = "pgbus.engine.errors.FanOutFailed"
    assert ended == [
        StepEnded(*of, "notify", 1, Outcome.PAUSED, None, failed),
        WorkflowPaused(*of, failed),
    ]


def test_a_fan_outs_output_is_there_for_the_next_step(parked, work):
    seen = []

    class Telling(Workflow):
        @fan_out
        def notify(self, batch):
            self.output(told=3)
            batch.add(tell, "a")

        @step
        def ship(self):
            seen.append(self.outputs["notify"]["told"])

    parked(Telling)
    work()
    assert seen == [3]
