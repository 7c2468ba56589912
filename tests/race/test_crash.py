"""A worker killed between each pair of phases: one continuation, no step lost, none completed twice.

Kills are aimed from outside: the worker stops at a gate (an advisory lock that the test holds) in
the host's code around a phase, or in a trigger within the statement that ends one.
"""

from contextlib import suppress

import psutil
import pytest
from support import apps
from support.waiting import eventually
from support.workers import Stage, running


@pytest.fixture
def stage(database):
    return Stage(database)


def kill_at(stage, gate, start, *, redelivered=True, **options):
    """Starts a run, kills its worker at the gate, and has another worker finish it."""
    with running(stage.database, threads=1, **options) as worker:
        with stage.closed(gate):
            run = start()
            stage.arrived_at(gate)
            worker.kill()
        eventually(lambda: not stage.waiting_at(gate))
    if redelivered:
        stage.redeliver()
    with running(stage.database, threads=2):
        stage.finished(run)
    return run


def completed(stage, run):
    """The steps that were completed, in order; each must be there once."""
    return [step for step, _, status in stage.attempts(run) if status == "completed"]


def stalls(stage, run):
    return stage.events(run).count("stall_detected")


def ended(stage, run, *, stalled):
    assert completed(stage, run) == ["one", "two", "three"]
    assert stalls(stage, run) == stalled
    assert stage.database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0
    assert stage.events(run)[-1] == "finished"


def test_killed_after_the_claim_before_the_body(bus, stage):
    run = kill_at(stage, "enter 1", lambda: bus.start(apps.Gated), aimed_at="enter 1")
    ended(stage, run, stalled=1)
    assert stage.attempts(run)[0] == ("one", 1, "failed")
    assert stage.notes == ["one", "begin two", "two", "three"]


def test_killed_in_the_body(bus, stage):
    run = kill_at(stage, "body", lambda: bus.start(apps.Gated))
    ended(stage, run, stalled=1)
    assert stage.notes == ["one", "begin two", "begin two", "two", "three"]


def test_killed_after_the_body_before_its_end_is_sent(bus, stage):
    run = kill_at(stage, "exit 1", lambda: bus.start(apps.Gated), aimed_at="exit 1")
    ended(stage, run, stalled=1)
    assert stage.notes == ["one", "one", "begin two", "two", "three"]


def test_killed_after_the_end_is_committed_before_the_next_step_begins(bus, stage):
    run = kill_at(
        stage, "finalized one 1", lambda: bus.start(apps.Gated), aimed_at="finalized one 1"
    )
    ended(stage, run, stalled=1)
    assert stage.notes == ["one", "begin two", "two", "three"]


def test_killed_between_a_step_and_the_one_that_continues_it(bus, stage):
    run = kill_at(stage, "enter 2", lambda: bus.start(apps.Gated), aimed_at="enter 2")
    ended(stage, run, stalled=1)
    assert stage.notes == ["one", "begin two", "two", "three"]


def test_killed_after_the_last_step_is_committed(bus, stage):
    run = kill_at(
        stage, "finalized three 1", lambda: bus.start(apps.Gated), aimed_at="finalized three 1"
    )
    ended(stage, run, stalled=0)


def test_killed_between_its_end_and_the_next_take(bus, stage):
    """The next step has a guard, so it is not continued: its message is sent, and taken along."""
    run = kill_at(
        stage, "finalized one 1", lambda: bus.start(apps.ThenGuarded), aimed_at="finalized one 1"
    )
    assert stage.attempts(run) == [("one", 1, "completed"), ("two", 1, "completed")]
    assert stalls(stage, run) == 0


def test_killed_in_a_guard(bus, stage):
    run = kill_at(stage, "guard", lambda: bus.start(apps.Guarded))
    assert stage.attempts(run) == [("one", 1, "completed"), ("two", 1, "completed")]
    assert stalls(stage, run) == 0
    assert stage.notes == ["one", "two"]


@pytest.fixture
def slow_end(stage):
    """The statement that completes a step waits at the gate `end`, uncommitted."""
    stage.database.rows("""
        CREATE FUNCTION wait_at_the_end() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM set_config('application_name', 'gate end', false);
            PERFORM pg_advisory_xact_lock_shared(hashtext('end'));
            PERFORM set_config('application_name', 'pgbus', false);
            RETURN NEW;
        END $$
    """)
    stage.database.rows("""
        CREATE TRIGGER at_the_end BEFORE UPDATE ON pgbus.workflow_steps FOR EACH ROW
          WHEN (NEW.status = 'completed') EXECUTE FUNCTION wait_at_the_end()
    """)


def test_killed_while_its_end_is_written_and_rolled_back(bus, stage, slow_end):
    with running(stage.database, threads=2) as worker, stage.closed("end"):
        run = bus.start(apps.Gated)
        stage.arrived_at("end")
        worker.kill()
        stage.database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'gate end'"
        )
        eventually(lambda: not stage.waiting_at("end"))
    stage.redeliver()
    with running(stage.database, threads=2):
        stage.finished(run)
    ended(stage, run, stalled=1)
    assert stage.notes == ["one", "one", "begin two", "two", "three"]


def test_killed_while_its_end_is_written_and_committed_all_the_same(bus, stage, slow_end):
    """The server learns of the client's death only when it has committed."""
    run = kill_at(stage, "end", lambda: bus.start(apps.Gated))
    ended(stage, run, stalled=1)
    assert stage.attempts(run)[:3] == [
        ("one", 1, "completed"),
        ("two", 1, "failed"),
        ("two", 2, "completed"),
    ]


@pytest.fixture
def slow_claim(stage):
    """The statement that takes a message waits at the gate `claim`, uncommitted."""
    stage.database.rows("""
        CREATE FUNCTION wait_at_the_claim() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM set_config('application_name', 'gate claim', false);
            PERFORM pg_advisory_xact_lock_shared(hashtext('claim'));
            PERFORM set_config('application_name', 'pgbus', false);
            RETURN NEW;
        END $$
    """)
    stage.database.rows("""
        CREATE TRIGGER at_the_claim BEFORE UPDATE ON pgbus.workflow_steps FOR EACH ROW
          WHEN (NEW.status = 'in_progress') EXECUTE FUNCTION wait_at_the_claim()
    """)


def test_killed_while_it_takes_and_the_claim_is_committed_all_the_same(bus, stage, slow_claim):
    run = kill_at(stage, "claim", lambda: bus.start(apps.Gated))
    ended(stage, run, stalled=1)
    assert stage.notes == ["one", "begin two", "two", "three"]


def test_killed_while_it_takes_and_the_claim_is_rolled_back(bus, stage, slow_claim):
    with running(stage.database, threads=2) as worker, stage.closed("claim"):
        run = bus.start(apps.Gated)
        stage.arrived_at("claim")
        worker.kill()
        stage.database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'gate claim'"
        )
        eventually(lambda: not stage.waiting_at("claim"))
    with running(stage.database, threads=2):
        stage.finished(run)
    ended(stage, run, stalled=0)


def test_workers_killed_at_random_lose_nothing_and_complete_nothing_twice(bus, stage):
    runs = [bus.start(apps.Hardy) for _ in range(60)]
    settings = {"threads": 4, "polling_interval": 0.1, "visibility_timeout": 1}
    with running(stage.database, "start", workers=2, **settings) as supervisor:
        for share in (10, 25, 40):
            eventually(lambda share=share: _finished(stage) >= share, within=30)
            for child in supervisor.children():
                with suppress(psutil.ZombieProcess):
                    if "worker" in child.cmdline():
                        child.kill()
        stage.finished(*runs, within=60)
        supervisor.stop()
    for run in runs:
        assert completed(stage, run) == ["one", "two", "three", "four"]
    assert stage.database.value("SELECT count(*) FROM pgmq.q_pgbus_workflows") == 0


def _finished(stage):
    return stage.database.value("SELECT count(*) FROM pgbus.workflows WHERE status = 'finished'")
