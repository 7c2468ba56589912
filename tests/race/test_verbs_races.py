"""Outside verbs at the same time: of callers, of a worker, of the timer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session
from support.driving import Driver
from support.racing import at_once, waiting_for_a_lock
from support.replay import assert_trail_replays
from support.waiting import eventually

from pgbus import Run, Workflow, register_subject, step
from pgbus.engine.errors import AlreadyRunning, InvalidTransition, NotPaused
from pgbus.engine.storage import messages

TEN = 10
ROUNDS = 10


class Boat:
    def __init__(self, name):
        self.name = name


register_subject(Boat, id_of=lambda boat: boat.name, load=lambda name, _session: Boat(name))


class Errand(Workflow):
    @step
    def go(self):
        if self.arguments.get("stops"):
            self.pause()

    @step
    def come_back(self): ...


class Patient(Workflow):
    @step(wait=86_400)
    def wake(self): ...


@pytest.fixture(autouse=True)
def trails_replay(bus, database):
    yield
    assert_trail_replays(database)


def stopped(bus):
    run = Errand.start(stops=True)
    Driver(bus).drain()
    return run.reload()


def events(run, *kinds):
    return [str(event.event) for event in run.events if event.event in kinds]


def test_of_ten_resumes_one_goes_on_and_nine_name_the_state_it_left(bus):
    run = stopped(bus)
    handles = [Errand.find(run.workflow_id) for _ in range(TEN)]
    got = at_once(*(handle.resume for handle in handles))
    lost = [error for error in got if isinstance(error, NotPaused)]
    assert len(lost) == TEN - 1
    assert {error.status for error in lost} == {"ready"}
    assert all("it is ready, and resume needs it paused" in str(error) for error in lost)
    assert events(run, "resumed") == ["resumed"]
    assert [s.step_name for s in run.steps] == ["go", "come_back"]
    Driver(bus).drain()
    assert run.reload().status == "finished"


def test_of_a_resume_and_a_cancel_at_once_the_run_is_cancelled_either_way(bus):
    for _ in range(ROUNDS):
        run = stopped(bus)
        resumed, cancelled = at_once(
            Errand.find(run.workflow_id).resume, Errand.find(run.workflow_id).cancel
        )
        assert not isinstance(cancelled, InvalidTransition)
        if isinstance(resumed, InvalidTransition):
            assert resumed.status == "cancelled"
            assert len(run.steps) == 1
        else:
            assert [s.status for s in run.steps] == ["completed", "cancelled"]
        Driver(bus).drain()
        assert run.reload().status == "cancelled"


def test_of_a_resume_and_a_resume_at_at_once_one_wins(bus):
    for _ in range(ROUNDS):
        run = stopped(bus)
        got = at_once(
            Errand.find(run.workflow_id).resume,
            lambda run=run: Errand.find(run.workflow_id).resume_at("come_back"),
        )
        assert sum(isinstance(one, NotPaused) for one in got) == 1
        assert [(s.step_name, s.attempt) for s in run.steps] == [("go", 1), ("come_back", 1)]
        Driver(bus).drain()


def test_a_pause_and_a_workers_claim_at_once_leave_one_continuation(bus):
    for _ in range(ROUNDS):
        run = Errand.start()
        driver = Driver(bus)
        taken, paused = at_once(driver.take, Errand.find(run.workflow_id).pause)
        assert paused.status == "paused"
        claimed = [delivery for delivery in taken or [] if delivery.verdict == "claimed"]
        for delivery in claimed:
            assert run.steps[-1].status == "in_progress"
            driver.perform(delivery)
        assert run.reload().status == "paused"
        run.resume()
        driver.drain()
        # A message that was read while the pause held the lock stays invisible for a while.
        while run.reload().status == "ready":
            make_visible(bus)
            driver.drain()
        assert run.reload().status == "finished"
        assert events(run, "step_started") == ["step_started"] * 2


def make_visible(bus):
    with bus.services.database.autocommit() as connection:
        connection.rows("UPDATE pgmq.q_pgbus_workflows SET vt = clock_timestamp()")


def test_a_cancel_and_the_end_of_a_body_at_once_leave_the_run_in_one_state(bus):
    for _ in range(ROUNDS):
        run = Errand.start()
        driver = Driver(bus)
        (delivery,) = driver.take()
        _, cancelled = at_once(
            lambda driver=driver, delivery=delivery: driver.perform(delivery),
            Errand.find(run.workflow_id).cancel,
        )
        run.reload()
        if isinstance(cancelled, InvalidTransition):
            assert (cancelled.status, run.status) == ("finished", "finished")
        else:
            assert run.status == "cancelled"
            assert not [s for s in run.steps if s.status in ("scheduled", "in_progress")]
        driver.drain()


def test_a_pause_and_the_end_of_a_body_at_once_lose_no_step(bus):
    for _ in range(ROUNDS):
        run = Errand.start()
        driver = Driver(bus)
        (delivery,) = driver.take()
        _, paused = at_once(
            lambda driver=driver, delivery=delivery: driver.perform(delivery),
            Errand.find(run.workflow_id).pause,
        )
        if not isinstance(paused, InvalidTransition):
            assert run.reload().status == "paused"
            run.resume()
            driver.drain()
        assert run.reload().status == "finished"
        assert events(run, "step_completed") == ["step_completed"] * 2


def test_a_verb_waits_for_the_one_before_it_and_sees_what_that_left(bus, database):
    run = Errand.start()
    other = Errand.find(run.workflow_id)
    with Session(database.engine) as session, ThreadPoolExecutor(1) as pool:
        run.cancel(session=session)
        late = pool.submit(other.pause)
        eventually(lambda: waiting_for_a_lock(database))
        session.commit()
        with pytest.raises(InvalidTransition, match="it is cancelled"):
            late.result(timeout=10)


def test_a_verb_that_waited_for_one_rolled_back_finds_the_run_as_it_was(bus, database):
    run = Errand.start()
    other = Errand.find(run.workflow_id)
    with Session(database.engine) as session, ThreadPoolExecutor(1) as pool:
        run.cancel(session=session)
        late = pool.submit(other.pause)
        eventually(lambda: waiting_for_a_lock(database))
        session.rollback()
        assert late.result(timeout=10).status == "paused"
    assert events(run, "cancelled", "paused") == ["paused"]


def test_a_worker_does_not_wait_for_a_run_that_a_host_keeps_locked(bus, database):
    kept, free = Errand.start(), Errand.start()
    driver = Driver(bus)
    with Session(database.engine) as session:
        kept.pause(session=session)
        verdicts = {}
        for _ in range(2):
            (delivery,) = driver.take()
            verdicts[delivery.workflow_id] = delivery.verdict
            if delivery.verdict == "claimed":
                driver.perform(delivery)
        assert verdicts == {kept.workflow_id: "locked", free.workflow_id: "claimed"}
        session.commit()
    assert (kept.reload().status, free.reload().status) == ("paused", "finished")


def test_the_timer_leaves_a_step_alone_that_a_verb_has_in_hand(bus, database):
    run = Patient.start()
    database.rows(
        "UPDATE pgbus.workflow_steps SET scheduled_at = clock_timestamp(), send_at = clock_timestamp()"
    )
    with Session(database.engine) as session:
        run.cancel(session=session)
        with bus.services.database.autocommit() as connection:
            assert messages.send_due(connection, 10) == 0
        session.commit()
        with bus.services.database.autocommit() as connection:
            assert messages.send_due(connection, 10) == 0
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0


def test_a_verb_that_waits_for_the_timer_sees_the_message_it_sent(bus, database):
    run = Patient.start()
    database.rows(
        "UPDATE pgbus.workflow_steps SET scheduled_at = clock_timestamp(), send_at = clock_timestamp()"
    )
    with database.connection() as timer, ThreadPoolExecutor(1) as pool:
        assert timer.execute("SELECT pgbus.send_due(10)").fetchone() == (1,)
        pausing = pool.submit(run.pause)
        eventually(lambda: waiting_for_a_lock(database))
        timer.commit()
        assert pausing.result(timeout=10).status == "paused"
    assert run.steps[0].message_id is None
    Driver(bus).drain()
    assert run.reload().status == "paused"
    run.resume()
    Driver(bus).drain()
    assert run.reload().status == "finished"


def test_of_ten_reruns_about_one_subject_one_starts(bus):
    run = Errand.start(Boat("Ada"))
    Driver(bus).drain()
    got = at_once(*[Errand.find(run.workflow_id).rerun] * TEN)
    (new,) = (one for one in got if isinstance(one, Run))
    lost = [error for error in got if isinstance(error, AlreadyRunning)]
    assert len(lost) == TEN - 1
    assert {error.run.workflow_id for error in lost} == {new.workflow_id}
    assert run.reruns == [new.workflow_id]
    assert events(run, "rerun") == ["rerun"]
