"""The lists of jobs, one job, and what an operator does with them."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations
from support.sites import asks_of, dialog_of, hidden_fields, rows_of, toast_of, visible_text

from pgbus import Batch, Workflow, job, step
from pgbus.dashboard.pages import jobs as pages
from pgbus.dashboard.presenters import job_actions
from pgbus.dashboard.presenters.job_actions import BulkPress
from pgbus.dashboard.words import Words
from pgbus.engine.errors import DatabaseAway
from pgbus.engine.insights import matches, messages
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.jobs.bulk import Press
from pgbus.engine.runner.bulk import BulkResult

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ENGLISH = Words(NullTranslations(), Locale("en"), ZoneInfo("UTC"), NOW)
PAGE = "/pgbus/jobs"
FAILED = f"{PAGE}?show=failed"


class OvenCold(Exception):
    pass


@job(queue="oven")
def bake(number):
    try:
        float("dough")
    except ValueError as error:
        raise OvenCold(f"loaf {number} is raw") from error


@job(queue="shelf")
def cool(number): ...


class Breakfast(Workflow):
    @step(job_options={"queue": "oven"})
    def serve(self): ...


@pytest.fixture
def failed(bus, work):
    """Loaves that failed once, the last one last."""

    def failed(number=1):
        with bus.active():
            for loaf in range(number):
                bake.enqueue(loaf)
                work()

    return failed


def due(database):
    """The jobs in the oven that are due, by their messages."""
    return [
        number
        for (number,) in database.rows(
            "SELECT msg_id FROM pgmq.q_pgbus_oven WHERE vt <= now() ORDER BY 1"
        )
    ]


def opening(page):
    [found] = re.findall(r'<p class="lede">(.*?)</p>', page)
    return html.unescape(re.sub(r"<[^>]*>", "", found))


def test_without_jobs_the_page_says_so(read):
    page = read(PAGE)
    assert opening(page) == "No job has failed and waits to be tried again."
    assert "Jobs that were done leave nothing here" in page
    assert asks_of(page) == {}


def test_failed_jobs_are_told_with_why_and_what_comes_the_newest_first(failed, read):
    failed(2)
    page = read(FAILED)
    assert opening(page).startswith("2 jobs have failed and are tried again by themselves;")
    assert "Failed 2" in visible_text_of(page)
    newest, oldest = rows_of(page).values()
    assert "loaf 0 is raw" in oldest
    assert re.fullmatch(
        rf"Failed, tried again {__name__}\.bake pgbus_oven {__name__}\.OvenCold loaf 1 is raw 1 just now "
        r"in \d s Retry… Discard…",
        newest,
    )


def visible_text_of(page):
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))


def test_a_job_is_told_whole_with_the_causes_of_its_failure(failed, read):
    failed()
    page = read("/pgbus/messages/pgbus_oven/1")
    told = visible_text_of(page)
    for text in (
        ".OvenCold loaf 0 is raw",
        "caused by ValueError could not convert",
        '"args": [0]',
    ):
        assert text in told
    assert set(asks_of(page)) == {"Retry…", "Discard…"}
    # Where it was acted on it may be over: the lists tell what came of it.
    [ask] = asks_of(page)["Discard…"]
    assert dialog_of(read(ask)).action == "/pgbus/messages/pgbus_oven/1"


def test_errors_and_bodies_are_shown_as_the_host_allows(failed, make_site):
    failed()
    client = make_site(redact=lambda kind, _value: f"({kind})").test_client()
    told = rows_of(client.get(FAILED).text)["pgbus_oven:1"]
    assert "OvenCold (error) 1" in told
    page = client.get("/pgbus/messages/pgbus_oven/1").text
    assert "raw" not in page
    assert "could not convert" not in page
    assert '"(payload)"' in page


def test_a_failed_job_is_retried_once_however_often_it_is_pressed(
    failed, read, confirm, database, work
):
    failed()
    [ask] = asks_of(read(FAILED))["Retry…"]
    assert due(database) == []
    assert f"{__name__}.bake pgbus_oven 1" in dialog_of(read(ask)).text
    assert due(database) == []
    page = confirm(ask, reason="oven is hot")
    assert toast_of(page) == ("good", f"{__name__}.bake runs as soon as a worker is free.")
    assert due(database) == [1]
    assert "once a worker is free" in rows_of(page)["pgbus_oven:1"]
    assert toast_of(confirm(ask))[1].endswith("bake is due already and waits only for a worker.")
    work()
    # It failed again meanwhile: the old page's press is not for this try.
    assert toast_of(confirm(ask)) == (
        "warn",
        f"Nothing was done: {__name__}.bake was tried again after the page was read.",
    )
    assert due(database) == []


def test_a_discarded_job_leaves_its_failure_and_its_batch_with_it(
    bus, work, read, confirm, database
):
    with bus.active(), Batch.open() as batch:
        batch.add(bake, 1)
    work()
    [ask] = asks_of(read(FAILED))["Discard…"]
    page = confirm(ask, reason="burnt")
    assert toast_of(page) == ("good", f"{__name__}.bake is discarded.")
    assert database.value("SELECT count(*) FROM pgbus.failed_jobs") == 0
    assert database.value("SELECT sum(discarded_jobs) FROM pgbus.batches") == 1
    assert "burnt" in str(database.rows("SELECT headers FROM pgmq.a_pgbus_oven"))
    assert rows_of(page) == {}


def test_a_job_that_is_gone_has_no_dialog_and_the_form_says_so(failed, read, client, database):
    failed()
    [ask] = asks_of(read(FAILED))["Discard…"]
    asked = dialog_of(read(ask))
    database.rows("SELECT pgmq.purge_queue('pgbus_oven')")
    database.rows("DELETE FROM pgbus.failed_jobs")
    assert dialog_of(read(ask)) is None
    answer = client.post(asked.action, data=asked.fields)
    assert toast_of(read(answer.location)) == (
        "warn",
        "Nothing was done: pgbus_oven 1 is not there any more.",
    )


def test_a_failure_whose_message_was_deleted_can_be_forgotten(failed, read, confirm, database):
    failed()
    database.rows("SELECT pgmq.purge_queue('pgbus_oven')")
    page = read(FAILED)
    assert rows_of(page)["pgbus_oven:1"].startswith("Message deleted")
    assert "/messages/" not in page
    [ask] = asks_of(page)["Discard…"]
    assert toast_of(confirm(ask))[0] == "good"
    assert rows_of(read(FAILED)) == {}


def test_a_press_on_all_takes_what_the_page_showed_and_counts_honestly(
    failed, read, client, database
):
    failed(3)
    [ask] = asks_of(read(FAILED))["Retry all…"]
    asked = dialog_of(read(ask))
    assert asked.text.startswith("Run 3 failed jobs now? Of all queues, whatever their error.")
    assert asked.text.endswith("Run 3 now Back, change nothing")
    failed()
    database.rows("UPDATE pgmq.q_pgbus_oven SET vt = now() - interval '1 s' WHERE msg_id = 1")
    before = due(database)
    answer = client.post(asked.action, data=asked.fields | {"reason": "oven is hot"})
    assert toast_of(read(answer.location)) == ("good", "Retried 2; 1 had already moved on.")
    assert (before, due(database)) == ([1], [1, 2, 3])
    again = client.post(asked.action, data=asked.fields)
    assert toast_of(read(again.location)) == ("warn", "Retried 0; 3 had already moved on.")


def test_a_press_on_all_that_match_leaves_the_others(bus, failed, read, confirm, database):
    failed(2)
    with bus.active():
        cool.options(wait=timedelta(hours=1)).enqueue(1)
    page = read(f"{FAILED}&queue=oven&error_class={__name__}.OvenCold")
    [ask] = asks_of(page)["Discard all that match…"]
    assert "Only those of oven" in dialog_of(read(ask)).text
    page = confirm(ask)
    assert toast_of(page) == ("good", "Discarded 2.")
    assert "No job matches" in page
    [ask] = asks_of(read(f"{PAGE}?queue=shelf"))["Discard all that match…"]
    assert "Discard 1 enqueued job?" in dialog_of(read(ask)).text
    assert toast_of(confirm(ask)) == ("good", "Discarded 1.")
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_shelf") == 0


def test_a_dialog_for_more_than_one_press_takes_says_so():
    press = BulkPress(Press.RETRY_FAILED, JobFilter(), NOW, None)
    asked = job_actions.dialog_for_all(press, 501, ENGLISH.rich("all"), ENGLISH, limit=500)
    assert asked.question == "Run the first 500 failed jobs now?"
    assert asked.answer == "Run 500 now"
    told = [str(effect.text) for effect in asked.effects]
    assert "One press takes at most 500, oldest first. Press again for the others." in told
    assert asked.fields["count"] == "501"


@pytest.mark.parametrize(
    ("figures", "tone", "told"),
    [
        ({"done": 2}, "good", "Discarded 2."),
        ({}, "warn", "Nothing was done: none of them is there any more."),
        (
            {"done": 1, "failed": 2, "first_failure": "locked", "in_doubt": "message 7 of q"},
            "bad",
            (
                "Discarded 1. 2 failed, the first one: locked PostgreSQL went away while message 7 of q was in "
                "hand, so check whether that one is done."
            ),
        ),
    ],
)
def test_what_a_press_on_jobs_did_is_told_honestly(figures, tone, told):
    nothing = {"done": 0, "moved_on": 0, "failed": 0, "first_failure": None, "in_doubt": None}
    result = BulkResult(**nothing | {"may_be_more": False} | figures)
    toast = job_actions.outcome_of_all(Press.DISCARD_FAILED, result, result.first_failure, ENGLISH)
    assert (toast.tone, toast.text) == (tone, told)


def test_enqueued_jobs_are_listed_and_no_steps(bus, read):
    with bus.active():
        Breakfast.start()
        bake.options(wait=timedelta(hours=1)).enqueue(7)
        cool.enqueue(8)
    first, second = rows_of(read(PAGE)).values()
    assert "bake (7) job · 2 due in 1 h 0 just now pgbus_oven Run now… Discard…" in first
    assert second.endswith("Discard…")
    assert "Run now…" not in second
    assert list(rows_of(read(f"{PAGE}?queue=shelf"))) == ["pgbus_shelf:1"]
    assert list(rows_of(read(f"{PAGE}?job={__name__}.bake"))) == ["pgbus_oven:2"]


def test_where_what_was_looked_at_has_none_the_page_leads_on(bus, read, monkeypatch):
    monkeypatch.setattr(messages, "_WINDOW", 2)
    monkeypatch.setattr(messages, "_MOST_LOOKS", 1)
    monkeypatch.setattr(pages, "PAGE_SIZE", 1)
    with bus.active():
        for _ in range(3):
            cool.enqueue(1)
        bake.options(queue="shelf").enqueue(1)
    page = read(f"{PAGE}?queue=shelf&job={__name__}.bake")
    assert "None of those looked at so far matches. There are more." in page
    [further] = re.findall(r'<a class="btn primary" href="([^"]+)">Look further', page)
    assert list(rows_of(read(html.unescape(further)))) == ["pgbus_shelf:4"]


def test_a_press_on_all_looks_on_where_only_steps_of_runs_were_looked_at(
    bus, read, client, database, monkeypatch
):
    monkeypatch.setattr(matches, "_WINDOW", 2)
    monkeypatch.setattr(matches, "_MOST_LOOKS", 1)
    for _ in range(2):
        Breakfast.start()
    with bus.active():
        for loaf in range(3):
            bake.enqueue(loaf)
    [ask] = asks_of(read(PAGE))["Discard all…"]
    told = dialog_of(read(ask)).text
    assert told.startswith("Nothing found so far Of all queues. None of those")
    assert "Discard" not in told
    [further] = asks_of(read(ask))["Look further"]
    asked = dialog_of(read(further))
    assert asked.text.startswith("Discard 2 enqueued jobs?")
    assert "Not all messages were looked at: there may be more." in asked.text
    # The third was behind what was looked at.
    answer = client.post(asked.action, data=asked.fields)
    assert toast_of(read(answer.location)) == ("good", "Discarded 2.")
    assert database.value("SELECT max(msg_id) FROM pgmq.q_pgbus_oven") == 5
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_oven") == 3


def test_enqueued_jobs_are_counted_as_far_as_messages_are_looked_at(bus, failed, read, monkeypatch):
    assert tabs_of(read(PAGE)) == "Enqueued 0 Failed 0"
    failed(2)
    for _ in range(3):
        Breakfast.start()
    assert tabs_of(read(PAGE)) == "Enqueued 2 Failed 2"
    assert tabs_of(read(f"{PAGE}?queue=oven")) == "Enqueued Failed"
    monkeypatch.setattr(pages, "COUNT_CAP", 3)
    assert tabs_of(read(PAGE)) == "Enqueued 2+ Failed 2"
    with bus.active():
        for loaf in range(5):
            cool.enqueue(loaf)
    assert tabs_of(read(f"{PAGE}?show=failed")) == "Enqueued 6+ Failed 2"


def test_no_count_is_shown_where_only_steps_of_runs_were_looked_at(read, monkeypatch):
    for _ in range(2):
        Breakfast.start()
    assert tabs_of(read(PAGE)) == "Enqueued 0 Failed 0"
    monkeypatch.setattr(pages, "COUNT_CAP", 1)
    assert tabs_of(read(PAGE)) == "Enqueued Failed 0"


def tabs_of(page):
    [tabs] = re.findall(r'<nav class="tabs".*?</nav>', page, re.DOTALL)
    return visible_text_of(tabs).strip()


def test_pages_of_failed_jobs_keep_their_filter_and_a_press_returns_to_its_page(
    failed, read, client, monkeypatch
):
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    failed(3)
    first = read(f"{FAILED}&queue=oven")
    [older] = re.findall(r'href="([^"]+)" rel="next"', first)
    second = read(html.unescape(older))
    assert [*rows_of(first), *rows_of(second)] == [f"pgbus_oven:{n}" for n in (3, 2, 1)]
    [ask] = asks_of(second)["Discard…"]
    asked = dialog_of(read(ask))
    answer = client.post(asked.action, data=asked.fields)
    assert answer.location == html.unescape(older)
    query = parse_qs(urlsplit(answer.location).query)
    assert (query["show"], query["queue"]) == (["failed"], ["oven"])
    assert "No job matches" in read(answer.location)


def test_what_the_host_denies_of_jobs_is_neither_offered_nor_done(failed, make_site, database):
    failed()
    client = make_site(can=lambda _request, action: action == "retry_job").test_client()
    page = client.get(FAILED).text
    assert set(asks_of(page)) == {"Retry…", "Retry all…"}
    token = {"csrf_token": hidden_fields(page)["csrf_token"]}
    one = {"ask": "discard_job", "of": "pgbus_oven:1", "seen": "1"}
    every = {"ask": "discard_failed", "as_of": "2999-01-01T00:00:00Z", "count": "1"}
    for fields in (one, every):
        assert dialog_of(client.get(PAGE, query_string=fields).text) is None
        answer = client.post(PAGE, data=fields | token)
        told = toast_of(client.get(answer.location).text)
        assert told == ("bad", "Nothing was done: you are not allowed to do that.")
    assert database.value("SELECT count(*) FROM pgbus.failed_jobs") == 1


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"ask": "explode"}, "ask"),
        ({"ask": "retry_dead_letter", "of": "pgbus_oven:1"}, "ask"),
        ({"ask": "discard_dead_letters", "as_of": "2026-11-29T03:00Z"}, "ask"),
        ({"ask": "retry_job"}, "of"),
        ({"ask": "retry_job", "of": "pgbus_oven"}, "of"),
        ({"ask": "retry_job", "of": f"pgbus_oven:{'9' * 30}"}, "of"),
        ({"ask": "retry_job", "of": "pgbus_oven:1", "seen": "x"}, "seen"),
        ({"ask": "retry_failed"}, "as_of"),
        ({"ask": "retry_failed", "as_of": "2026-11-29T03:00Z", "count": "-1"}, "count"),
        ({"ask": "discard_enqueued", "as_of": "2026-11-29T03:00Z", "behind": "x"}, "behind"),
    ],
    ids=str,
)
def test_what_no_page_asked_is_a_bad_parameter_and_its_form_does_nothing(
    client, press, read, fields, name
):
    answer = client.get(PAGE, query_string=fields)
    assert (answer.status_code, f"{name} is" in visible_text(answer)) == (400, True)
    told = toast_of(read(press(PAGE, **fields).location))
    assert told == ("bad", f"Nothing was done: the form names nothing of this page ({name}).")


@pytest.mark.parametrize(
    ("query", "name"),
    [("show=none", "show"), ("queue=nowhere", "queue"), ("show=failed&after=x", "after")],
)
def test_a_bad_parameter_of_the_jobs_is_named(client, query, name):
    answer = client.get(f"{PAGE}?{query}")
    assert (answer.status_code, f"<code>{name}</code>" in answer.text) == (400, True)


def test_a_press_that_could_not_look_for_the_jobs_says_that_nothing_was_done(
    failed, read, confirm, monkeypatch, database
):
    failed()
    [ask] = asks_of(read(FAILED))["Retry all…"]

    def away(*_arguments, **_named):
        raise DatabaseAway("gone")

    monkeypatch.setattr("pgbus.engine.jobs.bulk.reading", away)
    page = confirm(ask)
    assert toast_of(page) == (
        "bad",
        "Nothing was done: PostgreSQL does not answer. Press again later.",
    )
    assert due(database) == []


def test_a_full_list_of_large_jobs_stays_small(bus, client):
    with bus.active():
        for _ in range(30):
            cool.options(wait=timedelta(hours=1)).enqueue('<"&' * 600)
    answer = client.get(PAGE)
    assert len(answer.data) < 150_000
    assert visible_text(answer)
