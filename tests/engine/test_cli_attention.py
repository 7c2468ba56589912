"""`pgbus workflows attention` and `pgbus processes`: what does not go on, and who lets it."""

from __future__ import annotations

import json
import re
from uuid import uuid4

import pytest

from pgbus import Workflow, step
from pgbus.engine.insights import stuck


class Mend(Workflow):
    @step
    def weld(self):
        if self.arguments.get("fails"):
            raise ConnectionError("no\x1b[2J gas " + "at all " * 20)


MEND = f"{__name__}.Mend"


def cells(line):
    return re.split(" {2,}", line)


@pytest.fixture
def stuck_runs(bus, driver):
    """Two failed runs, and one that bob paused."""
    for _ in range(2):
        Mend.start(fails=True)
    driver.drain()
    return Mend.start().pause(actor="cli:bob", reason="audit")


def test_it_shows_the_biggest_group_first_with_its_cause(pgbus, stuck_runs):
    head, failed, paused, total = pgbus("workflows", "attention").stdout.splitlines()
    assert cells(head) == ["RUNS", "SINCE", "CLASS", "STEP", "STUCK", "ERROR", "OF THE NEWEST"]
    number, since, *cause, message = cells(failed)
    assert (number, cause) == ("2", [MEND, "weld", "paused_error", "ConnectionError"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00", since)
    assert message.startswith("no [2J gas at all at all")
    assert len(message) <= 80
    assert message.endswith("…")
    assert cells(paused)[3:] == ["weld", "paused_manual", "none", "paused by cli:bob: audit"]
    assert total == "3 stuck."


def test_the_options_of_a_group_list_its_runs(pgbus, stuck_runs):
    for group in json.loads(pgbus("workflows", "attention", "--json").stdout)["groups"]:
        key = group["key"]
        words = ("--class", key["workflow_class"], "--step", key["step_name"])
        words += ("--stuck", key["reason"], "--error", key["error_class"] or "none")
        listed = json.loads(pgbus("workflows", "list", "--json", *words).stdout)["runs"]
        assert len(listed) == group["count"]
        assert {run["stuck"] for run in listed} == {key["reason"]}


def test_a_group_that_a_resume_ends_says_so(pgbus, stuck_runs, database):
    database.rows(
        'UPDATE pgbus.workflow_steps SET held = \'{"move": "finish"}\' WHERE workflow_id = %s',
        stuck_runs.workflow_id,
    )
    assert "  paused_manual, resume finishes  " in pgbus("workflows", "attention").stdout


def test_where_groups_are_left_out_it_says_so(pgbus, stuck_runs, monkeypatch):
    monkeypatch.setattr(stuck, "_MOST_GROUPS", 1)
    *_, total = pgbus("workflows", "attention").stdout.splitlines()
    assert total == "3 stuck; these are the 1 biggest groups, there are more."
    assert not json.loads(pgbus("workflows", "attention", "--json").stdout)["exhaustive"]


def test_of_a_class_without_stuck_runs_it_says_so_and_what_a_class_is_called(pgbus, stuck_runs):
    told = pgbus("workflows", "attention", "--class", "Mend").stdout
    assert told.startswith("No run is stuck.\n--class takes a whole dotted name")
    assert pgbus("workflows", "attention", "--class", MEND).stdout.endswith("\n3 stuck.\n")


def test_without_a_process_it_says_how_one_begins(pgbus):
    told = "No process runs: pgbus start begins workers and a dispatcher.\n"
    assert pgbus("processes").stdout == told


def test_processes_are_shown_with_what_they_run_the_silent_first(pgbus, bus, driver, database):
    run = Mend.start()
    details = {"running": [{"job": "shop.mail", "queue": "mail", "message_id": 7, "seconds": 5}]}
    for kind, name, ago, told in (
        ("worker", ("test", 1), 2, details),
        ("dispatcher", ("test", 2), 3700, {}),
        ("worker", ("unseen", 3), 0, {}),
    ):
        database.rows(
            "INSERT INTO pgbus.processes VALUES (%s, %s, %s, %s, 'r1', %s,"
            " now() - interval '1 day', now() - make_interval(secs => %s))",
            *(str(uuid4()), kind, *name, json.dumps(told), ago),
        )
    driver.take()
    *lines, left = pgbus("processes", "--limit", 2).stdout.splitlines()
    head, silent, worker, job = map(cells, lines)
    assert head == ["KIND", "HOST", "PID", "REVISION", "LAST BEAT", "RUNS", "SINCE"]
    assert silent == ["dispatcher", "test", "2", "r1", "1:01:40 ago, silent"]
    assert worker[:3] == ["worker", "test", "1"]
    assert re.fullmatch(r"\d s ago", worker[4])
    assert worker[5] == f"{MEND} weld 1 of {run.workflow_id}"
    assert job[1] == "shop.mail, message 7 of mail"
    assert left == "1 more: --limit shows them."
    found = json.loads(pgbus("processes", "--json").stdout)
    assert (found["alive"], found["silent"]) == ({"worker": 2}, {"dispatcher": 1})
