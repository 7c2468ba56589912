"""Who serves the bus, and what each runs now."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest
from support import apps
from support.driving import Driver
from support.workers import Stage, running

from pgbus import Workflow, step
from pgbus.engine.insights import processes
from pgbus.engine.insights.processes import Fleet, RunningJob
from pgbus.engine.processes.in_flight import InFlight


class Served(Workflow):
    @step
    def serve(self): ...


@pytest.fixture
def fleet(bus):
    def fleet(limit=10, **options):
        with bus.services.database.autocommit() as connection:
            return processes.fleet(connection, bus.settings, limit=limit, **options)

    return fleet


@pytest.fixture
def beats(database):
    """Adds a process that beat some seconds ago."""

    def beats(kind="worker", name="h:1", ago=0, *, started=60, **details):
        host, pid = name.split(":")
        process_id = str(uuid4())
        database.rows(
            "INSERT INTO pgbus.processes VALUES (%s, %s, %s, %s, 'r1', %s,"
            " now() - make_interval(secs => %s), now() - make_interval(secs => %s))",
            *(process_id, kind, host, pid, json.dumps(details), started, ago),
        )
        return process_id

    return beats


def test_without_processes_nobody_is_told_of(bus, fleet):
    found = fleet()
    assert found == Fleet(alive={}, silent={}, served=frozenset(), processes=())


def test_processes_are_counted_by_kind_and_by_whether_they_beat(bus, beats, fleet):
    beats("worker", "a:1")
    beats("worker", "a:2", ago=29)
    beats("worker", "a:3", ago=31)
    beats("dispatcher", "a:4")
    beats("supervisor", "a:5", ago=1000)
    found = fleet(limit=1)
    assert found.alive == {"worker": 2, "dispatcher": 1}
    assert found.silent == {"worker": 1, "supervisor": 1}
    assert len(found.processes) == 1


def test_the_longest_silent_come_first_then_workers_by_name(bus, beats, fleet):
    beats("dispatcher", "a:9", ago=0)
    beats("worker", "b:1", ago=3)
    beats("worker", "a:2", ago=20)
    beats("worker", "a:1", ago=0)
    beats("worker", "z:1", ago=60)
    beats("worker", "z:2", ago=90, started=300)
    found = fleet().processes
    assert [(one.host, one.pid, one.alive) for one in found] == [
        ("z", 2, False),
        ("z", 1, False),
        ("a", 1, True),
        ("a", 2, True),
        ("b", 1, True),
        ("a", 9, True),
    ]
    assert 90 <= found[0].silent_seconds < 120
    assert (found[0].kind, found[0].revision) == ("worker", "r1")
    assert found[0].started_at < found[0].heartbeat_at


def test_a_process_tells_its_queues_jobs_and_children(bus, beats, fleet):
    job = {"what": "job", "job": "shop.mail", "message_id": 7, "seconds": 90, "queue": "q"}
    running = [job, {"what": "Order 1", "seconds": 1, "queue": "q"}]
    queues = ["pgbus_mail", "pgbus_mail_p0", "pgbus_apples", "foreign"]
    beats("worker", "a:1", queues=queues, running=[*running, job | {"job": None}])
    beats("supervisor", "a:2", children=[{"kind": "worker", "pid": 1}])
    worker, supervisor = fleet(few=1).processes
    since = worker.heartbeat_at - timedelta(seconds=90)
    assert worker.running_jobs == (RunningJob("shop.mail", "q", 7, since),)
    assert [one.job for one in fleet().processes[0].running_jobs] == ["shop.mail", None]
    assert (worker.queues, worker.jobs, worker.children) == (("apples", "foreign", "mail"), 2, 0)
    assert (supervisor.queues, supervisor.jobs, supervisor.children) == ((), 0, 1)


def test_queues_are_served_by_the_workers_that_beat(bus, beats, fleet):
    beats("worker", "a:1", queues=["pgbus_mail", "pgbus_mail_p2"])
    beats("worker", "a:2", queues=["pgbus_mail", "elsewhere"])
    beats("worker", "a:3", queues=["pgbus_left"], ago=100)
    beats("dispatcher", "a:4", queues=["pgbus_none"])
    beats("worker", "a:5")
    assert fleet(limit=1).served == {"mail", "elsewhere"}


def test_a_worker_shows_the_newest_of_what_it_runs_and_how_many(bus, beats, fleet):
    busy, other = beats(name="test:1"), beats(name="other:7")
    first, second, third, elsewhere = (Served.start() for _ in range(4))
    for _ in range(3):
        Driver(bus).take()
    Driver(bus, name="other:7").take()
    found = {one.process_id: one for one in fleet(few=2).processes}
    assert found[busy].running == 3
    assert [one.workflow_id for one in found[busy].attempts] == [
        third.workflow_id,
        second.workflow_id,
    ]
    newest = found[busy].attempts[0]
    assert (newest.workflow_class, newest.step_name, newest.attempt) == (
        f"{__name__}.Served",
        "serve",
        1,
    )
    assert newest.started_at >= found[busy].started_at
    assert found[other].running == 1
    assert [one.workflow_id for one in found[other].attempts] == [elsewhere.workflow_id]
    assert first.workflow_id not in {one.workflow_id for one in found[busy].attempts}


def test_only_a_worker_runs_attempts_not_a_dispatcher_in_the_same_process(bus, beats, fleet):
    beats("dispatcher", "test:1")
    Served.start()
    Driver(bus).take()
    [dispatcher] = fleet().processes
    assert (dispatcher.running, dispatcher.attempts) == (0, ())


def test_of_workers_with_one_name_the_last_started_by_then_runs_an_attempt(bus, beats, fleet):
    before = beats(name="test:1", started=600, ago=300)
    now = beats(name="test:1", started=60)
    Served.start()
    Driver(bus).take()
    after = beats(name="test:1", started=-60)
    assert {one.process_id: one.running for one in fleet().processes} == {
        before: 0,
        now: 1,
        after: 0,
    }


def test_what_has_ended_or_waits_for_a_worker_is_not_run(bus, driver, beats, fleet):
    beats(name="test:1")
    Served.start()
    driver.drain()
    Served.start()
    [process] = fleet().processes
    assert (process.running, process.attempts) == (0, ())


def test_a_living_worker_is_found_with_the_step_it_executes(bus, database, fleet):
    stage = Stage(database)
    with stage.closed("body"), running(database) as worker:
        run = bus.start(apps.Gated)
        stage.arrived_at("body")
        [process] = [one for one in fleet().processes if one.pid == worker.pid]
        assert (process.kind, process.alive, process.running) == ("worker", True, 1)
        [attempt] = process.attempts
        assert (attempt.workflow_id, attempt.step_name) == (run.workflow_id, "two")


def test_a_worker_tells_which_jobs_it_has_in_hand(bus, driver, database):
    bus.ensure_queues(["pgbus_served"])
    bodies = ['{"job": "shop.mail"}', f'{{"job": "{"x" * 500}"}}', "[]"]
    in_flight = InFlight()
    for body in bodies:
        database.rows("SELECT pgmq.send('pgbus_served', %s::jsonb)", body)
        [delivery] = driver.take()
        in_flight.hold(delivery)
    told = [(one["job"], one["queue"], one["message_id"]) for one in in_flight.running()]
    queue = "pgbus_served"
    assert told == [("shop.mail", queue, 1), ("x" * 300, queue, 2), (None, queue, 3)]
