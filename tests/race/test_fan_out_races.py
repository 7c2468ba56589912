"""Fan-outs whose worker is killed, and what meets over the end of a batch."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy.orm import Session
from support import apps
from support.driving import Driver
from support.hosts import messages
from support.racing import at_once, waiting_for_a_lock
from support.replay import told
from support.sweeps import turn
from support.waiting import eventually
from support.workers import Stage, running

from pgbus import Workflow, fan_out, job, step
from pgbus.engine.jobs.batch import Batch
from pgbus.engine.jobs.execute import execute
from pgbus.engine.states import Event, RunStatus
from pgbus.engine.storage import claims
from pgbus.engine.storage.claims import Idle, Taking
from pgbus.engine.sweep.batches import sweep

ROUNDS = 15


@pytest.fixture
def stage(database):
    return Stage(database)


#: What stops at a gate: when a trigger fires, on which table, for which rows.
TRIGGERS = {
    "parking": ("BEFORE UPDATE", "workflow_steps", "NEW.status = 'waiting'"),
    "parked": ("AFTER INSERT", "batches", "true"),
    "ending": ("BEFORE UPDATE", "batches", "NEW.finished_at IS NOT NULL"),
    "resolving": (
        "BEFORE UPDATE",
        "workflow_steps",
        "OLD.status = 'waiting' AND NEW.status = 'in_progress'",
    ),
    "resolved": ("AFTER INSERT", "workflow_events", "NEW.event = 'fan_out_finished'"),
}


@pytest.fixture
def kill_at(bus, stage):
    """Kills the worker of a fan-out at a point of its way; another finishes the run.

    A transaction that stops after its last statement is stopped in its commit.
    """

    def kill_at(point, *, roll_back):
        when, table, condition = TRIGGERS[point]
        kind = "CONSTRAINT TRIGGER" if when.startswith("AFTER") else "TRIGGER"
        deferred = "DEFERRABLE INITIALLY DEFERRED" if when.startswith("AFTER") else ""
        stage.database.rows("""
            CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM set_config('application_name', 'gate aimed', false);
                PERFORM pg_advisory_xact_lock_shared(hashtext('aimed'));
                PERFORM set_config('application_name', 'pgbus', false);
                RETURN NEW;
            END $$
        """)
        stage.database.rows(
            f"CREATE {kind} at_the_gate {when} ON pgbus.{table} {deferred} FOR EACH ROW"
            f" WHEN ({condition}) EXECUTE FUNCTION wait_at_the_gate()"
        )
        with running(stage.database, threads=1) as worker, stage.closed("aimed"):
            run = bus.start(apps.Spread)
            stage.arrived_at("aimed")
            worker.kill()
            if roll_back:
                stage.database.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'gate aimed'"
                )
                eventually(lambda: not stage.waiting_at("aimed"))
        eventually(lambda: not stage.waiting_at("aimed"))
        finish(stage, run)
        return run

    return kill_at


def finish(stage, run):
    for queue in ("workflows", "jobs"):
        if stage.database.value("SELECT to_regclass(%s) IS NOT NULL", f"pgmq.q_pgbus_{queue}"):
            stage.redeliver(queue)
    with running(stage.database, threads=1):
        stage.finished(run)


def ended(stage, run, *, stalled=0):
    """One batch, each member counted once, and each step completed once."""
    assert [name for name, _, status in stage.attempts(run) if status == "completed"] == [
        "notify", "ship"
    ]  # fmt: skip
    assert stage.database.rows(
        "SELECT total_jobs, completed_jobs, resolved_at IS NOT NULL FROM pgbus.batches"
    ) == [(2, 2, True)]
    events = stage.events(run)
    assert events.count("fan_out_finished") == 1
    assert events.count("stall_detected") == stalled
    assert "late_completion_ignored" not in events
    assert messages(stage.database) == []


def test_killed_while_parking_it_runs_its_body_again(stage, kill_at):
    run = kill_at("parking", roll_back=True)
    ended(stage, run, stalled=1)
    assert stage.attempts(run)[:2] == [("notify", 1, "failed"), ("notify", 2, "completed")]
    assert stage.notes == ["a", "b", "ship"]


def test_killed_while_it_commits_the_parking_it_waits_on(stage, kill_at):
    run = kill_at("parked", roll_back=False)
    ended(stage, run)
    assert stage.notes == ["a", "b", "ship"]


def test_killed_while_the_batch_finishes_its_last_member_runs_again_and_counts_once(stage, kill_at):
    run = kill_at("ending", roll_back=True)
    ended(stage, run)
    assert stage.notes == ["a", "b", "b", "ship"]


def test_killed_while_the_batch_finishes_all_the_same_it_goes_on(stage, kill_at):
    run = kill_at("ending", roll_back=False)
    ended(stage, run)
    assert stage.notes == ["a", "b", "ship"]


def test_killed_while_resolving_another_resolves_it(stage, kill_at):
    run = kill_at("resolving", roll_back=True)
    ended(stage, run)
    assert stage.notes == ["a", "b", "ship"]


def test_killed_while_it_commits_the_resolution_the_next_step_is_the_one_that_stalls(
    stage, kill_at
):
    run = kill_at("resolved", roll_back=False)
    ended(stage, run, stalled=1)
    assert stage.attempts(run) == [
        ("notify", 1, "completed"), ("ship", 1, "failed"), ("ship", 2, "completed")
    ]  # fmt: skip
    assert stage.notes == ["a", "b", "ship"]


def test_killed_between_the_last_member_and_the_resolution_another_resolves_it(bus, stage):
    run = bus.start(apps.Spread)
    with running(stage.database, queues="workflows"):
        eventually(lambda: stage.status(run) == "waiting")
    with running(stage.database, queues="jobs") as worker:
        eventually(lambda: stage.database.value("SELECT finished_at FROM pgbus.batches"))
        worker.kill()
    assert stage.status(run) == "waiting"
    finish(stage, run)
    ended(stage, run)


def test_many_fan_outs_that_finish_at_once_each_go_on_once(bus, stage):
    runs = [bus.start(apps.Spread) for _ in range(40)]
    with running(stage.database, threads=4), running(stage.database, threads=4):
        stage.finished(*runs)
    for run in runs:
        assert stage.attempts(run) == [("notify", 1, "completed"), ("ship", 1, "completed")]
        assert stage.events(run).count("fan_out_finished") == 1
    assert messages(stage.database) == []
    assert stage.database.value("SELECT count(*) FROM pgbus.batches") == 40


@job
def tell(vendor): ...


class Notice(Workflow):
    @fan_out
    def notify(self, batch):
        batch.add_many(tell, [("a",), ("b",), ("c",)])

    @step
    def ship(self): ...


class Meeting:
    """Runs, and deliveries in the hands of workers of their own."""

    def __init__(self, bus):
        self._bus = bus
        self._driver = Driver(bus)

    def parked(self):
        run = Notice.start()
        self.perform(self.take())
        return run.reload()

    def take(self):
        (delivery,) = self._driver.take()
        return delivery

    def perform(self, delivery):
        if delivery.is_job:
            execute(self._bus.services, delivery)
        else:
            Driver(self._bus).perform(delivery)

    def drain(self):
        while not isinstance(taken := self._driver.take(), Idle):
            for delivery in taken:
                self.perform(delivery)


@pytest.fixture
def meeting(bus):
    return Meeting(bus)


def counts(run):
    batch = Batch.find(run.steps[0].batch_id)
    return (batch.completed_jobs + batch.discarded_jobs, batch.finished)


def test_a_completion_that_two_workers_have_at_once_ends_the_step_once(database, meeting):
    for _ in range(ROUNDS):
        run = meeting.parked()
        for _ in range(3):
            meeting.perform(meeting.take())
        database.rows("SELECT pgmq.send('pgbus_workflows', message) FROM pgmq.q_pgbus_workflows")
        at_once(*(partial(meeting.perform, meeting.take()) for _ in range(2)))
        meeting.drain()
        assert run.reload().status is RunStatus.FINISHED
        assert told(run).count(Event.FAN_OUT_FINISHED) == 1
        assert [attempt.step_name for attempt in run.steps] == ["notify", "ship"]
        assert messages(database) == []


@pytest.mark.parametrize("verb", ["pause", "cancel", "skip"])
def test_a_verb_and_the_completion_at_once_leave_what_one_of_them_said(database, meeting, verb):
    for _ in range(ROUNDS):
        run = meeting.parked()
        for _ in range(3):
            meeting.perform(meeting.take())
        completion = meeting.take()
        at_once(partial(meeting.perform, completion), getattr(run, verb))
        if run.reload().status is RunStatus.PAUSED:
            run.resume()
        meeting.drain()
        assert run.reload().status in {"cancelled", "finished"} - {verb == "cancel" or "cancelled"}
        assert told(run).count(Event.FAN_OUT_FINISHED) <= 1
        assert counts(run) == (3, True)
        assert messages(database) == []


@pytest.mark.parametrize("verb", ["pause", "cancel", "skip"])
def test_a_verb_and_the_last_members_at_once_lose_no_member(database, meeting, verb):
    for _ in range(ROUNDS):
        run = meeting.parked()
        members = [meeting.take() for _ in range(3)]
        at_once(*(partial(meeting.perform, one) for one in members), getattr(run, verb))
        if run.reload().status is RunStatus.PAUSED:
            run.resume()
        meeting.drain()
        assert run.reload().status == ("cancelled" if verb == "cancel" else "finished")
        assert counts(run) == (3, True)
        assert messages(database) == []


@pytest.mark.parametrize("verb", ["pause", "cancel"])
def test_a_verb_and_the_bodys_end_at_once_open_one_batch_or_none(database, meeting, verb):
    for number in range(ROUNDS):
        run = Notice.start()
        at_once(partial(meeting.perform, meeting.take()), getattr(run, verb))
        if verb == "pause":
            run.reload().resume()
        meeting.drain()
        assert run.reload().status == ("cancelled" if verb == "cancel" else "finished")
        opened = database.value("SELECT count(*) FROM pgbus.batches")
        assert opened <= number + 1 if verb == "cancel" else opened == number + 1
        assert database.value("SELECT count(*) FROM pgbus.batches WHERE finished_at IS NULL") == 0
        assert messages(database) == []


def test_a_batch_finishes_while_another_transaction_keeps_its_run(database, meeting):
    run = meeting.parked()
    members = [meeting.take() for _ in range(3)]
    with database.connection() as host, ThreadPoolExecutor(1) as pool:
        host.execute("SELECT 1 FROM pgbus.workflows FOR UPDATE")
        for member in members:
            pool.submit(meeting.perform, member).result(timeout=10)
        assert Batch.find(run.steps[0].batch_id).finished
        assert run.reload().status is RunStatus.WAITING
    meeting.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_the_last_member_waits_for_a_hosts_cancel_and_then_tells_nobody(database, meeting):
    database.rows("ALTER FUNCTION pgbus.finish_batch SET lock_timeout = 0")
    run = meeting.parked()
    members = [meeting.take() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        with Session(database.engine) as session:
            run.cancel(session=session)
            ending = [pool.submit(meeting.perform, one) for one in members]
            eventually(lambda: waiting_for_a_lock(database))
            session.commit()
        for one in ending:
            one.result(timeout=10)
    assert run.reload().status is RunStatus.CANCELLED
    batch = Batch.find(run.steps[0].batch_id)
    assert (batch.completed_jobs, batch.finished) == (3, True)
    assert messages(database) == []


@pytest.mark.parametrize(
    ("verb", "end", "status"),
    [
        ("cancel", "commit", "cancelled"),
        ("skip", "commit", "finished"),
        ("cancel", "rollback", "finished"),
    ],
)
def test_a_host_that_withdraws_a_batch_and_stays_open_stops_no_worker(
    bus, database, meeting, verb, end, status
):
    run = meeting.parked()
    members = [meeting.take() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool, Session(database.engine) as session:
        getattr(run, verb)(session=session)
        for ending in [pool.submit(meeting.perform, one) for one in members]:
            ending.result(timeout=20)
        assert counts(run) == (3, False)
        getattr(session, end)()
    assert sweep(turn(bus)) == 1
    assert counts(run) == (3, True)
    meeting.drain()
    assert run.reload().status == status
    assert told(run).count(Event.FAN_OUT_FINISHED) == (end == "rollback")
    assert messages(database) == []


class Crowd(Workflow):
    @fan_out
    def notify(self, batch):
        batch.add_many(tell, [(number,) for number in range(400)])


def test_workers_that_discard_a_withdrawn_batch_at_once_do_not_deadlock(bus, database, meeting):
    """Each takes many members in one statement."""
    run = Crowd.start()
    meeting.perform(meeting.take())
    run.reload().cancel()

    def discard():
        taking = Taking("{pgbus_default}", 20, 30)
        with bus.services.database.autocommit() as connection:
            while not isinstance(
                taken := claims.take(connection, Driver(bus).worker, taking), Idle
            ):
                for delivery in taken:
                    execute(bus.services, delivery)

    at_once(*[discard] * 4)
    assert Batch.find(run.steps[0].batch_id).discarded_jobs == 400
