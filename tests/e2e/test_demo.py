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
from urllib.parse import urlencode
from urllib.request import urlopen

import psutil
import psycopg
import pytest
from support.server import make_home
from support.waiting import eventually

PROJECT = Path(__file__).parents[2]

#: One of each kind. The second order of kettles waits for a delivery.
ORDERS = 17
EXPECTED = {
    ("ada", "sent", "finished"),
    ("elif", "sent", "finished"),
    ("kofi", "sent", "ready"),
    ("vera", "sent", "finished"),
    ("fumio", "accepted", "paused"),
    ("otto", "sent", "finished"),
    ("brook", "sent", "ready"),
    ("tomo", "sent", "finished"),
    ("lena", "cancelled", "finished"),
    ("wanda", "sent", "finished"),
    ("dana", "sent", "finished"),
    ("mats", "accepted", "waiting"),
    ("gita", "declined", "finished"),
    ("hugo", "sent", "finished"),
    ("pia", "placed", "ready"),
    ("ines", "cancelled", "cancelled"),
    ("chidi", "sent", "finished"),
}
#: Those who pay by transfer, whose card is declined, who called off, who wants it in days.
WITHOUT_CHARGE = 6

STATES = """
SELECT o.customer, o.status, w.status
  FROM shop.orders o JOIN pgbus.workflows w ON w.workflow_id::text = o.workflow_id
"""
WITHOUT_RECEIPT = "SELECT id FROM shop.orders WHERE status = 'sent' AND receipt_sent_at IS NULL"
KETTLES = """
SELECT stock, (SELECT count(*) FROM pgbus.workflows
                WHERE workflow_class = 'demo.shop.workflows.RestockWorkflow')
  FROM shop.products WHERE name = 'kettle'
"""
UNLOADING = """
SELECT worker FROM pgbus.workflow_steps WHERE step_name = 'unload' AND status = 'in_progress'
"""
FAILED_FAN_OUT = """
SELECT w.workflow_id::text, s.error_message
  FROM pgbus.workflows w JOIN pgbus.workflow_steps s USING (step_id)
 WHERE w.status = 'paused' AND s.error_class = 'pgbus.engine.errors.FanOutFailed'
"""
#: Of kofi's payment: how often it was called, noted by the shop, stored and taken by the run.
PAYMENT = """
SELECT (SELECT count(*) FROM pgbus.workflow_events e
         WHERE e.workflow_id = w.workflow_id AND e.event = 'signal_received'),
       (SELECT count(*) FROM shop.payments p WHERE p.order_id = o.id),
       (SELECT array_agg(s.status) FROM pgbus.workflow_signals s
         WHERE s.workflow_id = w.workflow_id)
  FROM shop.orders o JOIN pgbus.workflows w ON w.workflow_id::text = o.workflow_id
 WHERE o.customer = 'kofi'
"""
LATE = "SELECT 1 FROM pgbus.workflow_steps WHERE late_since IS NOT NULL"


class Demo:
    """A running demo."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, printed: Path) -> None:
        self.process = process
        self.port = port
        self._printed = printed

    @property
    def output(self) -> str:
        return self._printed.read_text()

    @property
    def database_url(self) -> str:
        told = eventually(lambda: re.search(r"SHOP_DATABASE_URL='(.+?)'", self.output), within=40)
        return told[1]

    def database(self) -> psycopg.Connection:
        return psycopg.connect(self.database_url, autocommit=True)

    def get(self, path: str) -> str:
        return urlopen(f"http://127.0.0.1:{self.port}{path}").read().decode()

    def post(self, path: str, **form: str) -> None:
        urlopen(f"http://127.0.0.1:{self.port}{path}", urlencode(form).encode()).close()

    def pgbus(self, *words: str) -> str:
        """What an operator gets who pasted what the demo prints."""
        done = subprocess.run(
            [Path(sys.executable).with_name("pgbus"), *words],
            cwd=PROJECT,
            env={
                **os.environ,
                "SHOP_DATABASE_URL": self.database_url,
                "PGBUS_APP": "demo.shop.app:bus",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

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


@pytest.mark.timeout(240)
def test_orders_of_every_kind_survive_a_killed_worker_and_ctrl_c_leaves_no_process(run_demo, home):
    with run_demo("--orders", str(ORDERS)) as demo, demo.database() as database:
        killed = kill_who_unloads(database)
        collect_when_late(demo, database)
        mend_the_address_of_the_harvest_box(demo, database)

        def states():
            return database.execute(STATES).fetchall()

        eventually(lambda: len(states()) == ORDERS and set(states()) == EXPECTED, within=50)
        for told in (
            f"unload: worker {killed} died while it ran it",
            "unload is tried again",
            "collect has no collected in time; the wait goes on",
            "charge has no payment_confirmed in time; the wait is over",
        ):
            # The line is printed a moment after the event.
            eventually(lambda told=told: told in demo.output)
        check_what_the_demo_proposes(demo, killed)
        eventually(lambda: not database.execute(WITHOUT_RECEIPT).fetchall())
        stock, deliveries = database.execute(KETTLES).fetchone()
        assert stock == 8 - 5 - 5 + 20 * deliveries
        charges = database.execute("SELECT max(tries) FROM gateway.payments GROUP BY key")
        assert len(charges.fetchall()) == ORDERS - WITHOUT_CHARGE, "each card once"
        assert database.execute(PAYMENT).fetchone() == (2, 1, ["consumed"])
        assert "Nothing to mend." in demo.pgbus("doctor")
        assert "We wait for your payment until" in demo.get(page_of("mats", database))

        running = processes_of(home, demo.process)
        assert len(running) > 5, "the demo, a supervisor, two workers, a dispatcher, PostgreSQL"
        database.close()
        assert demo.stop() == 0
        assert "Traceback" not in demo.output
        assert not processes_of(home, demo.process)

    with run_demo("--orders", "0", "--until-idle") as again:
        assert again.process.wait(40) == 0
        assert "1 waiting on charge" in again.output
        assert "1 paused on charge, BankAway" in again.output
        assert not processes_of(home, again.process)


def kill_who_unloads(database):
    (worker,) = eventually(lambda: database.execute(UNLOADING).fetchone(), within=40)
    pid = int(worker.rpartition(":")[2])
    os.kill(pid, signal.SIGKILL)
    return pid


def collect_when_late(demo, database):
    eventually(lambda: database.execute(LATE).fetchone(), within=50)
    page = page_of("otto", database)
    assert "The forwarder is late" in demo.get(page)
    order = page.rpartition("/")[2]
    demo.post("/webhooks/collections", order=order, vehicle="truck 7", event="collection 7")


def mend_the_address_of_the_harvest_box(demo, database):
    run, problem = eventually(lambda: database.execute(FAILED_FAN_OUT).fetchone(), within=50)
    assert problem == "1 of 3 jobs dead-lettered"
    assert "Something is in the way" in demo.get(page_of("vera", database))
    (orchard,) = database.execute(
        "SELECT id FROM shop.vendors WHERE name = 'Vale Orchard'"
    ).fetchone()
    demo.post(f"/vendors/{orchard}", address="orders@vale-orchard.example")
    demo.pgbus("workflows", "resume", run, "--reason", "address mended")


def check_what_the_demo_proposes(demo, killed):
    for line in (
        f"Try `kill -9 {killed}` now",
        "Mend it on http",
        ".venv/bin/pgbus workflows signal ",
        ".venv/bin/pgbus workflows show ",
        ".venv/bin/pgbus workflows list --status waiting",
        ".venv/bin/pgbus doctor",
    ):
        assert line in demo.output
    assert demo.output.count("Try `.venv/bin/pgbus workflows resume ") == 1, "fumio's order"


def page_of(customer, database):
    (order,) = database.execute(
        "SELECT id FROM shop.orders WHERE customer = %s", [customer]
    ).fetchone()
    return f"/orders/{order}"


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
