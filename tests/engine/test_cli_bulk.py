"""`--all`: on which runs, what is asked first, what is told; and Ctrl-C, of jobs and a purge, too."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import psycopg
import pytest
from support.racing import waiting_for_a_lock
from support.waiting import eventually

from pgbus import Batch, Workflow, job, step
from pgbus.engine.definition import registry
from pgbus.engine.insights import runs
from pgbus.engine.runner import bulk
from pgbus.engine.states import Verb

ALL = ("--all", "--yes")
APP = ("--app", "shop:make")


class Haul(Workflow):
    @step
    def load(self):
        if self.arguments.get("fails"):
            raise ConnectionError("no crane")

    @step(wait=86_400)
    def unload(self): ...


class Tow(Workflow):
    @step
    def pull(self): ...


@job(queue="crates")
def stow(): ...


HAUL = f"{__name__}.Haul"


def statuses(of):
    return [run.reload().status for run in of]


@pytest.mark.parametrize(
    "narrowed",
    [
        ("--class", HAUL, "--step", "load"),
        ("--error", "ConnectionError"),
        ("--stuck", "paused_error"),
        ("--class", HAUL, "--error", "ConnectionError", "--status", "paused"),
    ],
)
def test_exactly_the_runs_that_match_are_resumed_in_the_name_of_who_asks(
    pgbus, bus, driver, narrowed
):
    failed = [Haul.start(fails=True) for _ in range(2)]
    driver.drain()
    others = [Tow.start().pause(), Haul.start()]
    words = ("--actor", "cli:ann", "--reason", "crane is back")
    result = pgbus("workflows", "resume", *ALL, *APP, *narrowed, *words)
    assert result.stdout == "Resumed 2.\n"
    assert statuses(failed + others) == ["ready", "ready", "paused", "ready"]
    for run in failed:
        resumed = next(event for event in run.events if event.event == "resumed")
        assert (resumed.actor, resumed.reason) == ("cli:ann", "crane is back")


def test_without_a_filter_a_verb_takes_all_that_it_can_be_asked_of(pgbus, bus, driver):
    sleeping, ready, paused = Haul.start(), Tow.start(), Tow.start().pause()
    driver.perform(driver.take()[0])
    told = json.loads(pgbus("workflows", "run-now", *ALL, "--json").stdout)
    assert told == {
        "done": 2,
        "moved_on": 0,
        "failed": 0,
        "first_failure": None,
        "in_doubt": None,
        "may_be_more": False,
    }
    driver.drain()
    assert statuses([sleeping, ready, paused]) == ["finished", "finished", "paused"]
    assert pgbus("workflows", "cancel", *ALL, "--status", "ready").stdout == "No run matches.\n"
    assert pgbus("workflows", "cancel", *ALL).stdout == "Cancelled 1.\n"


def test_the_oldest_are_taken_up_to_the_limit_and_more_is_told(pgbus, bus):
    found = [Tow.start() for _ in range(4)]
    words = ("workflows", "cancel", *ALL, "--limit", 2)
    assert pgbus(*words).stdout == "Cancelled 2. There may be more; ask again.\n"
    assert statuses(found) == ["cancelled", "cancelled", "ready", "ready"]
    assert pgbus(*words).stdout == "Cancelled 2.\n"


def test_a_run_that_moved_after_the_beginning_is_left_alone(pgbus, bus, monkeypatch):
    first, moved = Tow.start().pause(), Tow.start().pause()
    oldest = runs.oldest

    def then_moved(*given, **named):
        found = oldest(*given, **named)
        moved.resume().pause(actor="dashboard:bob")
        return found

    monkeypatch.setattr(runs, "oldest", then_moved)
    told = pgbus("workflows", "cancel", *ALL, "--status", "paused").stdout
    assert told == "Cancelled 1. 1 had moved on.\n"
    assert statuses([first, moved]) == ["cancelled", "paused"]


def test_runs_that_fail_are_counted_with_the_first_reason_and_a_code_of_their_own(
    pgbus, bus, monkeypatch
):
    run, other = Tow.start().pause(), Haul.start().pause()
    monkeypatch.delitem(registry._definitions, f"{__name__}.Tow")
    told = pgbus("workflows", "resume", *ALL, *APP, expect=4).stdout
    assert told.startswith(f"Resumed 1. 1 failed, the first one: resume of run {run.workflow_id}")
    assert statuses([run, other]) == ["paused", "ready"]


def test_an_outage_midway_is_3_and_names_the_run_in_doubt(pgbus, bus, monkeypatch):
    found = [Tow.start() for _ in range(2)]

    def lost(*_given):
        raise psycopg.OperationalError("server closed the connection")

    monkeypatch.setitem(bulk._ACTS, Verb.CANCEL, lost)
    told = json.loads(pgbus("workflows", "cancel", *ALL, "--json", expect=3).stdout)
    assert told["in_doubt"] == found[0].workflow_id
    assert (told["done"], told["may_be_more"]) == (0, True)


def test_it_may_take_longer_than_a_press_in_the_browser(pgbus, bus, monkeypatch):
    monkeypatch.setattr(bulk, "LONGEST_SECONDS", -1.0)
    for _ in range(3):
        Tow.start()
    assert pgbus("workflows", "cancel", *ALL).stdout == "Cancelled 3.\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--all",), "There is no terminal to ask on; --yes goes on without asking."),
        ((), "Give the ID of a run, or --all."),
        (("{run}", *ALL), "Give the ID of a run, or --all."),
        (("{run}", "--step", "pull"), "Filters narrow --all"),
        (("{run}", "--status", "ready"), "Filters narrow --all"),
        ((*ALL, "--status", "finished"), "'finished' is not one of 'ongoing', 'ready'"),
        ((*ALL, "--limit", "0"), "'0' is not a whole number from 1 to 1000000."),
    ],
)
def test_what_does_not_say_which_runs_is_wrong_usage_and_does_nothing(pgbus, bus, words, told):
    run = Tow.start()
    words = [word.format(run=run.workflow_id) for word in words]
    stderr = pgbus("workflows", "cancel", *words, "--json", expect=2).stderr
    assert told in json.loads(stderr)["error"]
    assert statuses([run]) == ["ready"]


def test_a_class_that_matches_nothing_is_told_what_it_should_be(pgbus):
    told = pgbus("workflows", "cancel", *ALL, "--class", "Tow").stdout
    assert told.startswith("No run matches.\n--class takes a whole dotted name")


class Terminal:
    """The command on a terminal, its standard output apart."""

    def __init__(self, database, *words):
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pgbus.engine.cli", *words],
            stdin=slave,
            stderr=slave,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PGBUS_DATABASE_URL": database.url},
        )
        os.close(slave)
        self.shown = ""

    def shows(self, text):
        """Reads until the terminal has shown the text."""
        while text not in self.shown:
            assert select.select([self._master], [], [], 20)[0], f"only {self.shown!r}"
            self.shown += os.read(self._master, 1000).decode()

    def type(self, text):
        os.write(self._master, text.encode())

    def ended(self):
        """The exit code and the standard output."""
        stdout, _ = self.process.communicate(timeout=20)
        os.close(self._master)
        return self.process.returncode, stdout


def test_on_a_terminal_it_asks_first_and_a_no_does_nothing(bus, database):
    found = [Tow.start() for _ in range(2)]
    terminal = Terminal(database, "workflows", "cancel", "--all", "--limit", "1")
    terminal.shows("[y/N]: ")
    assert " ".join(terminal.shown.split()) == (
        "Cancel 1 run for good? A body that runs is not stopped, but its outcome is ignored. "
        "More match; those that were started first are taken. [y/N]:"
    )
    terminal.type("n\n")
    terminal.shows("Error: Nothing was done.")
    assert terminal.ended() == (1, "")
    assert statuses(found) == ["ready", "ready"]


def test_ctrl_c_lets_the_run_in_hand_end_and_tells_what_was_done(bus, database):
    found = [Tow.start() for _ in range(3)]
    with database.connection() as holder:
        holder.execute(
            "SELECT FROM pgbus.workflows WHERE workflow_id = %s FOR UPDATE", [found[1].workflow_id]
        )
        terminal = Terminal(database, "workflows", "cancel", "--all")
        terminal.shows("[y/N]: ")
        terminal.type("y\n")
        terminal.shows("1/3")
        eventually(lambda: waiting_for_a_lock(database))
        terminal.process.send_signal(signal.SIGINT)
    terminal.shows("2/3")
    assert terminal.ended() == (4, "Cancelled 2. Stopped before all were taken.\n")
    assert statuses(found) == ["cancelled", "cancelled", "ready"]


@pytest.fixture
def crates(bus):
    """Three jobs of a batch: they are discarded one by one."""
    with bus.active(), Batch.open() as members:
        for _ in range(3):
            members.add(stow)


@contextmanager
def second_locked(database):
    with database.connection() as holder:
        holder.execute("SELECT FROM pgmq.q_pgbus_crates WHERE msg_id = 2 FOR UPDATE")
        yield


def test_ctrl_c_lets_the_job_in_hand_end_and_json_stays_clean(crates, database):
    with second_locked(database):
        terminal = Terminal(database, *["jobs", "discard", "--all", "--enqueued", "--json"])
        terminal.shows("[y/N]: ")
        terminal.type("y\n")
        eventually(lambda: waiting_for_a_lock(database))
        terminal.process.send_signal(signal.SIGINT)
        terminal.shows("ends it at once.")
    assert "/3" not in terminal.shown
    code, stdout = terminal.ended()
    told = json.loads(stdout)
    assert (code, told["done"], told["may_be_more"]) == (4, 2, True)


def test_ctrl_c_lets_the_transaction_of_a_purge_end_and_what_came_after_the_count_stays(
    crates, bus, database
):
    with second_locked(database):
        terminal = Terminal(database, *["queues", "purge", "crates"])
        terminal.shows("[y/N]: ")
        with bus.active():
            stow.enqueue()
        terminal.type("y\n")
        terminal.shows("1/3")
        eventually(lambda: waiting_for_a_lock(database))
        terminal.process.send_signal(signal.SIGINT)
    terminal.shows("2/3")
    assert terminal.ended() == (
        4,
        "crates: 2 jobs discarded; stopped before all were taken\n",
    )


def test_a_second_ctrl_c_ends_it_at_once_and_tells_how_many_were_taken(crates, database):
    with second_locked(database):
        terminal = Terminal(database, *["jobs", "discard", "--all", "--enqueued", "--yes"])
        terminal.shows("1/3")
        eventually(lambda: waiting_for_a_lock(database))
        terminal.process.send_signal(signal.SIGINT)
        terminal.shows("Ctrl-C again ends it at once.")
        terminal.process.send_signal(signal.SIGINT)
        terminal.shows("Error: Interrupted after 1: nobody knows whether what was in hand is done.")
        assert terminal.ended() == (4, "")
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_crates") == 2
