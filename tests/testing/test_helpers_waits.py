"""What a run waits for, brought about by a test: a signal, a deadline, a batch."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from blinker import signal as event
from sqlalchemy.orm import Session
from support import hosts

from pgbus import (
    Batch,
    BatchNotFound,
    InvalidTransition,
    NotOngoing,
    StepWaiting,
    Workflow,
    fan_out,
    job,
    step,
)
from pgbus.engine.jobs.execute import execute
from pgbus.testing import (
    complete_fan_out,
    deliver_signal,
    expire_wait,
    perform_next_step,
    speedrun,
)

done = []


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()


class Shipment(Workflow):
    @step(wait_for="shipped", wait_timeout=timedelta(days=30))
    def ship(self):
        done.append(self.received_signal.payload.get("carrier"))

    @step
    def tell(self):
        done.append("tell")


def with_deadline(action):
    class Late(Workflow):
        @step(wait_for="shipped", wait_timeout=timedelta(days=30), on_timeout=action)
        def ship(self):
            done.append(("ship", self.timed_out, self.received_signal))

        @step
        def tell(self):
            done.append("tell")

    return Late


@job(queue="vendors")
def ask(number):
    done.append(number)


@job(queue="vendors")
def refuse(number):
    raise LookupError(number)


class Offers(Workflow):
    @fan_out(on_batch_failure="cancel")
    def ask_vendors(self, batch):
        batch.add_many(ask, [(number,) for number in range(self.arguments["vendors"])])
        batch.add(ask.options(priority=0, wait=3600), 99)
        if "refusing" in self.arguments:
            batch.add(refuse, 100)

    @step
    def choose(self):
        done.append("choose")


def trail(run):
    return [(one.event, one.actor) for one in run.events]


def work_off_jobs(bus, driver):
    while isinstance(taken := driver.take(), list):
        for delivery in taken:
            execute(bus.services, delivery)


def parked(run):
    perform_next_step(run)
    assert run.status == "waiting"
    return run


class TestASignal:
    def test_that_a_step_waits_for_is_delivered_and_the_step_performed(self, bus):
        run = parked(bus.start(Shipment))
        assert deliver_signal(run, "shipped", {"carrier": "Post"}) is run
        assert done == ["Post"]
        assert (run.status, run.current_step) == ("ready", "tell")
        assert ("signal_received", "test_helpers") in trail(run)

    def test_that_nobody_waits_for_yet_is_kept(self, bus):
        run = deliver_signal(bus.start(Shipment), "shipped", {"carrier": "Post"})
        assert (run.status, done) == ("ready", [])
        perform_next_step(run)
        assert done == ["Post"]

    def test_that_a_later_step_waits_for_leaves_the_run_waiting(self, bus):
        class Sale(Shipment):
            @step(wait_for="paid")
            def close(self): ...

        run = deliver_signal(parked(bus.start(Sale)), "paid")
        assert (run.status, done) == ("waiting", [])

    def test_that_no_step_waits_for_is_refused_before_it_is_sent(self, bus):
        run = parked(bus.start(Shipment))
        name = re.escape(run.workflow_class)
        with pytest.raises(
            ValueError, match=rf"no step of {name} waits for 'shiped'; did you mean 'shipped'\?"
        ):
            deliver_signal(run, "shiped")
        assert run.signals == []

    def test_that_is_delivered_again_runs_nothing(self, bus):
        run = parked(bus.start(Shipment))
        deliver_signal(run, "shipped", idempotency_key="event 7")
        deliver_signal(run, "shipped", idempotency_key="event 7")
        assert done == [None]
        assert (run.current_step, len(run.signals)) == ("tell", 1)

    def test_to_a_paused_run_is_kept_and_its_step_not_performed(self, bus):
        run = deliver_signal(parked(bus.start(Shipment)).pause(), "shipped")
        assert (run.status, done) == ("paused", [])
        assert speedrun(run.resume()).status == "finished"
        assert done == [None, "tell"]

    def test_to_a_run_that_is_over_raises(self, bus):
        with pytest.raises(NotOngoing):
            deliver_signal(bus.start(Shipment).cancel(), "shipped")


class TestADeadline:
    @pytest.mark.parametrize(
        ("action", "status", "step_status"),
        [
            ("pause", "paused", "failed"),
            ("cancel", "cancelled", "failed"),
            ("skip", "ready", "skipped"),
        ],
    )
    def test_that_comes_early_is_applied_and_no_body_performed(
        self, bus, action, status, step_status
    ):
        run = parked(bus.start(with_deadline(action)))
        assert expire_wait(run) is run
        assert (run.status, run.steps[0].status) == (status, step_status)
        assert done == []

    def test_under_run_has_the_body_performed_without_a_signal(self, bus):
        run = expire_wait(parked(bus.start(with_deadline("run"))))
        assert done == [("ship", True, None)]
        assert run.current_step == "tell"

    def test_under_notify_leaves_the_step_waiting(self, bus):
        run = expire_wait(parked(bus.start(with_deadline("notify"))))
        assert (run.status, len(run.steps), done) == ("waiting", 1, [])
        assert trail(run)[-1] == ("wait_timed_out", "system")

    def test_of_a_run_that_does_not_wait_says_what_to_do(self, bus):
        run = bus.start(Shipment)
        with pytest.raises(InvalidTransition, match=r"ready at .*'ship'.*perform_next_step\(run\)"):
            expire_wait(run)
        with pytest.raises(InvalidTransition, match=r"run\.resume\(\)"):
            expire_wait(parked(run).pause())

    def test_of_a_fan_out_names_its_batch_and_helper(self, bus):
        run = parked(bus.start(Offers, vendors=2))
        with pytest.raises(
            StepWaiting,
            match=rf"batch {run.steps[0].batch_id} \(3 of 3 jobs are open\): .*complete_fan_out\(run\)",
        ):
            expire_wait(run)


class TestAFanOut:
    def test_is_completed_without_its_jobs_and_the_next_step_is_left(self, bus, database):
        run = parked(bus.start(Offers, vendors=20))
        assert complete_fan_out(run) is run
        assert (run.status, run.current_step, done) == ("ready", "choose", [])
        (next_step,) = hosts.messages(database)
        assert next_step[3] == {"workflow_id": run.workflow_id}
        assert speedrun(run).status == "finished"

    def test_counts_its_jobs_as_completed_and_tells_that_the_batch_finished(self, bus):
        told = []
        finished = event("pgbus.batch_finished")
        with finished.connected_to(told.append):
            complete_fan_out(parked(bus.start(Offers, vendors=20)))
        (batch,) = told
        assert (batch.total_jobs, batch.completed_jobs) == (21, 21)

    def test_leaves_other_batches_and_jobs_on_their_queues(self, bus, database):
        with bus.active():
            ask.enqueue(7)
        other = parked(bus.start(Offers, vendors=1))
        before = hosts.messages(database)
        run = bus.start(Offers, vendors=1)
        complete_fan_out(parked(run))
        speedrun(run)
        assert hosts.messages(database) == before
        assert other.reload().status == "waiting"

    def test_with_a_job_that_failed_before_goes_on_as_declared(self, bus, driver, database):
        run = parked(bus.start(Offers, vendors=2, refusing=True))
        for _ in range(refuse.max_retries + 1):
            database.rows("UPDATE pgmq.q_pgbus_vendors SET vt = now()")
            work_off_jobs(bus, driver)
        complete_fan_out(run)
        assert run.status == "cancelled"
        assert run.steps[0].error_message == "1 of 4 jobs dead-lettered"

    @pytest.mark.parametrize("failed", [1, 2, 4])
    def test_may_have_some_of_its_jobs_fail_across_its_queues(self, bus, database, failed):
        run = complete_fan_out(parked(bus.start(Offers, vendors=3)), failed=failed)
        assert (run.status, done) == ("cancelled", [])
        assert run.steps[0].error_message == f"{failed} of 4 jobs dead-lettered"
        assert hosts.messages(database) == []

    @pytest.mark.parametrize("failed", [-1, 4])
    def test_of_which_more_should_fail_than_are_open_changes_nothing(self, bus, database, failed):
        run = parked(bus.start(Offers, vendors=2))
        with pytest.raises(
            ValueError, match=rf"failed={failed}: 3 jobs of batch .* are open; give 0 to 3\."
        ):
            complete_fan_out(run, failed=failed)
        assert database.value("SELECT sum(open) FROM pgbus.batch_counters") == 3

    def test_of_a_paused_run_is_resolved_and_the_run_stays_paused(self, bus):
        run = complete_fan_out(parked(bus.start(Offers, vendors=1)).pause())
        assert (run.status, run.steps[0].status) == ("paused", "completed")
        assert speedrun(run.resume()).status == "finished"

    def test_whose_jobs_have_ended_already_is_resolved(self, bus, database):
        run = parked(bus.start(Offers, vendors=1))
        database.rows("UPDATE pgbus.batch_jobs SET status = 'completed'")
        database.rows("UPDATE pgbus.batch_counters SET completed = open, open = 0")
        assert complete_fan_out(run).current_step == "choose"

    def test_of_which_messages_are_gone_says_so_and_changes_nothing(self, bus, database):
        run = parked(bus.start(Offers, vendors=3))
        database.rows("SELECT pgmq.purge_queue('pgbus_vendors')")
        with pytest.raises(
            StepWaiting,
            match=rf"batch {run.steps[0].batch_id}, and the messages of 3 of its 4 jobs are gone: .*run\.skip",
        ):
            complete_fan_out(run)
        assert database.value("SELECT sum(open) FROM pgbus.batch_counters") == 4
        assert run.skip().current_step == "choose"

    def test_whose_batch_is_gone_says_so(self, bus, database):
        run = parked(bus.start(Offers, vendors=1))
        database.rows("DELETE FROM pgbus.batches")
        with pytest.raises(
            BatchNotFound, match=rf"{run.workflow_id} waits for batch .* deleted: .*run\.skip"
        ):
            complete_fan_out(run)

    def test_whose_batch_is_locked_says_so(self, bus, database):
        run = parked(bus.start(Offers, vendors=0))
        with Session(database.engine) as session:
            with bus.active(), Batch.find(run.steps[0].batch_id).adding(session=session) as more:
                more.add(ask, 1)
            with pytest.raises(StepWaiting, match="another transaction keeps locked: commit"):
                complete_fan_out(run)
            session.rollback()
        assert complete_fan_out(run).current_step == "choose"

    def test_is_not_what_the_run_waits_for(self, bus):
        run = bus.start(Shipment)
        with pytest.raises(InvalidTransition, match="ready at its step 'ship'"):
            complete_fan_out(run)
        with pytest.raises(StepWaiting, match="signal 'shipped'"):
            complete_fan_out(parked(run))


def test_a_speedrun_raises_at_a_fan_out(bus):
    with pytest.raises(StepWaiting, match="complete_fan_out"):
        speedrun(bus.start(Offers, vendors=1))
