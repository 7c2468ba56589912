"""A message that comes again while its attempt is in progress: its worker died."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker
from support.driving import Driver
from support.racing import waiting_for_a_lock
from support.replay import told
from support.scripts import Scripted, script
from support.waiting import eventually

from pgbus import Pgbus, Workflow, step
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus
from pgbus.engine.storage import claims
from pgbus.engine.storage.claims import Idle


class Stalling(Workflow):
    @step
    def default(self): ...

    @step(on_stall="pause")
    def pauses(self): ...

    @step(on_stall="reattempt")
    def reattempts(self): ...

    @step(on_stall="cancel")
    def cancels(self): ...

    @step(transactional=True)
    def commits(self): ...

    @step(transactional=True, on_stall="pause")
    def commits_or_pauses(self): ...


@pytest.fixture
def bus_options(database):
    return {"session_factory": sessionmaker(database.engine)}


@pytest.fixture
def dead(bus):
    """A worker that claims and is never heard of again."""
    return Driver(bus, name="dead:1")


@pytest.fixture
def stall(bus, driver, dead):
    """Lets a worker die in this step of a new run; `meanwhile` happens before that is noticed."""

    def stall(step_name, meanwhile=None):
        run = Stalling.start().pause().resume_at(step_name)
        (claimed,) = taken_by(dead)
        assert claimed.verdict == "claimed"
        if meanwhile:
            meanwhile(run)
        driver.redeliver()
        (again,) = driver.take()
        assert again.verdict == "crashed"
        driver.perform(again)
        return run.reload()

    return stall


def taken_by(worker):
    """What it takes; a message that needed nothing (a withdrawn one) only makes it ask again."""
    return next(taken for taken in iter(worker.take, None) if taken)


def newest(run):
    return run.steps[-1]


@pytest.mark.parametrize("step_name", ["default", "pauses", "commits_or_pauses"])
def test_a_stalled_step_pauses_its_run(database, stall, step_name):
    run = stall(step_name)
    attempt = newest(run)
    assert run.status is RunStatus.PAUSED
    assert (attempt.status, attempt.outcome) == (AttemptStatus.FAILED, Outcome.PAUSED)
    assert attempt.error_class == "pgbus.engine.errors.StepStalled"
    assert attempt.worker == "dead:1"
    assert told(run)[-3:] == [Event.STALL_DETECTED, Event.STEP_FAILED, Event.PAUSED]
    assert run.events[-3].details == {"detection": "redelivery"}
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0


@pytest.mark.parametrize("step_name", ["reattempts", "commits"])
def test_a_stalled_step_is_reattempted(driver, stall, step_name):
    run = stall(step_name)
    failed, following = run.steps[-2:]
    assert (failed.outcome, failed.reattempted_by) == (Outcome.REATTEMPTED, "stall")
    assert (following.step_name, following.attempt) == (step_name, 2)
    assert following.status is AttemptStatus.SCHEDULED
    assert told(run)[-3:] == [
        Event.STALL_DETECTED, Event.STEP_REATTEMPTED, Event.STEP_SCHEDULED
    ]  # fmt: skip
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


def test_a_stalled_step_cancels_its_run(stall):
    run = stall("cancels")
    assert (run.status, newest(run).outcome) == (RunStatus.CANCELLED, Outcome.CANCELLED)
    assert newest(run).error_class == "pgbus.engine.errors.StepStalled"


@pytest.mark.parametrize(
    ("setting", "status"), [("reattempt", RunStatus.READY), ("cancel", RunStatus.CANCELLED)]
)
def test_the_setting_decides_for_steps_that_say_nothing(database, setting, status):
    bus = Pgbus(database_url=database.url, workflow_stall_action=setting)
    run = bus.start(Stalling)
    Driver(bus, name="dead:1").take()
    driver = Driver(bus)
    driver.redeliver()
    driver.perform(driver.take()[0])
    assert run.reload().status is status
    bus.close()


@pytest.mark.parametrize(
    ("step_name", "resumed"),
    [
        ("pauses", RunStatus.READY),
        ("reattempts", RunStatus.READY),
        ("cancels", RunStatus.CANCELLED),
    ],
)
def test_a_run_that_was_paused_meanwhile_stays_paused(stall, step_name, resumed):
    run = stall(step_name, meanwhile=lambda run: run.pause())
    assert (run.status, newest(run).status) == (RunStatus.PAUSED, AttemptStatus.FAILED)
    assert newest(run).error_class == "pgbus.engine.errors.StepStalled"
    assert Event.STALL_DETECTED in told(run)
    assert run.resume().status is resumed


def test_a_run_that_was_cancelled_meanwhile_is_left_alone(bus, driver, dead):
    run = Stalling.start()
    dead.take()
    run.cancel()
    driver.redeliver()
    assert driver.take() == []
    assert told(run.reload())[-1] is Event.CANCELLED


def reattempted(database, run, cause, times):
    """Makes `times` earlier attempts of the newest one's step look reattempted by this cause."""
    database.rows(
        """
        WITH newest AS (UPDATE pgbus.workflow_steps SET attempt = 1 + %s
                         WHERE step_id = %s RETURNING *)
        INSERT INTO pgbus.workflow_steps
            (workflow_id, step_name, attempt, status, outcome, queue, created_at, scheduled_at,
             reattempted_by)
        SELECT workflow_id, step_name, n, 'failed', 'reattempted', queue, created_at,
               scheduled_at, %s
          FROM newest, generate_series(1, %s) n
        """,
        times, run.steps[-1].step_id, cause, times,
    )  # fmt: skip


@pytest.mark.rows_by_hand
@pytest.mark.parametrize(
    ("cause", "times", "status"),
    [
        ("stall", 99, RunStatus.READY),
        ("stall", 100, RunStatus.PAUSED),
        # Policies' reattempts are another count.
        ("policy", 150, RunStatus.READY),
    ],
)
def test_stalls_in_a_row_have_a_limit_of_their_own(database, stall, cause, times, status):
    run = stall("reattempts", meanwhile=lambda run: reattempted(database, run, cause, times))
    assert run.status is status


def test_what_a_body_does_after_its_stall_is_ignored(bus, driver):
    def body(self):
        if self.attempt == 1:
            self.output(lost=True)
            driver.redeliver()
            driver.perform(driver.take()[0])

    script(first=body)
    run = Scripted.start()
    driver.drain()
    (attempt,) = run.reload().steps
    assert (run.status, attempt.output) == (RunStatus.PAUSED, None)
    assert attempt.error_class == "pgbus.engine.errors.StepStalled"
    late = run.events[-1]
    assert (late.event, late.from_status, late.to_status) == (
        Event.LATE_COMPLETION_IGNORED, RunStatus.PAUSED, RunStatus.PAUSED
    )  # fmt: skip
    assert late.details == {"outcome": "completed"}


@pytest.mark.parametrize("verb", ["pause", "finish", "cancel", "skip", "reattempt"])
def test_every_outcome_after_a_cancel_is_late(bus, driver, verb):
    def body(self):
        bus.find(self.workflow_id).cancel(reason="from outside")
        getattr(self, verb)()

    script(first=body)
    run = Scripted.start()
    driver.drain()
    assert told(run.reload())[-2:] == [Event.CANCELLED, Event.LATE_COMPLETION_IGNORED]
    assert (run.status, len(run.steps)) == (RunStatus.CANCELLED, 1)


def test_the_late_outcome_of_an_attempt_that_resume_at_replaced_leaves_the_new_one_alone(
    bus, database, driver
):
    def body(self):
        if self.attempt == 1:
            bus.find(self.workflow_id).pause().resume_at("first")
            self.cancel()

    script(first=body)
    run = Scripted.start()
    driver.drain()
    assert [(attempt.attempt, attempt.status) for attempt in run.reload().steps] == [
        (1, AttemptStatus.CANCELLED), (2, AttemptStatus.COMPLETED), (1, AttemptStatus.COMPLETED)
    ]  # fmt: skip
    assert run.status is RunStatus.FINISHED


class TestMessages:
    """What a message may and may not claim."""

    def send(self, database, run, *, visible_in=0):
        database.rows(
            "SELECT pgmq.send('pgbus_workflows', jsonb_build_object('workflow_id', %s::text), %s)",
            run.workflow_id, visible_in,
        )  # fmt: skip

    def count(self, database):
        return database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows")

    def test_a_duplicate_is_deleted_and_claims_nothing(self, database, driver):
        script()
        run = Scripted.start()
        (claimed,) = driver.take()
        self.send(database, run)
        assert driver.take() == []
        assert self.count(database) == 1
        driver.perform(claimed)
        assert run.reload().status is RunStatus.FINISHED
        assert self.count(database) == 0

    def test_a_stray_message_of_a_due_step_claims_nothing_either(self, database, driver):
        run = Scripted.start()
        database.rows("UPDATE pgmq.q_pgbus_workflows SET vt = vt + interval '1 hour'")
        self.send(database, run)
        assert driver.take() == []
        assert (run.reload().status, self.count(database)) == (RunStatus.READY, 1)

    def test_a_message_that_comes_early_waits_for_its_time(self, database, driver):
        run = Scripted.start()
        database.rows("UPDATE pgbus.workflow_steps SET scheduled_at = scheduled_at + '20 s'")
        assert driver.take() == []
        assert run.reload().status is RunStatus.READY
        assert database.value(
            "SELECT vt = scheduled_at FROM pgmq.q_pgbus_workflows, pgbus.workflow_steps"
        )

    def test_a_message_of_no_run_is_deleted(self, database, driver):
        run = Scripted.start()
        database.rows("DELETE FROM pgbus.workflows")
        assert driver.take() == []
        assert self.count(database) == 0
        assert run.steps

    def test_a_worker_that_froze_before_its_claim_finds_the_message_in_other_hands(
        self, bus, database, driver
    ):
        ran = []
        script(first=ran.append)
        run = Scripted.start()
        frozen = Driver(bus, name="frozen:1", unguarded=[])
        (late,) = frozen.take()
        assert late.verdict == "guarded"
        driver.redeliver()
        (claimed,) = driver.take()
        frozen.perform(late)
        assert (len(ran), self.count(database)) == (0, 1)
        assert run.steps[0].worker == "test:1"
        driver.perform(claimed)
        frozen.perform(late)
        assert len(ran) == 1
        assert run.reload().status is RunStatus.FINISHED

    def test_one_that_froze_until_the_message_was_replaced_claims_nothing(self, bus, driver):
        ran = []
        script(first=lambda self: ran.append(self.attempt) or self.reattempt())
        run = Scripted.start()
        frozen = Driver(bus, name="frozen:1", unguarded=[])
        (late,) = frozen.take()
        driver.redeliver()
        driver.perform(driver.take()[0])
        frozen.perform(late)
        assert ran == [1]
        assert (run.reload().status, run.steps[-1].status) == (
            RunStatus.READY, AttemptStatus.SCHEDULED
        )  # fmt: skip

    def test_a_locked_run_is_not_waited_for(self, database, driver):
        script()
        run = Scripted.start()
        with database.connection() as connection:
            connection.execute("SELECT 1 FROM pgbus.workflows FOR UPDATE")
            (locked,) = driver.take()
        assert locked.verdict == "locked"
        driver.perform(locked)
        assert run.reload().status is RunStatus.FINISHED

    def test_the_same_delivery_never_counts_as_a_crash(self, bus, driver):
        Scripted.start()
        (claimed,) = driver.take()
        with bus.services.database.autocommit() as connection:
            assert claims.claim(connection, driver.worker, claimed).verdict == "claimed"
            assert claims.claim(connection, Driver(bus, name="b:2").worker, claimed) is None
        assert isinstance(driver.take(), Idle)


def test_the_end_of_a_step_waits_for_a_locked_run_without_holding_its_message(
    bus, database, driver
):
    """Else the heartbeat, which keeps all messages in hand, would wait with it."""
    sessions = sessionmaker(database.engine)
    script()
    Scripted.start()
    (claimed,) = driver.take()
    with sessions() as host, database.connection(autocommit=True) as heartbeat:
        host.execute(sqlalchemy.text("SELECT 1 FROM pgbus.workflows FOR UPDATE"))
        with ThreadPoolExecutor(1) as pool:
            performed = pool.submit(driver.perform, claimed)
            eventually(lambda: waiting_for_a_lock(database))
            heartbeat.execute("SET lock_timeout = '1s'")
            heartbeat.execute("UPDATE pgmq.q_pgbus_workflows SET vt = vt + interval '30 s'")
            host.rollback()
            performed.result(10)
