"""What is past its time is deleted: ended runs, finished batches, archived messages."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from support.racing import waiting_for_a_lock
from support.sweeps import age, stopping_after, turn

from pgbus import Workflow, fan_out, job, step
from pgbus.engine.jobs.batch import Batch
from pgbus.engine.jobs.execute import execute
from pgbus.engine.states import RunStatus
from pgbus.engine.storage.claims import Idle
from pgbus.engine.sweep import retention

CHILDREN = ("workflow_steps", "workflow_events", "workflow_signals")


class Kept(Workflow):
    @step
    def first(self): ...

    @step(wait_for="paid")
    def waits(self): ...


class Parcels(Workflow):
    @fan_out
    def notify(self, batch):
        batch.add(member)

    @step
    def ship(self): ...


@job
def member(): ...


@job(queue="mail")
def letter(): ...


@pytest.fixture
def ended(database, driver):
    """A run that ended so long ago, created just before."""

    def ended(since="31 days", verb="finish"):
        run = Kept.start()
        driver.drain()
        run.signal("paid")
        if verb == "cancel":
            run.cancel()
        driver.drain()
        assert run.reload().status in (RunStatus.FINISHED, RunStatus.CANCELLED)
        age(database, since, run)
        make_older(database, run, since)
        return run

    return ended


def make_older(database, run, interval):
    """Gives the run the id it would have, had it been started so much earlier."""
    moment = database.value(
        "SELECT (extract(epoch FROM now() - %s::interval) * 1000)::bigint", interval
    )
    old = run.workflow_id
    new = str(UUID(f"{moment:012x}{old.replace('-', '')[12:]}"))
    for table in ("workflows", *CHILDREN):
        database.rows(f"UPDATE pgbus.{table} SET workflow_id = %s WHERE workflow_id = %s", new, old)
    run._row = replace(run._row, workflow_id=new)


def delete_runs(bus, **options):
    return retention.EndedRuns().delete(turn(bus, **options))


def left(database, *runs):
    """Which of the runs have rows left, in any table."""
    found = {
        workflow_id
        for table in ("workflows", *CHILDREN)
        for (workflow_id,) in database.rows(f"SELECT workflow_id::text FROM pgbus.{table}")
    }
    return [run.workflow_id in found for run in runs]


@pytest.mark.parametrize("verb", ["finish", "cancel"])
def test_an_ended_run_is_deleted_with_all_that_belongs_to_it(bus, database, ended, verb):
    run, other = ended(verb=verb), ended("1 day", verb=verb)
    assert left(database, run, other) == [True, True]
    assert delete_runs(bus) == 1
    assert left(database, run, other) == [False, True]
    assert other.reload().steps
    assert other.events
    assert delete_runs(bus) == 0


@pytest.mark.parametrize(("since", "deleted"), [("29 days", 0), ("31 days", 1)])
def test_a_run_is_kept_for_the_retention(bus, ended, since, deleted):
    ended(since)
    assert delete_runs(bus) == deleted


def test_a_run_of_long_ago_that_ended_lately_is_kept(bus, database, ended):
    run = ended("29 days")
    make_older(database, run, "90 days")
    assert delete_runs(bus) == 0


def test_an_ongoing_run_is_kept_whatever_its_age(bus, database, driver):
    runs = [Kept.start(), Kept.start()]
    driver.drain()
    runs[1].pause()
    for run in runs:
        age(database, "3 years", run)
        make_older(database, run, "3 years")
    assert delete_runs(bus) == 0
    assert left(database, *runs) == [True, True]


@pytest.mark.parametrize(
    "bus_options",
    [{"workflow_retention": None, "batch_retention": None, "archive_retention": None}],
)
def test_a_retention_of_none_keeps_all(bus, database, ended, driver):
    run, batch_id = ended("9 years"), finished_batch(bus, driver)
    age_batch(database, batch_id, "9 years")
    age_archive(database, "9 years")
    assert delete_runs(bus) == 0
    assert retention.finished_batches(turn(bus)) == 0
    assert retention.archived_messages(turn(bus)) == 0
    assert left(database, run) == [True]
    assert Batch.find(batch_id)


def test_runs_are_deleted_a_few_at_a_time_and_each_is_visited_once(
    bus, database, ended, monkeypatch
):
    monkeypatch.setattr(retention, "LIMIT", 2)
    runs = [ended(f"{days} days") for days in (40, 39, 38, 37, 36)]
    kept = Kept.start()
    age(database, "50 days", kept)
    make_older(database, kept, "50 days")
    assert delete_runs(bus) == 5
    assert left(database, *runs, kept) == [False] * 5 + [True]


def test_a_round_that_ends_early_goes_on_where_it_stopped(bus, database, ended, monkeypatch):
    monkeypatch.setattr(retention, "LIMIT", 1)
    for days in (40, 39, 38):
        ended(f"{days} days")
    task = retention.EndedRuns()
    assert task.delete(turn(bus, stopping=stopping_after(2))) == 2
    older = ended("50 days")
    assert task.delete(turn(bus)) == 1
    assert left(database, older) == [True]
    assert task.delete(turn(bus)) == 1


def test_a_locked_run_is_passed_over(bus, database, ended):
    locked, other = ended("40 days"), ended()
    with database.connection() as connection:
        connection.execute(
            "SELECT 1 FROM pgbus.workflows WHERE workflow_id = %s FOR UPDATE", [locked.workflow_id]
        )
        assert delete_runs(bus) == 1
        assert not waiting_for_a_lock(database)
    assert left(database, locked, other) == [True, False]
    assert delete_runs(bus) == 1


def test_a_rerun_outlives_its_original(bus, database, ended):
    run = ended()
    again = run.rerun()
    age(database, "31 days", run)
    assert delete_runs(bus) == 1
    assert left(database, run, again) == [False, True]
    assert again.reload().status is RunStatus.READY


def finished_batch(bus, driver):
    with Batch.open() as batch:
        batch.add(member)
    work_off(bus, driver)
    assert Batch.find(batch.batch_id).finished
    return batch.batch_id


def work_off(bus, driver):
    while not isinstance(taken := driver.take(), Idle):
        for delivery in taken:
            if delivery.is_job:
                execute(bus.services, delivery)
            else:
                driver.perform(delivery)


def age_batch(database, batch_id, interval):
    database.rows(
        "UPDATE pgbus.batches SET finished_at = finished_at - %s::interval,"
        " created_at = created_at - %s::interval WHERE batch_id = %s",
        interval, interval, batch_id,
    )  # fmt: skip


@pytest.mark.parametrize(("since", "deleted"), [("6 days", 0), ("8 days", 1)])
def test_a_finished_batch_is_kept_for_the_retention(bus, database, driver, since, deleted):
    batch_id = finished_batch(bus, driver)
    age_batch(database, batch_id, since)
    assert retention.finished_batches(turn(bus)) == deleted
    for table in ("batches", "batch_jobs"):
        assert database.value(f"SELECT count(*) FROM pgbus.{table}") == 1 - deleted


def test_an_open_batch_is_kept(bus, database):
    with Batch.open() as batch:
        batch.add(member)
    age_batch(database, batch.batch_id, "1 year")
    assert retention.finished_batches(turn(bus)) == 0


@pytest.mark.parametrize("paused", [False, True])
def test_a_batch_that_a_fan_out_still_waits_for_is_kept(bus, database, driver, paused):
    run = Parcels.start()
    driver.perform(driver.take()[0])
    (delivery,) = driver.take()
    execute(bus.services, delivery)
    if paused:
        run.pause()
    batch_id = run.reload().steps[-1].batch_id
    age_batch(database, batch_id, "1 year")
    assert retention.finished_batches(turn(bus)) == 0
    work_off(bus, driver)
    assert retention.finished_batches(turn(bus)) == 1
    assert run.reload().steps[0].status == "completed"


def test_batches_are_deleted_a_few_at_a_time(bus, database, driver, monkeypatch):
    monkeypatch.setattr(retention, "BATCHES", 2)
    for _ in range(5):
        age_batch(database, finished_batch(bus, driver), "8 days")
    assert retention.finished_batches(turn(bus, stopping=stopping_after(1))) == 2
    assert retention.finished_batches(turn(bus)) == 3


def age_archive(database, interval, queue="default"):
    database.rows(
        f"UPDATE pgmq.a_pgbus_{queue} SET archived_at = archived_at - %s::interval", interval
    )


def test_archived_messages_are_kept_for_the_retention(bus, database, driver, monkeypatch):
    monkeypatch.setattr(retention, "LIMIT", 2)
    for _ in range(5):
        member.enqueue()
        letter.enqueue()
    work_off(bus, driver)
    age_archive(database, "8 days")
    age_archive(database, "6 days", "mail")
    assert retention.archived_messages(turn(bus)) == 5
    assert database.value("SELECT count(*) FROM pgmq.a_pgbus_default") == 0
    assert database.value("SELECT count(*) FROM pgmq.a_pgbus_mail") == 5
    age_archive(database, "2 days", "mail")
    assert retention.archived_messages(turn(bus, stopping=stopping_after(3))) == 4
    assert retention.archived_messages(turn(bus)) == 1


def test_what_waits_in_a_queue_is_kept_whatever_its_age(bus, database):
    member.enqueue()
    database.rows("UPDATE pgmq.q_pgbus_default SET enqueued_at = now() - interval '1 year'")
    assert retention.archived_messages(turn(bus)) == 0
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_default") == 1


def test_archives_of_other_queues_are_left_alone(bus, database, driver):
    database.rows("SELECT pgmq.create('theirs')")
    database.rows("SELECT pgmq.archive('theirs', pgmq.send('theirs', '{}'))")
    database.rows("UPDATE pgmq.a_theirs SET archived_at = now() - interval '1 year'")
    member.enqueue()
    work_off(bus, driver)
    assert retention.archived_messages(turn(bus)) == 0
    assert database.value("SELECT count(*) FROM pgmq.a_theirs") == 1
