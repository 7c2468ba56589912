"""The demo as a newcomer runs it: `python -m demo`, a killed worker, Ctrl-C, a second start."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import psycopg
import pytest
from support.server import make_home
from support.waiting import eventually

PROJECT = Path(__file__).parents[2]

#: Each kind of basket twice; the second order of kettles waits for a delivery.
ORDERS = 18
EXPECTED = {
    ("ada", "sent", "finished"),
    ("brook", "sent", "ready"),
    ("chidi", "sent", "finished"),
    ("dana", "sent", "finished"),
    ("elif", "sent", "finished"),
    ("fumio", "accepted", "paused"),
    ("gita", "declined", "finished"),
    ("hugo", "sent", "finished"),
    ("ines", "cancelled", "cancelled"),
}
STATES = """
SELECT o.customer, o.status, w.status
  FROM shop.orders o JOIN pgbus.workflows w ON w.workflow_id::text = o.workflow_id
"""
WITHOUT_RECEIPT = "SELECT id FROM shop.orders WHERE status = 'sent' AND receipt_sent_at IS NULL"
UNLOADING = """
SELECT worker FROM pgbus.workflow_steps WHERE step_name = 'unload' AND status = 'in_progress'
"""


class Demo:
    """A running demo."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, printed: Path) -> None:
        self.process = process
        self.port = port
        self._printed = printed

    @property
    def output(self) -> str:
        return self._printed.read_text()

    def database(self) -> psycopg.Connection:
        told = eventually(lambda: re.search(r"SHOP_DATABASE_URL='(.+?)'", self.output), within=40)
        return psycopg.connect(told[1], autocommit=True)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


@pytest.fixture
def home():
    home = make_home()
    yield home
    shutil.rmtree(home)


@pytest.fixture
def run_demo(home, tmp_path):
    """Runs the demo on the test's data; none of its processes outlives the test."""

    @contextmanager
    def run(*options):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "demo", "--data", home / "demo", "--port", str(port)]
        printed = tmp_path / "printed"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                [*command, *options], cwd=PROJECT, stdout=output, stderr=output
            )
        try:
            yield Demo(process, port, printed)
        except BaseException as error:
            error.add_note(printed.read_text())
            error.add_note((home / "demo" / "workers.log").read_text())
            raise
        finally:
            for left in processes_of(home, process):
                left.kill()
            process.wait()

    return run


def processes_of(home: Path, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The demo's, its workers' and its database's."""
    found = []
    for candidate in psutil.process_iter(["pid", "cwd", "environ"]):
        mentions_home = str(home) in str((candidate.info["environ"] or {}).get("SHOP_DATABASE_URL"))
        in_home = (candidate.info["cwd"] or "").startswith(str(home))
        if mentions_home or in_home or candidate.pid == process.pid:
            found.append(candidate)
    return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_a_killed_worker_loses_no_order_ctrl_c_leaves_no_process_and_a_second_start_goes_on(
    run_demo, home
):
    with run_demo("--orders", str(ORDERS), "--rate", "9") as demo, demo.database() as database:

        def unloading_worker():
            return database.execute(UNLOADING).fetchone()

        def states():
            return database.execute(STATES).fetchall()

        (worker,) = eventually(unloading_worker, within=40)
        pid = int(worker.rpartition(":")[2])
        os.kill(pid, signal.SIGKILL)

        eventually(lambda: len(states()) == ORDERS and set(states()) == EXPECTED, within=50)
        assert f"unload: worker {pid} died while it ran it" in demo.output
        assert "unload is tried again" in demo.output
        assert f"Try `kill -9 {pid}` now" in demo.output
        assert demo.output.count("Try `.venv/bin/pgbus workflows resume ") == 2, "fumio's orders"
        eventually(lambda: not database.execute(WITHOUT_RECEIPT).fetchall())
        (stock,) = database.execute(
            "SELECT stock FROM shop.products WHERE name = 'kettle'"
        ).fetchone()
        assert stock == 8 - 5 + 20 - 5
        payments = database.execute(
            "SELECT max(tries) FROM gateway.payments GROUP BY key"
        ).fetchall()
        assert len(payments) == ORDERS - 4, "each card once, but those declined and called off"
        page = urlopen(f"http://127.0.0.1:{demo.port}/orders/1").read().decode()
        assert "finished" in page

        running = processes_of(home, demo.process)
        assert len(running) > 5, "the demo, a supervisor, two workers, a dispatcher, PostgreSQL"
        database.close()
        assert demo.stop() == 0
        assert "Traceback" not in demo.output
        assert f"Stopping ...\n{ORDERS + 1} runs: " in demo.output
        assert not processes_of(home, demo.process)

    with run_demo("--orders", "0", "--until-idle") as again:
        assert again.process.wait(40) == 0
        assert f"{ORDERS + 1} runs: 13 finished" in again.output
        assert not processes_of(home, again.process)


def test_a_busy_port_is_said_before_anything_is_started(home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = subprocess.run(
            [sys.executable, "-m", "demo", "--data", home / "demo", "--port", str(port)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"Port {port} cannot be used (Address already in use)")
    assert "--port 8001" in answer.stderr
    assert not (home / "demo").exists()
