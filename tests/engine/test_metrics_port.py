"""The supervisor's port: what its workers count, right while they come and go."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.parser import text_string_to_metric_families
from support import apps
from support.waiting import eventually
from support.workers import Stage, running

from pgbus.engine.observe.exporter import Exporter
from pgbus.engine.processes import supervisor
from pgbus.engine.settings import Settings

PLAIN = {"workflow_class": "support.apps.Plain", "outcome": "completed"}


@pytest.fixture
def port():
    with socket.socket() as reserving:
        reserving.bind(("127.0.0.1", 0))
        return reserving.getsockname()[1]


def scraped(port):
    """The samples that the port serves, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def steps(port):
    """How many attempts were counted, and how many observed."""
    told = scraped(port)
    names = ("pgbus_workflow_steps_total", "pgbus_workflow_step_duration_seconds_count")
    return [
        sum(
            value
            for key, value in told.items()
            if key[0] == name and set(PLAIN.items()) < set(key[1:])
        )
        for name in names
    ]


def test_counters_are_sums_that_never_go_back_while_workers_die_and_come(bus, database, port):
    stage = Stage(database)
    settings = {"metrics_backend": "prometheus", "metrics_port": port, "polling_interval": 0.2}
    with running(database, "start", workers=2, **settings) as process:
        process.says("serves with", times=2)
        stage.finished(*[bus.start(apps.Plain) for _ in range(20)])
        number = stage.database.value("SELECT count(*) FROM pgbus.workflow_steps")
        eventually(lambda: steps(port) == [number, number])
        workers = [child for child in process.children() if "worker" in child.cmdline()]
        for worker in workers:
            worker.kill()
        seen = []
        eventually(lambda: seen.append(steps(port)) or process.log.count("serves with") == 4)
        assert all(counts == [number, number] for counts in seen)
        stage.finished(bus.start(apps.Plain))
        more = stage.database.value("SELECT count(*) FROM pgbus.workflow_steps")
        eventually(lambda: steps(port) == [more, more])
        process.stop()
    with pytest.raises(OSError, match="refused"):
        scraped(port)


def test_a_port_that_is_taken_is_logged_and_the_supervisor_goes_on_without(caplog, port):
    settings = Settings.load(
        {}, database_url="postgresql:///shop", metrics_backend="prometheus", metrics_port=port
    )
    with socket.create_server(("0.0.0.0", port)):
        assert supervisor._exporter(settings) is None
    assert f"No metrics on port {port}: " in caplog.text


@pytest.fixture
def exporter(port):
    exporter = Exporter(port)
    yield exporter
    exporter.close()


def write(exporter, pid, kind, name, value):
    folder = Path(exporter.variables["PROMETHEUS_MULTIPROC_DIR"])
    written = MmapedDict(str(folder / f"{kind}_{pid}.db"))
    written.write_value(json.dumps([name.removesuffix("_total"), name, {}, "help"]), value, 0)
    written.close()
    return folder


@pytest.fixture
def gone():
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_the_files_of_ended_processes_become_one(exporter, port, gone):
    ended, alive = os.getpid(), os.getppid()
    write(exporter, ended, "counter", "shop_orders_total", 1)
    write(exporter, alive, "counter", "shop_orders_total", 3)
    folder = write(exporter, gone, "counter", "shop_orders_total", 2)
    exporter.child_ended(ended)
    exporter.child_ended(ended)
    names = ["counter_ended.db", f"counter_{alive}.db"]
    assert sorted(file.name for file in folder.iterdir()) == sorted(names)
    write(exporter, gone, "counter", "shop_orders_total", 10)
    assert scraped(port) == {("shop_orders_total",): 16}
    assert sorted(file.name for file in folder.iterdir()) == sorted(names)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", ["livesum", "sum", "all"])
def test_an_ended_processs_gauges_are_gone(exporter, port, gone, mode):
    folder = write(exporter, gone, f"gauge_{mode}", "shop_carts", 5)
    write(exporter, os.getpid(), f"gauge_{mode}", "shop_carts", 7)
    assert list(scraped(port).values()) == [7]
    exporter.child_ended(os.getpid())
    assert list(folder.iterdir()) == []


TORN = (64).to_bytes(4, "little") + bytes(4) + (999).to_bytes(4, "little") + bytes(60)


@pytest.mark.parametrize("left", [TORN, b""], ids=["torn", "empty"])
def test_a_file_that_a_killed_process_left_unfinished_costs_only_what_it_held(
    exporter, port, gone, caplog, left
):
    pid = os.getpid()
    folder = write(exporter, pid, "counter", "shop_orders_total", 4)
    exporter.child_ended(pid)
    (folder / f"counter_{pid}.db").write_bytes(left)
    exporter.child_ended(pid)
    assert f"counter_{pid}" in caplog.text
    (folder / f"counter_{gone}.db").write_bytes(left)
    assert scraped(port) == {("shop_orders_total",): 4}


def test_a_supervisor_that_ends_at_once_leaves_no_files(bus, exporter):
    folder = write(exporter, os.getpid(), "counter", "shop_orders_total", 1)
    supervised = supervisor.Supervisor(bus, "app:bus")
    supervised._exporter = exporter
    supervised.kill()
    assert not folder.exists()
