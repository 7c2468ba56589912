"""`pgbus queues`, `jobs` and `dead-letters`, as operators and scripts use them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import psycopg
import pytest
from click.testing import CliRunner

from pgbus import Workflow, job, step
from pgbus.engine.cli import bulk, main
from pgbus.engine.insights import matches
from pgbus.engine.jobs import control
from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage.claims import Idle


@job(queue="parcels")
def weigh(*numbers): ...


@job(queue="parcels", max_retries=1)
def stamp():
    raise LookupError("no\x1b[2Jstamps")


@job(queue="parcels", max_retries=0)
def lose():
    raise OSError("gone")


class OfParcels(Workflow):
    @step(job_options={"queue": "parcels"})
    def go(self): ...


@pytest.fixture
def pgbus(database, monkeypatch):
    """Runs the command on the test's database; returns what it printed."""
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)

    def pgbus(*arguments, expect=0):
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == expect, (result.output, result.exception)
        return result.stdout if not expect else result.stderr

    return pgbus


@pytest.fixture
def work(bus, driver):
    def work():
        while not isinstance(taken := driver.take(), Idle):
            for delivery in taken:
                execute(bus.services, delivery)

    return work


@pytest.fixture
def parcels(bus, work):
    """A job that waits, one that failed, a dead letter, and a run's step."""
    with bus.active():
        stamp.enqueue()
        lose.enqueue()
        work()
        weigh.enqueue(12345678901234567890)
    return OfParcels.start()


def cells(line):
    return [cell for cell in line.split("  ") if cell]


def is_away(*_given, **_named):
    raise psycopg.OperationalError("server closed the connection")


#: What acts on many, with what it asks when the parcels are there.
ASKS = {
    "jobs retry --all": "Retry 1 failed job now? Each runs as soon as a worker is free, ",
    "jobs discard --all": "Discard 1 failed job? Each goes to the archive of its queue; ",
    "jobs discard --all --enqueued": "Discard 2 enqueued jobs? Each goes to the archive ",
    "jobs discard --all --enqueued --limit 1": (
        "Discard 1 enqueued job? Each goes to the archive of its queue; a batch counts its job as "
        "discarded. More match; those of the first queues, the oldest of each first, are taken. "
    ),
    "dead-letters retry --all": "Send 1 dead letter anew? Each goes to the queue that it ",
    "dead-letters discard --all": "Discard 1 dead letter? Each goes to the archive of its queue. ",
    "queues purge parcels": "Discard 2 jobs of parcels? Each goes to the archive; ",
}


class TestOfMany:
    @pytest.fixture
    def kept(self, database):
        """All messages, and what failed."""
        tables = ("q_pgbus_parcels", "a_pgbus_parcels", "q_pgbus_parcels_dlq")

        def kept():
            rows = [database.rows(f"SELECT msg_id, vt, headers FROM pgmq.{one}") for one in tables]
            return [*rows, database.rows("SELECT message_id FROM pgbus.failed_jobs")]

        return kept

    @pytest.mark.parametrize("words", ASKS)
    def test_without_a_terminal_nothing_is_asked_and_nothing_done(
        self, pgbus, parcels, kept, words
    ):
        before = kept()
        told = json.loads(pgbus(*words.split(), "--json", expect=2))
        assert told["error"] == "There is no terminal to ask on; --yes goes on without asking."
        assert kept() == before

    @pytest.mark.parametrize(("words", "question"), ASKS.items())
    def test_a_no_to_the_question_does_nothing(
        self, pgbus, parcels, kept, monkeypatch, words, question
    ):
        terminal = SimpleNamespace(isatty=lambda: True)
        monkeypatch.setattr(bulk, "sys", SimpleNamespace(stdin=terminal))
        before = kept()
        told = pgbus(*words.split(), "--json", expect=1)
        assert told.startswith(question)
        assert told.endswith('[y/N]: {"error": "Nothing was done."}\n')
        assert kept() == before

    def test_what_waits_has_no_error_that_could_narrow_it(self, pgbus, parcels, kept):
        before = kept()
        for verb in (("list",), ("discard", "--all", "--yes")):
            assert "--error narrows those that failed" in pgbus(
                "jobs", *verb, "--enqueued", "--error", "OSError", expect=2
            )
        assert kept() == before

    def test_the_limit_is_taken_and_more_is_told(self, pgbus, parcels):
        discard = ("jobs", "discard", "--all", "--yes", "--enqueued")
        assert pgbus(*discard, "--limit", 1) == "Discarded 1. There may be more; ask again.\n"
        assert pgbus(*discard) == "Discarded 1.\n"
        assert pgbus(*discard) == "No enqueued job matches.\n"
        assert json.loads(pgbus(*discard, "--json"))["done"] == 0

    def test_all_are_all_however_many_searches_find_them(self, pgbus, parcels, monkeypatch):
        for bound in ("_WINDOW", "_MOST_LOOKS"):
            monkeypatch.setattr(matches, bound, 1)
        assert pgbus("jobs", "discard", "--all", "--yes", "--enqueued") == "Discarded 2.\n"

    def test_an_outage_midway_is_3_and_names_the_message_in_doubt(
        self, pgbus, parcels, monkeypatch
    ):
        monkeypatch.setattr(control.jobs, "withdraw", is_away)
        result = CliRunner().invoke(
            main, ["jobs", "discard", "--all", "--yes", "--enqueued", "--json"]
        )
        told = json.loads(result.stdout)
        assert (result.exit_code, told["in_doubt"]) == (3, "message 1 of pgbus_parcels")
        assert (told["done"], told["may_be_more"]) == (0, True)


class TestQueues:
    def test_a_list_tells_what_waits_and_what_is_paused(self, pgbus, parcels):
        pgbus("queues", "pause", "parcels", "--actor", "alice", "--reason", "audit")
        head, queue, _, letters_head, letters = pgbus("queues", "list").splitlines()
        assert cells(head)[:3] == ["QUEUE", "DUE", "IN HAND"]
        assert queue.split()[:4] == ["pgbus_parcels", "2", "0", "1"]
        assert "paused by alice since 20" in queue
        assert queue.endswith(": audit")
        assert cells(letters_head)[0] == "DEAD LETTERS"
        assert cells(letters)[0] == "pgbus_parcels_dlq"

    def test_without_queues_a_list_says_so(self, pgbus):
        assert pgbus("queues", "list") == "There is no queue yet.\n"

    def test_a_list_is_a_document_too(self, pgbus, parcels):
        told = json.loads(pgbus("queues", "list", "--json"))
        [queue] = told["queues"]
        assert (queue["queue"], queue["visible"], queue["later"]) == ("pgbus_parcels", 2, 1)
        assert told["pauses"] == {}
        assert told["dead_letters"][0]["messages"] == 1

    def test_a_pause_and_a_resume_say_by_whom(self, pgbus, parcels):
        assert "parcels: paused by cli:" in pgbus("queues", "pause", "parcels")
        again = pgbus("queues", "pause", "parcels", "--actor", "bob")
        assert again.startswith("parcels: was before: paused by cli:")
        told = json.loads(pgbus("queues", "pause", "parcels", "--json"))
        assert (told["done"], told["pause"]["reason"]) == (False, None)
        assert "parcels: is read again; it was paused by cli:" in pgbus(
            "queues", "resume", "parcels"
        )
        assert pgbus("queues", "resume", "parcels") == "parcels: was not paused\n"

    def test_a_queue_that_does_not_exist_is_1(self, pgbus, parcels):
        for command in (("pause",), ("resume",), ("show",), ("purge", "--yes")):
            assert "There is no queue 'mail' here; there are: parcels." in pgbus(
                "queues", *command, "mail", expect=1
            )

    def test_a_purge_says_what_stays(self, pgbus, parcels):
        assert pgbus("queues", "purge", "parcels", "--yes") == (
            "parcels: 2 jobs discarded; 1 of runs stay\n"
        )
        assert json.loads(pgbus("queues", "purge", "parcels", "--yes", "--json")) == {
            "discarded": 0,
            "steps": 1,
            "in_hand": 0,
            "may_be_more": False,
        }

    def test_a_purge_that_postgresql_ends_says_how_far_it_came(self, pgbus, parcels, monkeypatch):
        once = control.jobs.withdraw_free

        def then_is_away(*of, **options):
            monkeypatch.setattr(control.jobs, "withdraw_free", is_away)
            return once(*of, **options)

        monkeypatch.setattr(control, "_WINDOW", 1)
        monkeypatch.setattr(control.jobs, "withdraw_free", then_is_away)
        told = pgbus("queues", "purge", "parcels", "--yes", "--json", expect=3)
        assert json.loads(told)["error"].startswith("PostgreSQL went away after 1: nobody knows")

    def test_its_messages_are_shown_page_by_page(self, pgbus, parcels):
        first = pgbus("queues", "show", "parcels", "--limit", 2).splitlines()
        assert "test_cli_queues.stamp" in first[1]
        assert "failed, again at 20" in first[1]
        assert "12345678901234567890" in first[2]
        place = first[-1].removeprefix("After: --after ")
        second = pgbus("queues", "show", "parcels", "--after", place)
        assert f"run {parcels.workflow_id}" in second
        back = second.splitlines()[-1].removeprefix("Before: --before ")
        assert pgbus("queues", "show", "parcels", "--before", back).splitlines()[1:3] == first[1:3]
        told = json.loads(pgbus("queues", "show", "parcels", "--json"))
        assert [one["kind"] for one in told["page"]["messages"]] == ["job", "job", "step"]

    def test_a_text_that_is_no_place_is_wrong_usage(self, pgbus, parcels):
        for command in (("queues", "show", "parcels"), ("jobs", "list"), ("dead-letters", "list")):
            assert "no place in a list" in pgbus(*command, "--after", "x", expect=2)
            assert "exclude" in pgbus(*command, "--after", "x", "--before", "y", expect=2)


class TestJobs:
    def test_failed_ones_are_listed_with_their_error(self, pgbus, parcels):
        head, line = pgbus("jobs", "list").splitlines()
        assert cells(head)[0] == "QUEUE"
        assert line.startswith("pgbus_parcels  1 ")
        assert line.endswith("LookupError: no [2Jstamps")
        [told] = json.loads(pgbus("jobs", "list", "--json"))["jobs"]
        assert (told["read_count"], told["state"]) == (1, "retrying")
        assert pgbus("jobs", "list", "--error", "OSError") == "Nothing matches.\n"

    def test_enqueued_ones_are_listed_without_those_of_runs(self, pgbus, parcels):
        told = json.loads(pgbus("jobs", "list", "--enqueued", "--json"))
        assert [one["job"].rpartition(".")[2] for one in told["messages"]] == ["stamp", "weigh"]
        lines = pgbus("jobs", "list", "--enqueued", "--queue", "parcels").splitlines()
        assert len(lines) == 3

    def test_one_is_retried_by_its_place(self, pgbus, parcels):
        retry = ("jobs", "retry", "pgbus_parcels", 1)
        assert pgbus(*retry) == "Message 1 of pgbus_parcels: retried.\n"
        assert "it is due, and waits for a worker only" in pgbus(*retry, expect=1)
        of_run = ("jobs", "retry", "pgbus_parcels", 4)
        assert "it is a run's" in pgbus(*of_run, expect=1)
        assert "there is no such message any more" in pgbus(*retry[:3], 9, expect=1)

    def test_one_is_discarded_by_its_place(self, pgbus, database, parcels):
        told = json.loads(
            pgbus("jobs", "discard", "pgbus_parcels", 1, "--reason", "no stamps", "--json")
        )
        assert told == {"queue": "pgbus_parcels", "message_id": 1, "effect": "done"}
        kept = database.value(
            "SELECT headers -> 'discarded' ->> 'reason' FROM pgmq.a_pgbus_parcels"
        )
        assert kept == "no stamps"

    def test_all_that_match_are_retried_and_discarded(self, pgbus, parcels):
        assert pgbus("jobs", "retry", "--all", "--yes", "--queue", "parcels") == "Retried 1.\n"
        assert pgbus("jobs", "retry", "--all", "--yes") == "Retried 0. 1 had moved on.\n"
        assert pgbus("jobs", "discard", "--all", "--yes") == "Discarded 1.\n"
        everything = ("jobs", "discard", "--all", "--yes", "--enqueued", "--json")
        assert json.loads(pgbus(*everything))["done"] == 1

    @pytest.mark.parametrize(
        "words",
        [
            [],
            ["pgbus_parcels"],
            ["pgbus_parcels", "x"],
            ["pgbus_parcels", "1", "--all", "--yes"],
            ["pgbus_parcels", "1", "--job", "x"],
        ],
    )
    def test_what_is_neither_one_nor_all_is_wrong_usage(self, pgbus, bus, words):
        bus.ensure_queues(["pgbus_parcels"])
        for verb in (("jobs", "retry"), ("jobs", "discard"), ("dead-letters", "retry")):
            pgbus(*verb, *words, expect=2)


class TestDeadLetters:
    def test_they_are_listed_with_why(self, pgbus, parcels):
        _, line = pgbus("dead-letters", "list").splitlines()
        assert line.startswith("pgbus_parcels_dlq  1 ")
        assert line.endswith("OSError: gone")
        [letter] = json.loads(pgbus("dead-letters", "list", "--json"))["letters"]
        assert (letter["source"], letter["message"]["job"]) == (
            "pgbus_parcels",
            f"{__name__}.lose",
        )

    def test_one_is_sent_anew(self, pgbus, database, parcels):
        retry = ("dead-letters", "retry", "pgbus_parcels_dlq", 1)
        assert pgbus(*retry) == "Message 1 of pgbus_parcels_dlq: sent anew.\n"
        assert "there is no such message any more" in pgbus(*retry, expect=1)
        assert "There is no queue" in pgbus("dead-letters", "retry", "pgbus_parcels", 1, expect=1)

    def test_all_that_match_are_discarded(self, pgbus, parcels):
        discard = ("dead-letters", "discard", "--all", "--yes")
        assert pgbus(*discard, "--error", "LookupError") == "No dead letter matches.\n"
        assert pgbus(*discard, "--error", "OSError") == "Discarded 1.\n"
