"""Batches that ended and did not finish, and fan-outs whose completion was lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from blinker import signal
from support.replay import told
from support.sweeps import age, stopping_after, turn

from pgbus import Workflow, fan_out, job, step
from pgbus.engine.jobs.batch import Batch
from pgbus.engine.jobs.execute import execute
from pgbus.engine.states import Event, RunStatus
from pgbus.engine.storage import claims
from pgbus.engine.storage.claims import Idle, Taking
from pgbus.engine.sweep import batches


@job
def member(number): ...


@job
def tell(batch_id, properties): ...


class Parcels(Workflow):
    @fan_out(on_batch_failure="skip")
    def notify(self, batch):
        batch.add_many(member, [(1,), (2,)])

    @step
    def ship(self): ...


@pytest.fixture
def crashed(bus, database):
    """A batch whose members have all ended, as if a crash had come before it finished."""

    def crashed():
        with Batch.open(on_complete=tell, on_success=tell, on_failure=tell) as batch:
            batch.add_many(member, [(1,), (2,)])
        database.rows(
            "UPDATE pgbus.batch_jobs SET status = 'completed' WHERE batch_id = %s", batch.batch_id
        )
        database.rows(
            "UPDATE pgbus.batch_counters SET completed = open, open = 0 WHERE batch_id = %s",
            batch.batch_id,
        )
        return batch.batch_id

    return crashed


@pytest.fixture
def untold(bus, driver, database):
    """A run whose batch finished so long ago, the message that tells of it lost."""

    def untold(since="2 hours"):
        run = Parcels.start()
        driver.perform(driver.take()[0])
        run_jobs(bus, driver)
        database.rows("DELETE FROM pgmq.q_pgbus_workflows")
        database.rows("UPDATE pgbus.batches SET finished_at = finished_at - %s::interval", since)
        assert run.reload().status is RunStatus.WAITING
        return run

    return untold


def run_jobs(bus, driver):
    """Works off the jobs' queue, and leaves that of the runs."""
    while True:
        with bus.services.database.autocommit() as connection:
            taken = claims.take(connection, driver.worker, Taking("{pgbus_default}", 1, 30))
        if isinstance(taken, Idle):
            return
        execute(bus.services, taken[0])


def sweep(bus, **options):
    return batches.sweep(turn(bus, **options))


def told_jobs(database):
    """Which batches' ends the callbacks in the queue tell of."""
    return [
        batch_id
        for (batch_id,) in database.rows(
            "SELECT message::text FROM pgmq.q_pgbus_default ORDER BY msg_id"
        )
        if "tell" in batch_id
    ]


def test_a_batch_that_ended_and_did_not_finish_is_finished_once(bus, database, crashed):
    heard = []
    batch_id = crashed()
    with signal("pgbus.batch_finished").connected_to(heard.append):
        assert [sweep(bus), sweep(bus)] == [1, 0]
    batch = Batch.find(batch_id)
    assert (batch.finished, batch.completed_jobs, batch.open_jobs) == (True, 2, 0)
    assert len(told_jobs(database)) == 2  # on_complete, on_success
    assert [(one.batch_id, one.completed_jobs) for one in heard] == [(batch_id, 2)]


def test_a_batch_without_members_that_did_not_finish_is_finished(bus, database, crashed):
    batch_id = crashed()
    database.rows("DELETE FROM pgbus.batch_counters")
    assert sweep(bus) == 1
    assert Batch.find(batch_id).finished


def test_a_batch_with_open_members_is_left_alone(bus, database):
    with Batch.open(on_complete=tell) as batch:
        batch.add(member, 1)
    assert sweep(bus) == 0
    assert not Batch.find(batch.batch_id).finished


def test_a_batch_that_a_host_keeps_locked_is_left_to_the_next_sweep(bus, database, crashed):
    database.rows("ALTER FUNCTION pgbus.finish_batch SET lock_timeout = 0")
    held, other = sorted([crashed(), crashed()])
    with ThreadPoolExecutor(1) as pool, database.connection() as host:
        host.execute("SELECT 1 FROM pgbus.batches WHERE batch_id = %s FOR UPDATE", [held])
        assert pool.submit(sweep, bus).result(20) == 1
    assert [Batch.find(one).finished for one in (held, other)] == [False, True]
    assert sweep(bus) == 1


def test_a_batch_that_cannot_be_finished_stops_no_other(
    bus, database, crashed, monkeypatch, caplog
):
    broken, other = sorted([crashed(), crashed()])
    finish = batches.batches.finish

    def finish_unless_broken(connection, batch_id):
        if batch_id == broken:
            raise ValueError("no luck")
        return finish(connection, batch_id)

    monkeypatch.setattr(batches.batches, "finish", finish_unless_broken)
    assert sweep(bus) == 1
    assert Batch.find(other).finished
    assert f"The sweep cannot repair batch {broken}" in caplog.text


def test_a_fan_out_whose_completion_was_lost_goes_on(bus, driver, untold):
    run = untold()
    assert [sweep(bus), sweep(bus)] == [1, 0]
    assert run.reload().current_step == "ship"
    assert told(run).count(Event.FAN_OUT_FINISHED) == 1
    driver.drain()
    assert run.reload().status is RunStatus.FINISHED


@pytest.mark.parametrize(("since", "resolved"), [("59 minutes", 0), ("61 minutes", 1)])
def test_a_completion_on_its_way_is_waited_for(bus, untold, since, resolved):
    untold(since)
    assert sweep(bus) == resolved


def test_a_fan_out_whose_batch_still_runs_waits_on(bus, database, driver):
    run = Parcels.start()
    driver.perform(driver.take()[0])
    age(database, "1 month", run)
    assert sweep(bus) == 0
    assert run.reload().status is RunStatus.WAITING


@pytest.mark.parametrize("finished", [False, True])
def test_a_fan_out_whose_batch_is_gone_pauses(bus, database, driver, finished):
    run = Parcels.start()
    driver.perform(driver.take()[0])
    if finished:
        run_jobs(bus, driver)
        database.rows("DELETE FROM pgmq.q_pgbus_workflows")
    database.rows("DELETE FROM pgbus.batches")
    assert [sweep(bus), sweep(bus)] == [1, 0]
    assert run.reload().status is RunStatus.PAUSED
    assert run.steps[-1].error_class == "pgbus.engine.errors.FanOutFailed"


def test_a_paused_run_is_left_alone(bus, database, untold):
    run = untold().pause()
    assert sweep(bus) == 0
    database.rows("DELETE FROM pgbus.batches")
    assert sweep(bus) == 0
    assert run.reload().status is RunStatus.PAUSED


def test_a_run_that_was_cancelled_is_left_alone(bus, untold):
    untold().cancel()
    assert sweep(bus) == 0


def test_a_dispatcher_that_is_to_stop_ends_between_two(bus, crashed):
    done = sorted([crashed(), crashed()])
    assert sweep(bus, stopping=stopping_after(1)) == 1
    assert [Batch.find(batch_id).finished for batch_id in done] == [True, False]
