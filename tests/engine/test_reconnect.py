"""A worker whose PostgreSQL goes away: it waits, says so once, and goes on as if nothing was."""

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support import apps
from support.database import Database
from support.server import make_home
from support.waiting import eventually
from support.workers import Process, Stage, running

from pgbus import Pgbus
from pgbus.engine.storage import database as storage
from pgbus.engine.storage import processes
from pgbus.engine.storage.migrate import migrate

AWAY = "PostgreSQL does not answer"
BACK = "PostgreSQL answers again"
SETTINGS = {"threads": 4, "polling_interval": 0.2}


@pytest.fixture
def stage(database):
    return Stage(database)


@pytest.fixture
def crashing(crashable_server):
    """A stage whose server the test may stop, kill and start."""
    database = Database(crashable_server)
    migrate(database.engine, "pgbus")
    database.engine.dispose()
    return Stage(database)


@pytest.fixture
def crashing_bus(crashing):
    bus = Pgbus(database_url=crashing.database.url)
    yield bus
    bus.close()


def pass_seconds(seconds):
    """Returns when this much time has passed: how long the server is away is the test's point."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > until)


def started(bus, number=50):
    return [bus.start(apps.Hardy) for _ in range(number)]


def ended(stage, runs):
    """Everything ends; no step is completed twice, and none is missing."""
    stage.finished(*runs, within=60)
    for run in runs:
        completed = [step for step, _, status in stage.attempts(run) if status == "completed"]
        assert completed == ["one", "two", "three", "four"]


def finished(stage):
    return stage.database.value("SELECT count(*) FROM pgbus.workflows WHERE status = 'finished'")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_postgresql_in_the_midst_of_fifty_runs(crashing, crashing_bus, mode):
    with running(crashing.database, **SETTINGS, visibility_timeout=2) as worker:
        runs = started(crashing_bus)
        eventually(lambda: finished(crashing) >= 3)
        crashing.database.server.restart(mode)
        ended(crashing, runs)
        worker.says("LISTEN works", times=2)
        worker.stop()
    assert worker.log.count(AWAY) == worker.log.count(BACK) <= 2
    assert worker.log.count("LISTEN does not work") == 1


def test_a_server_that_is_away_for_seconds_is_said_once_and_not_asked_in_a_loop(
    crashing, crashing_bus
):
    server = crashing.database.server
    with running(crashing.database, **SETTINGS) as worker:
        worker.says("LISTEN works")
        runs = started(crashing_bus, 5)
        ended(crashing, runs)
        server.stop("immediate")
        worker.says(AWAY)
        used = worker.cpu_seconds()
        pass_seconds(4)
        assert worker.cpu_seconds() - used < 0.5
        assert (worker.log.count(AWAY), worker.log.count(BACK)) == (1, 0)
        server.start()
        worker.says(BACK)
        runs = started(crashing_bus, 5)
        ended(crashing, runs)
        worker.says("LISTEN works", times=2)
        worker.stop()
    assert worker.log.count(AWAY) == worker.log.count(BACK) == 1
    assert "Traceback" not in worker.log


def test_a_body_that_ends_while_the_server_is_away_completes_when_it_is_back(
    crashing, crashing_bus
):
    server = crashing.database.server
    with running(crashing.database, **SETTINGS) as worker:
        run = crashing_bus.start(apps.Patient, path=str(server.home / "go"))
        eventually(lambda: crashing.attempts(run) == [("one", 1, "in_progress")])
        server.stop()
        worker.says(AWAY)
        (server.home / "go").touch()
        server.start()
        crashing.finished(run)
    assert crashing.attempts(run) == [("one", 1, "completed")]
    assert "stall_detected" not in crashing.events(run)


def test_a_worker_that_starts_before_the_server_waits_for_it(crashing, crashing_bus):
    run = crashing_bus.start(apps.Plain)
    crashing.database.server.stop()
    worker = Process(crashing.database.url, "worker", SETTINGS)
    try:
        worker.says(AWAY)
        crashing.database.server.start()
        crashing.finished(run)
        worker.stop()
    finally:
        worker.end()


@pytest.mark.parametrize("kind", ["worker", "dispatcher", "start"])
def test_a_process_told_to_stop_while_the_server_is_away_ends_in_order(crashing, kind):
    with running(crashing.database, kind, **SETTINGS) as process:
        eventually(lambda: crashing.database.value("SELECT count(*) FROM pgbus.processes"))
        crashing.database.server.stop()
        if kind != "start":
            process.says(AWAY)
        process.stop()
    crashing.database.server.start()


def test_a_stop_ends_the_pause_before_the_next_try(bus, monkeypatch):
    monkeypatch.setattr(storage, "_FIRST_PAUSE", 60)
    stop = threading.Event()
    tried = []

    def work(_connection):
        tried.append(1)
        raise psycopg.OperationalError

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(bus.services.database.persistently, work, stop=stop)
        eventually(lambda: bus.services.database.failures)
        stop.set()
        assert isinstance(told.exception(10), psycopg.OperationalError)
    assert len(tried) == 2


def test_every_connection_terminated_in_the_midst_of_fifty_runs(bus, stage):
    with running(stage.database, **SETTINGS, visibility_timeout=2) as worker:
        runs = started(bus)
        for share in (5, 15, 25, 35):
            eventually(lambda share=share: finished(stage) >= share, within=30)
            stage.database.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'pgbus%' AND datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )
        ended(stage, runs)
        worker.says("LISTEN works", times=2)
        worker.stop()
    assert "Taking messages failed" not in worker.log


def test_a_server_that_becomes_read_only_counts_as_gone(crashing, crashing_bus):
    server = crashing.database.server
    run = crashing_bus.start(apps.FarOff)
    with running(crashing.database, **SETTINGS) as worker:
        worker.says("LISTEN works")
        eventually(lambda: len(crashing.attempts(run)) == 2)
        _set_read_only(server, "on")
        worker.says(AWAY)
        used = worker.cpu_seconds()
        pass_seconds(2)
        assert worker.cpu_seconds() - used < 0.4
        assert (worker.log.count(AWAY), worker.log.count(BACK)) == (1, 0)
        _set_read_only(server, "off")
        worker.says(BACK)
        ended(crashing, started(crashing_bus, 5))
        worker.stop()
    assert "Traceback" not in worker.log


def test_a_connection_to_a_server_that_became_read_only_is_left_for_a_fresh_one(bus, stage):
    """After a failover the old primary may live on: only a new connection finds the new one."""
    database = bus.services.database
    with database.held():
        with database.autocommit() as connection:
            (before,) = connection.row("SELECT pg_backend_pid()")
            connection.rows("SET default_transaction_read_only = on")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), database.autocommit() as used:
            processes.leave(used, "00000000-0000-0000-0000-000000000000")
        with database.autocommit() as connection:
            assert connection.row("SELECT pg_backend_pid()") != (before,)


def test_a_lost_listen_is_said_once_costs_a_poll_at_most_and_comes_back(bus, stage):
    with running(stage.database, polling_interval=0.3) as worker:
        worker.says("LISTEN works")
        stage.database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgbus listen' AND datname = current_database()"
        )
        worker.says("LISTEN does not work")
        stage.finished(bus.start(apps.Plain), within=3)
        worker.says("LISTEN works", times=2)
        assert worker.log.count("LISTEN does not work") == 1


def test_a_listen_url_that_nobody_answers_is_said_once_and_work_is_found_by_polling(bus, stage):
    with _blackhole() as port, running(
        stage.database, polling_interval=0.2, listen_url=f"postgresql://x@127.0.0.1:{port}/x"
    ) as worker:  # fmt: skip
        for _ in range(10):
            stage.finished(bus.start(apps.Plain), within=1.5)
        worker.says("LISTEN does not work")
        assert stage.database.value("SELECT details->>'listening' FROM pgbus.processes") == "false"


def test_a_queue_that_appears_is_found_without_notifications_too(bus, stage):
    with _blackhole() as port, running(
        stage.database, polling_interval=0.2, listen_url=f"postgresql://x@127.0.0.1:{port}/x"
    ):  # fmt: skip
        stage.finished(bus.start(apps.Plain))
        bus.start(apps.Urgent)
        eventually(lambda: stage.notes == ["urgent"], within=2)


@contextmanager
def _blackhole():
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _set_read_only(server, value):
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture
def pooler(database):
    """A PgBouncer in transaction mode before the test's server; gives the URL through it."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("No pgbouncer here; install it to test behind it (apt-get install pgbouncer)")
    server = psycopg.conninfo.conninfo_to_dict(database.url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home = make_home()
    home.chmod(0o755)
    (home / "users").write_text('"postgres" ""\n')
    (home / "ini").write_text(
        f"[databases]\n"
        f"* = host={server['host']} port={server.get('port', 5432)} user={server['user']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\nauth_file = {home}/users\npool_mode = transaction\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    # It refuses to be root; the server's own user may enter the folder of its socket.
    socket_folder = Path(server["host"])
    user = socket_folder.owner() if socket_folder.is_dir() else "nobody"
    process = subprocess.Popen(
        [program, *(["-u", user] if os.geteuid() == 0 else []), home / "ini"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"postgresql://postgres@127.0.0.1:{port}/{database.name}"
    try:
        eventually(lambda: _answers(url, process))
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(home)


def _answers(url, process):
    assert process.poll() is None, "pgbouncer ended"
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_behind_a_transaction_pooler_work_is_found_by_polling_and_that_is_said(bus, stage, pooler):
    settings = {**SETTINGS, "prepared_statements": False}
    with running(pooler, **settings) as worker:
        ended(stage, started(bus, 20))
        worker.says("Notifications do not arrive")
        eventually(
            lambda: (
                stage.database.value("SELECT details->>'listening' FROM pgbus.processes") == "false"
            )
        )
        worker.stop()
    assert not re.search("Traceback|LISTEN works", worker.log)


def test_behind_a_transaction_pooler_a_listen_url_may_bypass_it(bus, stage, pooler):
    settings = {"prepared_statements": False, "polling_interval": 60}
    with running(pooler, **settings, listen_url=stage.database.url) as worker:
        worker.says("LISTEN works")
        stage.finished(bus.start(apps.Plain), within=2)
