"""The processes and what each has in hand; trouble of the bus itself in words."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations
from support.sites import rows_of, visible_text

from pgbus import Workflow, step
from pgbus.dashboard.pages import processes as pages
from pgbus.dashboard.presenters import health
from pgbus.dashboard.words import Words
from pgbus.engine.insights.health import Hint, Problem

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ENGLISH = Words(NullTranslations(), Locale("en"), ZoneInfo("UTC"), NOW)
PAGE = "/pgbus/processes"


class Milling(Workflow):
    @step
    def grind(self): ...


@pytest.fixture
def beats(database):
    def beats(kind="worker", pid=1, ago=0, **details):
        database.rows(
            "INSERT INTO pgbus.processes (process_id, kind, host, pid, revision, details, started_at,"
            " heartbeat_at) VALUES (%s, %s, 'mill', %s, 'b81d07e', %s, now() - interval '2 hours',"
            " now() - make_interval(secs => %s))",
            *(str(uuid4()), kind, pid, json.dumps(details), ago),
        )

    return beats


def in_hand(number):
    return {"job": f"shop.job_{number}", "queue": "pgbus_mail", "message_id": number, "seconds": 90}


def test_without_processes_the_page_says_how_to_start_some(client):
    told = visible_text(client.get(PAGE))
    assert "No process serves this bus: runs and jobs wait." in told
    assert "pgbus start --app MODULE:BUS" in told


def test_each_process_is_told_with_what_it_runs_and_for_how_long(bus, driver, beats, read):
    with bus.active():
        run = Milling.start()
    driver.worker = driver.worker.__class__("mill:1", "r1", driver.worker.unguarded)
    driver.take()
    running = [in_hand(number) for number in range(7)]
    beats(queues=["pgbus_mail", "pgbus_mail_p0", "pgbus_workflows"], running=running)
    beats("dispatcher", 2)
    beats("supervisor", 3, children=[1, 2])
    page = read(PAGE)
    rows = list(rows_of(page).values())
    [worker] = [row for row in rows if row.startswith("mill:1 worker")]
    assert re.fullmatch(
        r"mill:1 worker Healthy Milling grind \d+ m?s (shop\.job_\d 1 min 30 s ){5}and 2 more "
        r"mail, workflows just now 2 h ago b81d07e",
        worker,
    )
    assert f'href="/pgbus/workflows/{run.workflow_id}"' in page
    assert 'href="/pgbus/messages/pgbus_mail/4"' in page
    assert any("watches 2 processes" in row for row in rows)
    assert any("timer and sweep" in row for row in rows)
    assert "3 processes serve this bus; every heartbeat is seconds old." in page


def test_a_silent_process_comes_first_and_says_how_far_it_is_known(beats, read, client):
    beats(pid=1, queues=[])
    beats(pid=2, ago=540, queues=[], running=[in_hand(1)])
    first, second = rows_of(read(PAGE)).values()
    assert "mill:2 worker Silent shop.job_1 10 min 30 s as of its last heartbeat" in first
    assert "nothing" in second
    assert "mill:2 went silent 9 min ago." in visible_text(client.get(PAGE))


def test_more_processes_than_are_listed_are_counted(beats, client, monkeypatch):
    monkeypatch.setattr(pages, "MOST", 1)
    for pid in range(3):
        beats(pid=pid)
    assert "And 2 more." in visible_text(client.get(PAGE))


def test_trouble_is_told_on_the_pages_that_it_concerns(beats, database, client):
    beats(queues=[], listening=False, clock=0)
    clocks = "The clock of mill:1 is"
    for path, expected in (
        (
            "/pgbus/processes",
            ["Notifications do not reach mill:1.", clocks, "No dispatcher is running."],
        ),
        ("/pgbus/", ["Notifications do not reach mill:1.", clocks]),
        ("/pgbus/queues", []),
    ):
        page = client.get(path)
        titles = [
            html.unescape(re.sub(r"<[^>]*>", "", one))
            for one in re.findall(r'<div class="note \w+">.*?<b>(.*?)</b>', page.text, re.DOTALL)
        ]
        assert len(titles) == len(expected)
        assert all(any(title.startswith(one) for title in titles) for one in expected), path
    database.rows("DELETE FROM pgbus.processes")
    assert "No worker is running." in visible_text(client.get("/pgbus/queues"))


@pytest.mark.parametrize(
    ("hint", "tone", "told"),
    [
        (
            Hint(problem=Problem.OLD_SCHEMA),
            "bad",
            "The database is not migrated to this release. Run pgbus migrate with this release.",
        ),
        (
            Hint(problem=Problem.NO_WORKER),
            "bad",
            "No worker is running. Runs and jobs wait for one: pgbus start --app MODULE:BUS.",
        ),
        (
            Hint(problem=Problem.NO_DISPATCHER, number=1),
            "bad",
            (
                "No dispatcher is running, and 1 deadline has passed. Deadlines, steps due later and the "
                "repair of what died wait for one: pgbus dispatcher."
            ),
        ),
        (
            Hint(problem=Problem.NO_LISTEN, subject="mill:1"),
            "warn",
            (
                "Notifications do not reach mill:1. It finds work later, by polling. Behind a pooler, "
                "give listen_url a direct connection."
            ),
        ),
        (
            Hint(
                problem=Problem.VACUUM_HELD_BACK,
                subject="psql of <ann>, pid 7",
                since=NOW - timedelta(hours=2),
            ),
            "warn",
            (
                "A transaction has been open for 2 h: psql of <ann>, pid 7. While it is open, no table is "
                "cleaned of dead rows, and queues become slow. End it: SELECT pg_terminate_backend(PID)."
            ),
        ),
        (
            Hint(problem=Problem.BLOATED_QUEUE, subject="pgbus_mail", number=90_000),
            "warn",
            (
                "The table of pgbus_mail holds 90,000 dead rows, and was never vacuumed. Reading it becomes "
                'slow. Check autovacuum, or run VACUUM pgmq."q_pgbus_mail".'
            ),
        ),
        (
            Hint(
                problem=Problem.BLOATED_QUEUE,
                subject="m",
                number=90_000,
                since=NOW - timedelta(days=3),
            ),
            "warn",
            (
                "The table of m holds 90,000 dead rows, and was last vacuumed 3 d ago. Reading it becomes "
                'slow. Check autovacuum, or run VACUUM pgmq."q_m".'
            ),
        ),
        (
            Hint(problem=Problem.CLOCKS_APART, subject="mill:1", seconds=-7.0),
            "warn",
            (
                "The clock of mill:1 is 7 s behind the database's. Its logs show other times. Correct "
                "its clock (NTP)."
            ),
        ),
    ],
    ids=lambda given: given.problem if isinstance(given, Hint) else "",
)
def test_each_trouble_says_what_is_wrong_and_what_mends_it(hint, tone, told):
    (line,) = health.lines([hint], ENGLISH)
    text = html.unescape(re.sub(r"<[^>]*>", "", f"{line.title} {line.mend}"))
    assert (line.tone, text) == (tone, told)


def test_each_trouble_is_told_on_a_page():
    on_pages = health.OF_HOME | health.OF_QUEUES | health.OF_PROCESSES
    assert frozenset(Problem) - on_pages == {Problem.UNREAD_QUEUE, Problem.PAUSED_QUEUE}
