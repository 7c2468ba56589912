"""`pgbus start`: workers and a dispatcher, kept running, and taken along at the end."""

import signal as signals
import subprocess
import time

import psutil
import pytest
from blinker import signal
from support import apps
from support.waiting import eventually
from support.workers import Process, Stage, running

from pgbus.engine.processes.supervisor import Supervisor


@pytest.fixture
def stage(database):
    return Stage(database)


@pytest.fixture
def supervisor(stage):
    with running(stage.database, "start", workers=2, polling_interval=0.2) as process:
        process.says("serves with", times=2)
        eventually(lambda: _rows(stage) == ["dispatcher", "supervisor", "worker", "worker"])
        yield process
        children = [] if not process.alive else process.children()
        for child in children:
            child.kill()


def test_it_runs_workers_and_a_dispatcher_that_serve(bus, stage, supervisor):
    runs = [bus.start(apps.Plain) for _ in range(10)]
    stage.finished(*runs)
    assert len(supervisor.children()) == 3


def test_a_worker_that_is_killed_is_started_again_and_nothing_is_lost(bus, stage, supervisor):
    with stage.closed("body"):
        run = bus.start(apps.Gated)
        stage.arrived_at("body")
        [pid] = stage.pids("begin two")
        psutil.Process(pid).kill()
        supervisor.says("ended (signal SIGKILL); another starts in 1.0 s")
        supervisor.says("serves with", times=3)
    stage.redeliver()
    stage.finished(run)
    assert len(supervisor.children()) == 3


def test_sigterm_ends_all_in_order(bus, stage, supervisor):
    children = supervisor.children()
    supervisor.stop()
    assert not any(child.is_running() for child in children)
    assert _rows(stage) == []


def test_ctrl_c_ends_all_in_order_and_bodies_finish(bus, stage, supervisor):
    children = supervisor.children()
    with stage.closed("body"):
        run = bus.start(apps.Gated)
        stage.arrived_at("body")
        supervisor.interrupt_group()
        eventually(lambda: _rows(stage).count("dispatcher") == 0)
        assert stage.waiting_at("body") == 1
    assert supervisor.wait() == 0
    assert not any(child.is_running() for child in children)
    assert ("two", 1, "completed") in stage.attempts(run)
    assert _rows(stage) == []


def test_a_second_signal_ends_all_at_once(bus, stage, supervisor):
    children = supervisor.children()
    with stage.closed("body"):
        bus.start(apps.Gated)
        stage.arrived_at("body")
        supervisor.signal(signals.SIGTERM)
        eventually(lambda: _rows(stage).count("dispatcher") == 0)
        supervisor.signal(signals.SIGTERM)
        assert supervisor.wait(within=3) == 128 + signals.SIGTERM
        eventually(lambda: not any(map(_runs, children)), within=3)


def test_a_supervisor_that_is_killed_takes_its_children_along(bus, stage, supervisor):
    children = supervisor.children()
    supervisor.kill()
    eventually(lambda: not any(map(_runs, children)), within=5)
    assert _rows(stage) == ["supervisor"]


def test_a_child_whose_supervisor_is_gone_before_it_could_look_stops_by_itself(stage):
    child = Process(stage.database.url, "worker", {}, options=["--supervisor", "1"])
    try:
        child.says("serves with")
        assert child.wait(within=5) == 0
    finally:
        child.end()


@pytest.fixture
def dies(bus):
    """Lets a supervisor see its child dead after it lived this long; returns the pause."""
    supervisor = Supervisor(bus, "app:bus")
    child = supervisor._children[0]

    def dies(lived):
        child.process = subprocess.Popen(["false"])
        child.process.wait()
        child.started_at = time.monotonic() - lived
        supervisor._look_after(child)
        assert child.process is None
        return round(max(0, child.start_at - time.monotonic()), 1)

    return dies


def test_a_child_that_dies_again_and_again_is_started_with_growing_pauses(dies):
    assert [dies(lived=1) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_child_that_is_replaced_is_told_of(dies):
    heard = []
    with signal("pgbus.worker.recycle").connected_to(heard.append):
        dies(lived=31)
    [replaced] = heard
    assert (replaced.kind, replaced.reason, round(replaced.seconds)) == ("worker", "status 1", 31)


def test_a_child_that_lived_is_started_again_at_once_and_the_pauses_begin_anew(dies):
    assert [dies(lived=1), dies(lived=1), dies(lived=31), dies(lived=1)] == [1, 2, 0, 1]


def _rows(stage):
    return [
        kind for (kind,) in stage.database.rows("SELECT kind FROM pgbus.processes ORDER BY kind")
    ]


def _runs(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
