"""The `pgbus` command as operators and scripts use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import click
import pytest

from pgbus import SignalMatcher, Workflow, step
from pgbus.engine.cli import main
from pgbus.engine.definition import registry
from pgbus.engine.runner.run import Run
from pgbus.engine.states import RunStatus, Verb

NOBODY = "01900000-0000-7000-8000-000000000000"


class Charge(Workflow):
    @step
    def capture(self):
        if self.arguments.get("fails"):
            raise ConnectionError("no\x1b[2J\ncarrier")
        self.output(charge_id=12345678901234567890)

    @step(wait=86_400)
    def remind(self): ...


class Parcel(Workflow):
    @step(wait_for="shipped")
    def notify(self):
        self.output(by=self.require_signal().payload["carrier"])

    @step(wait_for="lost")
    def search(self): ...


class Refund(Workflow):
    @step(wait_for=SignalMatcher("paid", lambda payload: payload["amount"] > 0))
    def pay(self): ...


@pytest.fixture
def paused(bus, driver):
    """A run that is paused on a failed step."""
    run = Charge.start(fails=True)
    driver.drain()
    return run.reload()


def documented(result):
    return json.loads(result.stdout)


def one_line(result):
    (line,) = result.stderr.splitlines()
    return line


class TestList:
    def test_it_shows_each_run_with_what_it_does(self, pgbus, paused):
        head, line = pgbus("workflows", "list").stdout.splitlines()
        assert head.split()[:4] == ["RUN", "CLASS", "SUBJECT", "STATUS"]
        assert line.startswith(paused.workflow_id)
        assert "paused on capture: ConnectionError" in line

    def test_it_says_that_nothing_matches(self, pgbus):
        assert pgbus("workflows", "list").stdout == "No run matches.\n"

    def test_it_says_that_its_default_hides_ended_runs(self, pgbus, bus, paused):
        assert "--status all" not in pgbus("workflows", "list").stdout
        Charge.start().cancel()
        shown = pgbus("workflows", "list").stdout
        assert shown.endswith("\n1 ongoing; --status all shows the rest.\n")
        assert "--status all" not in pgbus("workflows", "list", "--status", "ready").stdout
        paused.cancel()
        told = "No ongoing run matches; --status all shows the rest.\n"
        assert pgbus("workflows", "list", "--class", f"{__name__}.Charge").stdout == told
        assert pgbus("workflows", "list", "--step", "remind").stdout == "No run matches.\n"

    def test_it_does_not_count_what_it_does_not_show(self, pgbus, bus):
        Charge.start().cancel()
        Charge.start()
        Charge.start()
        shown = pgbus("workflows", "list", "--limit", 1).stdout
        assert shown.endswith("\nOngoing ones only; --status all shows the rest.\n")

    def test_it_says_what_a_class_that_matches_nothing_should_be(self, pgbus):
        told = pgbus("workflows", "list", "--class", "Charge").stdout
        assert told == (
            "No run matches.\n"
            "--class takes a whole dotted name, such as shop.workflows.OrderWorkflow.\n"
        )
        told = pgbus("workflows", "list", "--class", "Charge", "--app", "shop:make").stdout
        assert "shop:make knows " in told
        assert f"{__name__}.Charge" in told
        known = pgbus("workflows", "list", "--class", f"{__name__}.Charge")
        assert known.stdout == "No run matches.\n"

    @pytest.mark.parametrize("limit", ["x", "0", "1001"])
    def test_a_limit_that_is_none_is_told_what_it_may_be(self, pgbus, limit):
        told = pgbus("workflows", "list", "--limit", limit, expect=2).stderr
        assert f"'{limit}' is not a whole number from 1 to 1000." in told

    def test_its_cursors_lead_through_the_pages_and_back(self, pgbus, bus):
        ids = [Charge.start().workflow_id for _ in range(3)][::-1]
        first = pgbus("workflows", "list", "--limit", 2).stdout
        *_, older, after = first.split()
        assert (older, [id_ for id_ in ids if id_ in first]) == ("--after", ids[:2])
        second = pgbus("workflows", "list", "--limit", 2, "--after", after).stdout
        *_, newer, before = second.split()
        assert (newer, [id_ for id_ in ids if id_ in second]) == ("--before", ids[2:])
        back = pgbus("workflows", "list", "--limit", 2, "--before", before).stdout
        assert back == first

    @pytest.mark.parametrize("option", ["--after", "--before"])
    def test_a_cursor_that_no_page_gave_is_wrong_usage(self, pgbus, option):
        told = pgbus("workflows", "list", option, NOBODY, expect=2).stderr
        assert f"'{NOBODY}' is no place in a list" in told

    def test_its_document_has_the_runs_and_the_cursors(self, pgbus, bus):
        run = Charge.start()
        page = documented(pgbus("workflows", "list", "--json"))
        assert (page["older"], page["newer"]) == (None, None)
        (listed,) = page["runs"]
        assert listed["workflow_id"] == run.workflow_id
        assert listed["status"] == "ready"
        assert listed["created_at"] == run.created_at.isoformat()

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("--status", "paused"),
            ("--class", f"{__name__}.Charge"),
            ("--step", "capture"),
            ("--error", "ConnectionError"),
        ],
    )
    def test_its_filters_narrow_it(self, pgbus, bus, driver, paused, option, value):
        Charge.start()
        driver.drain()
        assert len(documented(pgbus("workflows", "list", "--json"))["runs"]) == 2
        listed = documented(pgbus("workflows", "list", "--json", option, value))["runs"]
        expected = 2 if option == "--class" else 1
        assert len(listed) == expected
        assert paused.workflow_id in {run["workflow_id"] for run in listed}

    def test_it_finds_one_run_by_id_and_none_by_a_subject_nobody_has(self, pgbus, paused):
        found = pgbus("workflows", "list", "--json", "--id", paused.workflow_id)
        assert len(documented(found)["runs"]) == 1
        assert pgbus("workflows", "list", "--subject-type", "X").stdout == "No run matches.\n"
        assert pgbus("workflows", "list", "--subject-id", "1").stdout == "No run matches.\n"

    def test_two_cursors_at_once_are_wrong_usage(self, pgbus):
        both = ("--after", NOBODY, "--before", NOBODY)
        assert "exclude each other" in pgbus("workflows", "list", *both, expect=2).stderr


class TestShow:
    def test_it_tells_the_trail_in_sentences(self, pgbus, paused):
        resume = ("workflows", "resume", paused.workflow_id, "--app", "shop:make")
        pgbus(*resume, "--actor", "cli:alice", "--reason", "SMTP fixed")
        shown = pgbus("workflows", "show", paused.workflow_id).stdout
        assert "Started by app\n" in shown
        assert "Step started by system (capture, attempt 1)\n" in shown
        assert "Step failed by system (capture, attempt 1, error class ConnectionError)\n" in shown
        assert "Resumed by cli:alice: SMTP fixed\n" in shown

    def test_it_shows_the_attempts_with_durations_and_errors(self, pgbus, paused):
        shown = pgbus("workflows", "show", paused.workflow_id).stdout
        (attempt,) = re.findall(r"^capture +1 .*$", shown, re.MULTILINE)
        assert re.search(r"failed +0\.\d{3} s +\d+\.\d{3} s +\d+\.\d{3} s", attempt)
        assert attempt.endswith("test:1  ConnectionError: no [2J carrier")

    def test_it_says_what_can_be_done(self, pgbus, paused):
        shown = pgbus("workflows", "show", paused.workflow_id).stdout
        assert re.search(r"^actions +resume, resume-at, cancel, skip, signal$", shown, re.MULTILINE)

    def test_it_says_that_a_class_which_is_not_loaded_needs_the_app(self, pgbus, paused, database):
        database.rows("UPDATE pgbus.workflows SET workflow_class = 'gone.Gone'")
        shown = pgbus("workflows", "show", paused.workflow_id).stdout
        hidden = "resume, resume-at, skip"
        assert re.search(rf"^actions +cancel, signal; with --app {hidden}$", shown, re.MULTILINE)

    def test_it_says_that_the_app_does_not_import_the_class(self, pgbus, paused, database):
        database.rows("UPDATE pgbus.workflows SET workflow_class = 'gone.Gone'")
        shown = pgbus("workflows", "show", paused.workflow_id, "--app", "shop:make").stdout
        assert "cancel, signal; resume, resume-at, skip once shop:make imports gone.Gone\n" in shown

    def test_it_says_that_an_ended_run_of_an_unknown_class_offers_nothing(
        self, pgbus, paused, database
    ):
        paused.cancel()
        database.rows("UPDATE pgbus.workflows SET workflow_class = 'gone.Gone'")
        shown = pgbus("workflows", "show", paused.workflow_id).stdout
        assert re.search(r"^actions +none; with --app rerun$", shown, re.MULTILINE)

    def test_it_shows_outputs(self, pgbus, bus, driver):
        run = Charge.start()
        driver.drain()
        shown = pgbus("workflows", "show", run.workflow_id).stdout
        assert '\noutput  capture 1  {"charge_id": 12345678901234567890}\n' in shown

    def test_it_shows_the_newest_error_with_its_lines_until_the_step_is_tried_again(
        self, pgbus, paused
    ):
        shown = pgbus("workflows", "show", paused.workflow_id).stdout
        told = (
            f"\ncapture, attempt 1, failed:\n  ConnectionError: no [2J\n  carrier\n    {__file__}:"
        )
        assert told in shown
        paused.resume()
        assert "failed:" not in pgbus("workflows", "show", paused.workflow_id).stdout

    def test_it_cuts_a_long_error_in_the_table(self, pgbus, paused, database):
        database.rows("UPDATE pgbus.workflow_steps SET error_message = repeat('so ', 100)")
        (row,) = re.findall(
            r"^capture +1 .*$",
            pgbus("workflows", "show", paused.workflow_id).stdout,
            re.MULTILINE,
        )
        _, _, error = row.partition("ConnectionError: ")
        assert 55 < len(error) < 80
        assert error.endswith("so…")

    def test_it_says_when_a_scheduled_step_is_due(self, pgbus, bus, driver):
        run = Charge.start()
        driver.drain()
        run.reschedule(datetime(2040, 1, 31, 8, tzinfo=UTC))
        shown = pgbus("workflows", "show", run.workflow_id).stdout
        told = "Step scheduled by system (remind, attempt 1, due 2040-01-31 08:00:00+00:00)"
        assert told in shown

    def test_its_document_keeps_numbers_exact(self, pgbus, bus, driver):
        run = Charge.start(order_id=9_999_999_999_999_999_999, ratio=0.1)
        driver.drain()
        result = pgbus("workflows", "show", run.workflow_id, "--json")
        shown = documented(result)
        assert shown["arguments"] == {"order_id": 9_999_999_999_999_999_999, "ratio": 0.1}
        assert shown["attempts"][0]["output"] == {"charge_id": 12345678901234567890}
        assert shown["run"]["current_step"] == "remind"
        assert shown["available_actions"] == [str(verb) for verb in run.available_actions]
        assert [event["event"] for event in shown["events"]] == [e.event for e in run.events]

    def test_its_document_cannot_act_on_a_terminal(self, pgbus, paused):
        result = pgbus("workflows", "show", paused.workflow_id, "--json")
        assert "\x1b" not in result.stdout
        assert documented(result)["attempts"][0]["error_message"] == "no\x1b[2J\ncarrier"

    def test_it_lists_the_signals_with_what_took_them(self, pgbus, bus, driver):
        run = Parcel.start()
        driver.drain()
        run.signal("shipped", {"carrier": "D\nHL"}, "evt-1")
        run.signal("lost", {"note": "n" * 100})
        driver.take()
        told = pgbus("workflows", "show", run.workflow_id).stdout
        received = [
            one.received_at.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
            for one in run.signals
        ]
        rows = [re.split(" {2,}", line) for line in told.splitlines()]
        head = ["SIGNAL", "STATUS", "KEY", "STEP", "ATTEMPT", "RECEIVED", "PAYLOAD"]
        place = rows.index(head)
        assert rows[place + 1] == [
            *("shipped", "claimed", "evt-1", "notify", "1"),
            *(received[0], '{"carrier": "D\\nHL"}'),
        ]
        assert rows[place + 2][:3] == ["lost", "pending", received[1]]
        assert len(rows[place + 2][3]) == 80
        assert rows[place + 2][3].endswith("n…")
        signals = documented(pgbus("workflows", "show", run.workflow_id, "--json"))["signals"]
        told = [(one["name"], one["attempt"], one["payload"]) for one in signals]
        assert told == [
            ("shipped", 1, {"carrier": "D\nHL"}),
            ("lost", None, {"note": "n" * 100}),
        ]

    def test_it_says_that_a_long_history_is_cut(self, pgbus, paused):
        shown = pgbus("workflows", "show", paused.workflow_id, "--limit", 2).stdout
        assert shown.endswith("--limit shows more.\n")
        assert "Started by app" not in shown


class TestVerbs:
    def test_every_verb_has_a_command(self):
        names = {verb.replace("_", "-") for verb in Verb}
        assert names <= set(main.commands["workflows"].commands)

    @pytest.mark.parametrize(
        ("verb", "arguments", "status", "text"),
        [
            ("cancel", (), "cancelled", "cancelled on capture at "),
            ("resume", (), "ready", "capture is due"),
            ("resume-at", ("remind",), "ready", "remind is due"),
            ("skip", (), "ready", "remind runs at "),
        ],
    )
    def test_a_paused_run_obeys(self, pgbus, paused, verb, arguments, status, text):
        words = ("workflows", verb, "--app", "shop:make", paused.workflow_id, *arguments)
        assert pgbus(*words).stdout.startswith(f"{paused.workflow_id}: {text}")
        assert paused.reload().status == status

    @pytest.mark.parametrize(
        ("verb", "arguments", "text"),
        [
            ("pause", (), "paused before remind"),
            ("run-now", (), "remind is due"),
            ("reschedule", ("2040-01-31T09:00+01:00",), "remind runs at 2040-01-31 08:00:00+00:00"),
        ],
    )
    def test_a_scheduled_run_obeys_without_the_hosts_code(
        self, pgbus, bus, driver, verb, arguments, text
    ):
        run = Charge.start()
        driver.drain()
        result = pgbus("workflows", verb, run.workflow_id, *arguments)
        assert result.stdout == f"{run.workflow_id}: {text}\n"

    def test_a_rerun_answers_with_the_new_run(self, pgbus, paused):
        paused.cancel()
        words = ("workflows", "rerun", "--app", "shop:make", paused.workflow_id)
        new = documented(pgbus(*words, "--json"))["run"]
        assert paused.reruns == [new["workflow_id"]]
        assert new["status"] == "ready"

    def test_the_actor_is_the_user_unless_told_otherwise(self, pgbus, bus, monkeypatch):
        monkeypatch.setenv("LOGNAME", "carol")
        run = Charge.start()
        pgbus("workflows", "pause", run.workflow_id, "--reason", "deploy")
        assert (run.events[-1].actor, run.events[-1].reason) == ("cli:carol", "deploy")

    def test_times_are_shown_in_the_configured_zone(self, pgbus, bus, driver, monkeypatch):
        monkeypatch.setenv("PGBUS_TIME_ZONE", "Asia/Tokyo")
        run = Charge.start()
        driver.drain()
        result = pgbus("workflows", "reschedule", run.workflow_id, "2040-01-31T00:00Z")
        assert result.stdout.endswith("remind runs at 2040-01-31 09:00:00+09:00\n")

    @pytest.mark.parametrize(
        ("moment", "problem"),
        [("2040-01-31T09:00", "has no time zone"), ("tomorrow", "is no ISO 8601 time")],
    )
    def test_a_moment_that_is_not_exact_is_wrong_usage(self, pgbus, moment, problem):
        assert problem in pgbus("workflows", "reschedule", NOBODY, moment, expect=2).stderr

    @pytest.mark.parametrize("verb", ["resume", "resume-at", "skip", "rerun"])
    def test_a_verb_that_needs_the_class_asks_for_the_app(self, pgbus, verb):
        step_name = ("capture",) if verb == "resume-at" else ()
        result = pgbus("workflows", verb, NOBODY, *step_name, expect=2)
        told = f"{verb} must know the steps of the run's class: give --app module:attribute"
        assert told in result.stderr

    def test_a_refusal_spells_the_verb_as_it_is_typed(self, pgbus, bus):
        words = ("workflows", "resume-at", "--app", "shop:make", Charge.start().workflow_id)
        told = one_line(pgbus(*words, "remind", expect=1))
        assert told.endswith("it is ready, and resume-at needs it paused.")

    def test_the_app_may_come_from_the_environment(self, pgbus, paused, monkeypatch):
        monkeypatch.setenv("PGBUS_APP", "shop:make")
        pgbus("workflows", "resume", paused.workflow_id)
        assert paused.reload().status is RunStatus.READY


@pytest.fixture
def parcel(bus, driver):
    """A run that waits for the signal `shipped`."""
    run = Parcel.start()
    driver.drain()
    return run


class TestSignal:
    def test_it_wakes_the_step_that_waits(self, pgbus, parcel, driver):
        payload = ("--payload", '{"carrier": "DHL"}')
        words = ("workflows", "signal", parcel.workflow_id, "shipped", *payload)
        told = pgbus(*words, "--actor", "cli:alice", "--reason", "by phone").stdout
        due = "notify is due: the signal shipped came"
        assert told == f"{parcel.workflow_id}: shipped received; {due}\n"
        driver.drain()
        assert parcel.reload().outputs == {"notify": {"by": "DHL"}}
        (signal,) = parcel.signals
        assert (signal.actor, signal.reason) == ("cli:alice", "by phone")

    def test_a_key_used_before_says_when(self, pgbus, parcel):
        words = ("workflows", "signal", parcel.workflow_id, "lost", "--idempotency-key", "evt-1")
        told = pgbus(*words).stdout
        assert told.startswith(f"{parcel.workflow_id}: lost received; notify waits for the signal")
        again = pgbus(*words).stdout
        (signal,) = parcel.signals
        received = signal.received_at.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
        assert again.startswith(
            f"{parcel.workflow_id}: lost was received before, at {received}; notify waits"
        )

    def test_its_document_has_the_signal_and_the_run(self, pgbus, parcel):
        words = ("workflows", "signal", parcel.workflow_id, "lost", "--json")
        told = documented(pgbus(*words, "--payload", '{"n": 12345678901234567890, "r": 0.1}'))
        (stored,) = parcel.signals
        assert told["signal"] == {
            "signal_id": stored.signal_id,
            "name": "lost",
            "payload": {"n": 12345678901234567890, "r": 0.1},
            "idempotency_key": None,
            "actor": stored.actor,
            "reason": None,
            "received_at": stored.received_at.isoformat(),
            "duplicate_delivery": False,
        }
        assert told["run"]["waiting_for"] == "shipped"
        assert told["hint"] is None

    def test_of_a_class_that_is_not_loaded_it_says_that_the_payload_was_not_checked(
        self, pgbus, parcel, monkeypatch
    ):
        monkeypatch.setattr(registry, "_definitions", {})
        words = ("workflows", "signal", parcel.workflow_id, "shipped")
        hint = f"the payload was not checked: {parcel.workflow_class} is not loaded"
        assert pgbus(*words).stdout.splitlines()[1:] == [f"Hint: {hint}; give --app"]
        told = documented(pgbus(*words, "--app", "shop:make", "--json"))
        assert told["hint"] == f"{hint}; let shop:make import it"

    def test_of_a_name_that_no_step_waits_for_it_says_so_and_stores_it(self, pgbus, parcel):
        words = ("workflows", "signal", parcel.workflow_id, "shiped", "--idempotency-key", "evt-1")
        hint = f"no step of {parcel.workflow_class} waits for 'shiped'; did you mean 'shipped'?"
        assert pgbus(*words).stdout.splitlines()[1:] == [f"Hint: {hint}"]
        (signal,) = parcel.signals
        assert (signal.name, signal.status) == ("shiped", "pending")
        assert len(pgbus(*words).stdout.splitlines()) == 1  # nothing was stored now

    @pytest.mark.parametrize("form", ["text", "json"])
    def test_a_matcher_that_raises_is_1_and_told_with_its_step(self, pgbus, bus, driver, form):
        run = Refund.start()
        driver.drain()
        words = ("workflows", "signal", run.workflow_id, "paid", *(["--json"] * (form == "json")))
        stderr = pgbus(*words, expect=1).stderr
        told = json.loads(stderr)["error"] if form == "json" else stderr
        assert (
            f"Nothing was stored: the matcher in wait_for of {run.workflow_class}, step 'pay', "
            "raised KeyError: 'amount'" in told
        )
        assert len(stderr.splitlines()) == 1
        assert run.signals == []

    def test_an_error_of_another_origin_keeps_its_traceback(self, parcel, pgbus, monkeypatch):
        monkeypatch.setattr(Run, "signal", Mock(side_effect=KeyError("amount")))
        result = pgbus("workflows", "signal", parcel.workflow_id, "shipped", expect=1)
        assert isinstance(result.exception, KeyError)

    def test_its_document_shows_what_an_application_stored(self, pgbus, parcel):
        moment = datetime(2030, 1, 31, tzinfo=UTC)
        stored = parcel.signal("lost", {"at": moment}, idempotency_key="evt-1")
        words = ("workflows", "signal", parcel.workflow_id, "lost", "--idempotency-key", "evt-1")
        told = documented(pgbus(*words, "--json"))["signal"]
        assert told["duplicate_delivery"]
        assert told["received_at"] == stored.received_at.isoformat()
        assert "2030-01-31" in json.dumps(told["payload"])

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ('{"carrier": }', "no JSON at line 1, column 13: Expecting value."),
            ("[7]", """[7] is no object, such as '{"amount": 7}'."""),
            ("null", "null is no object"),
        ],
    )
    def test_a_payload_that_is_none_is_wrong_usage(self, pgbus, parcel, text, told):
        words = ("workflows", "signal", parcel.workflow_id, "shipped", "--payload", text, "--json")
        assert told in json.loads(pgbus(*words, expect=2).stderr)["error"]
        assert parcel.signals == []

    def test_a_payload_that_cannot_be_stored_is_1_and_told_where(self, pgbus, parcel):
        words = ("workflows", "signal", parcel.workflow_id, "shipped", "--payload", '{"n": NaN}')
        assert "payload.n" in one_line(pgbus(*words, expect=1))

    @pytest.mark.parametrize(
        "words", [("shipped", "--idempotency-key", "k" * 256), ("s" * 256,), ("",)]
    )
    def test_a_name_or_key_that_cannot_be_stored_is_wrong_usage(self, pgbus, parcel, words):
        result = pgbus("workflows", "signal", parcel.workflow_id, *words, expect=2)
        assert "255" in result.stderr

    def test_a_run_that_is_over_refuses_it(self, pgbus, parcel):
        parcel.cancel()
        line = one_line(
            pgbus(
                "workflows", "signal", parcel.workflow_id, "shipped", "--app", "shop:make", expect=1
            )
        )
        assert "it is cancelled, and signal needs it ready or performing" in line

    def test_an_unknown_run_is_1(self, pgbus):
        line = one_line(pgbus("workflows", "signal", NOBODY, "shipped", expect=1))
        assert line == f"Error: There is no run {NOBODY}."


class TestExitCodes:
    def test_a_refused_verb_is_1_and_one_line_that_says_why(self, pgbus, paused):
        result = pgbus("workflows", "pause", paused.workflow_id, expect=1)
        assert "it is paused, and pause needs it ready or performing" in one_line(result)
        assert result.stdout == ""

    @pytest.mark.parametrize("command", ["show", "pause"])
    def test_an_unknown_run_is_1(self, pgbus, command):
        line = one_line(pgbus("workflows", command, NOBODY, expect=1))
        assert line == f"Error: There is no run {NOBODY}."

    def test_an_unknown_step_is_1(self, pgbus, paused):
        words = ("workflows", "resume-at", "--app", "shop:make", paused.workflow_id, "refund")
        assert "refund" in one_line(pgbus(*words, expect=1))

    @pytest.mark.parametrize("command", [("list",), ("show", NOBODY), ("cancel", NOBODY)])
    def test_a_database_that_was_never_migrated_is_1(
        self, pgbus, empty_database, monkeypatch, command
    ):
        monkeypatch.setenv("PGBUS_DATABASE_URL", empty_database.url)
        assert "pgbus migrate" in one_line(pgbus("workflows", *command, expect=1))

    def test_an_id_that_is_none_is_2(self, pgbus):
        assert "not a valid UUID" in pgbus("workflows", "show", "7", expect=2).stderr

    def test_a_bad_setting_is_2_and_named(self, pgbus, monkeypatch):
        monkeypatch.setenv("PGBUS_THREADS", "many")
        assert one_line(pgbus("workflows", "list", expect=2)).startswith("Error: Setting threads")

    def test_an_app_that_cannot_be_found_is_2(self, pgbus):
        result = pgbus("workflows", "list", "--app", "nowhere:bus", expect=2)
        assert "There is no module nowhere" in result.stderr

    def test_a_database_that_is_away_is_3_and_one_line(self, pgbus, monkeypatch, tmp_path):
        monkeypatch.setenv("PGBUS_DATABASE_URL", f"postgresql:///shop?host={tmp_path}")
        line = one_line(pgbus("workflows", "list", expect=3))
        assert line.startswith("Error: PostgreSQL does not answer: connection")

    @pytest.mark.parametrize(
        ("words", "code", "told"),
        [
            (("show", NOBODY), 1, f"There is no run {NOBODY}."),
            (("show", "7"), 2, "'7' is not a valid UUID"),
            (("list", "--limitt", "7"), 2, "No such option"),
            (("list", "--app", "nowhere:bus"), 2, "There is no module nowhere"),
        ],
    )
    def test_with_json_an_error_is_a_document_too(self, pgbus, words, code, told):
        result = pgbus("workflows", *words, "--json", expect=code)
        assert told in json.loads(result.stderr)["error"]
        assert result.stdout == ""

    def test_an_app_that_raises_is_2_and_shown_with_its_line(self, pgbus, tmp_path):
        (tmp_path / "shop.py").write_text("\n1 / 0\n", encoding="utf-8")
        result = pgbus("workflows", "list", "--app", "shop:make", expect=2)
        assert result.stderr == (
            "Error: shop:make cannot be loaded: ZeroDivisionError: division by zero\n"
            f"  {tmp_path / 'shop.py'}:2 in <module>\n"
        )

    def test_the_help_documents_them(self, pgbus):
        told = re.findall(r"^ {4}(\d)  ", pgbus("--help").stdout, re.MULTILINE)
        assert told == ["0", "1", "2", "3", "4"]


def test_it_tells_its_version(pgbus):
    assert pgbus("--version").stdout == f"pgbus {metadata.version('pgbus')}\n"


def test_no_first_line_of_a_commands_help_is_cut(pgbus):
    groups = [name for name, command in main.commands.items() if isinstance(command, click.Group)]
    for words in ((), *([name] for name in groups)):
        assert "..." not in pgbus(*words, "--help").stdout.partition("Commands:")[2]


class TestMigrate:
    def test_it_brings_a_database_to_the_schema_and_may_run_again(
        self, pgbus, empty_database, monkeypatch
    ):
        monkeypatch.setenv("PGBUS_DATABASE_URL", empty_database.url)
        assert "never migrated" in pgbus("migrate", "--check", expect=1).stdout
        for _ in range(2):
            assert pgbus("migrate").stdout == "Schema pgbus is current.\n"
        assert pgbus("migrate", "--check").stdout == "Schema pgbus is current.\n"

    def test_its_script_does_what_it_does(self, pgbus, empty_database, monkeypatch):
        monkeypatch.setenv("PGBUS_DATABASE_URL", empty_database.url)
        script = pgbus("migrate", "--sql").stdout
        assert "never migrated" in pgbus("migrate", "--check", expect=1).stdout
        empty_database.rows(script)
        pgbus("migrate", "--check")

    def test_it_does_not_check_and_print_at_once(self, pgbus):
        assert "exclude" in pgbus("migrate", "--check", "--sql", expect=2).stderr


@pytest.fixture
def process(monkeypatch):
    """Stands in for a process of pgbus; notes with which bus it was run, and returns 7."""
    calls = []

    def run(bus, *rest, supervisor=None):
        calls.append((bus.settings, *rest))
        return 7

    for module, function in {
        "worker": "run_worker",
        "dispatcher": "run_dispatcher",
        "supervisor": "supervise",
    }.items():
        name = f"pgbus.engine.processes.{module}"
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**{function: run}))
    for setting in ("WORKERS", "QUEUES", "THREADS", "LOG_FORMAT"):
        monkeypatch.setenv(f"PGBUS_{setting}", "")
    return calls


class TestProcesses:
    def test_a_workers_options_are_settings_and_its_status_is_the_commands(self, pgbus, process):
        options = ("--queues", "mail,orders", "--threads", 4)
        pgbus("worker", "--app", "shop:make", *options, expect=7)
        ((settings,),) = process
        assert settings.queues == ("mail", "orders")
        assert settings.threads == 4

    @pytest.mark.parametrize("command", ["start", "worker", "dispatcher"])
    def test_each_logs_in_the_format_asked_for(self, pgbus, process, monkeypatch, command):
        configured = []
        monkeypatch.setattr("pgbus.engine.observe.logs.configure", configured.append)
        pgbus(command, "--app", "shop:make", "--log-format", "json", expect=7)
        assert configured == ["json"]

    def test_options_that_are_not_given_leave_the_environment_alone(
        self, pgbus, process, monkeypatch
    ):
        monkeypatch.setenv("PGBUS_THREADS", "3")
        pgbus("worker", "--app", "shop:make", expect=7)
        ((settings,),) = process
        assert settings.threads == 3

    def test_the_supervisor_is_told_the_app_that_its_children_load(self, pgbus, process):
        pgbus("start", "--app", "shop:make", "--workers", 2, expect=7)
        ((settings, app),) = process
        assert (settings.workers, app) == (2, "shop:make")

    def test_the_dispatcher_runs(self, pgbus, process):
        pgbus("dispatcher", "--app", "shop:make", expect=7)
        assert len(process) == 1

    def test_a_bad_option_is_2_and_names_its_setting(self, pgbus, process):
        result = pgbus("worker", "--app", "shop:make", "--threads", "0", expect=2)
        assert one_line(result).startswith("Error: Setting threads")
        assert not process

    @pytest.mark.parametrize("command", ["start", "worker", "dispatcher"])
    def test_none_runs_without_the_hosts_code(self, pgbus, process, command):
        assert "give --app module:attribute" in pgbus(command, expect=2).stderr
        assert not process


@pytest.fixture
def command(database, tmp_path):
    """Runs the installed command as a process of its own, in a folder with the host's code."""
    (tmp_path / "orders.py").write_text(
        "from pgbus import Pgbus, Workflow, step\n"
        f"bus = Pgbus(database_url={database.url!r})\n"
        "class Order(Workflow):\n"
        "    @step\n"
        "    def reserve(self): ...\n",
        encoding="utf-8",
    )
    environment = {name: value for name, value in os.environ.items() if "PGBUS" not in name}

    def command(*words, **variables):
        return subprocess.run(
            [Path(sys.executable).parent / "pgbus", *words],
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return command


@pytest.mark.rows_by_hand
def test_the_installed_command_finds_the_hosts_classes_in_its_folder(command, database, bus):
    run = Charge.start()
    database.rows(
        "UPDATE pgbus.workflows SET workflow_class = 'orders.Order', current_step = 'reserve'"
    )
    database.rows("UPDATE pgbus.workflow_steps SET step_name = 'reserve'")
    assert command("workflows", "pause", run.workflow_id, "--app", "orders:bus").returncode == 0
    resumed = command("workflows", "resume", run.workflow_id, "--json", "--app", "orders:bus")
    assert json.loads(resumed.stdout)["run"]["status"] == "ready"
    assert resumed.stderr == ""


def test_the_installed_command_ends_without_a_traceback(command, database, tmp_path):
    refused = command("workflows", "cancel", NOBODY, PGBUS_DATABASE_URL=database.url)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"Error: There is no run {NOBODY}.\n"
    away = command("workflows", "list", PGBUS_DATABASE_URL=f"postgresql:///x?host={tmp_path}")
    assert away.returncode == 3
    assert "Traceback" not in away.stderr
