"""The list of queues, one queue with its messages, and what an operator does with them."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations
from support.sites import asks_of, dialog_of, hidden_fields, rows_of, toast_of, visible_text

from pgbus import Batch, Workflow, job, step
from pgbus.dashboard.pages import queues as pages
from pgbus.dashboard.presenters import queue_actions, queues
from pgbus.dashboard.presenters.queues import QueueTotal
from pgbus.dashboard.words import Words
from pgbus.engine.errors import DatabaseAway
from pgbus.engine.insights.queues import QueuePause
from pgbus.engine.jobs import control
from pgbus.engine.jobs.control import Purged

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ENGLISH = Words(NullTranslations(), Locale("en"), ZoneInfo("UTC"), NOW)
PAGE = "/pgbus/queues"
MAIL = f"{PAGE}/letters"
HOSTILE = "<script>alert(1)</script>"


@job(queue="letters")
def stamp(number, **more): ...


class Posting(Workflow):
    @step(job_options={"queue": "letters"})
    def post(self): ...


@pytest.fixture
def letters(bus):
    """A queue with a free job, a batch's member, a run's step and a job that is not due."""
    with bus.active():
        stamp.enqueue(1, copy=True)
        with Batch.open(description="cards") as batch:
            batch.add(stamp, 2)
        run = Posting.start()
        stamp.options(wait=timedelta(hours=3)).enqueue(3)
    return batch.batch_id, run


def plain(markup):
    return html.unescape(re.sub(r"<[^>]*>", "", str(markup)))


def total(**more):
    given = {"visible": 3, "in_flight": 0, "later": 0, "due_since": NOW - timedelta(seconds=9)}
    return QueueTotal("mail", **given | {"served": True} | more)


PAUSE = QueuePause("dashboard:alice", "vendor is down", NOW - timedelta(minutes=40))
IDLE = total(visible=0, due_since=None)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ([], "No message waits for a worker."),
        ([IDLE], "No message waits for a worker."),
        ([total()], "Every queue is read: 3 messages are due."),
        (
            [total(served=False), IDLE],
            "No worker reads the queue mail, where 3 messages are due.",
        ),
        ([total(served=False)], "No worker reads any queue: 3 messages are due."),
        (
            [total(pause=PAUSE, served=False), IDLE],
            "The queue mail is paused, and 3 messages are due there.",
        ),
        (
            [total(due_since=NOW - timedelta(hours=1))],
            "The workers do not keep up with mail: its first message has been due for 1 h.",
        ),
    ],
)
def test_the_list_opens_with_what_is_wrong_or_how_much_is_due(found, sentence):
    assert " ".join(map(plain, queues.opening(found, ENGLISH))) == sentence


def test_of_many_queues_in_trouble_the_first_are_told_and_the_others_counted():
    told = queues.opening([IDLE, *[total(served=False)] * 5], ENGLISH)
    assert len(told) == 4
    assert plain(told[-1]) == "And 2 more queues are not read as they should be."


@pytest.mark.parametrize(
    ("purged", "tone", "told"),
    [
        (
            Purged(discarded=1, steps=0, in_hand=0, may_be_more=False),
            "good",
            "1 job of mail was discarded.",
        ),
        (
            Purged(discarded=0, steps=10_001, in_hand=1, may_be_more=True),
            "warn",
            (
                "0 jobs of mail were discarded. 10,000+ steps of runs stayed. 1 job was in a worker's hands and "
                "goes on. Half a minute was not enough for all: purge it again."
            ),
        ),
    ],
)
def test_a_purge_tells_what_it_took_and_what_it_left(purged, tone, told):
    toast = queue_actions.purged(purged, "mail", ENGLISH)
    assert (toast.tone, toast.text) == (tone, told)


def test_an_empty_list_says_how_a_queue_comes_to_be(read):
    assert "No queue yet" in read(PAGE)


def test_a_queue_is_one_line_of_all_its_priorities(bus, letters, driver, read):
    with bus.active():
        stamp.options(priority=0).enqueue(0)
    driver.take()
    row = rows_of(read(PAGE))["letters"]
    assert re.fullmatch(
        r"letters Name it where workers start: --queues\. Nobody reads it 5 3 1 1 .*s Pause… Purge…",
        row,
    )


def test_a_queue_is_paused_with_a_reason_and_goes_on(bus, letters, make_site, database):
    client = make_site(web_actor=lambda _request: "alice").test_client()

    def press(address, **fields):
        asked = dialog_of(client.get(address).text)
        answer = client.post(asked.action, data=asked.fields | fields)
        return client.get(answer.location).text

    (ask,) = asks_of(client.get(PAGE).text)["Pause…"][:1]
    assert "nothing more from it" in dialog_of(client.get(ask).text).text
    assert database.rows("SELECT FROM pgbus.queues") == []
    page = press(ask, reason=" vendor is down ")
    assert toast_of(page) == ("good", "letters is paused: workers take nothing more from it.")
    assert (
        "letters Paused just now by dashboard:alice: vendor is down Paused"
        in rows_of(page)["letters"]
    )
    # The press of a page that was older, and of one that was sent twice.
    tone, text = toast_of(press(ask, reason="me too"))
    assert (tone, "was already paused. Paused" in text, "alice" in text) == ("warn", True, True)
    (resume,) = asks_of(client.get(PAGE).text)["Resume…"]
    assert "vendor is down" in dialog_of(client.get(resume).text).text
    assert toast_of(press(resume)) == ("good", "letters goes on: workers take it again.")
    assert toast_of(press(resume)) == ("warn", "Nothing was done: letters is not paused.")


def test_a_purge_needs_the_name_and_leaves_what_is_a_runs(letters, client, read, confirm, bus):
    batch_id, _run = letters
    [ask] = asks_of(read(MAIL))["Purge…"]
    asked = dialog_of(read(ask))
    assert "Steps of runs stay" in asked.text
    for typed in ("", "letter", "LETTERS"):
        answer = client.post(asked.action, data=asked.fields | {"typed": typed, "reason": "spam"})
        assert answer.status_code == 422
        assert "Type letters to purge it." in dialog_of(answer.text).text
        assert ">\nspam</textarea>" in answer.text
    assert len(rows_of(read(MAIL))) == 4
    page = confirm(ask, typed=" letters ", reason="spam")
    assert toast_of(page) == ("good", "3 jobs of letters were discarded. 1 step of a run stayed.")
    assert [row.split(" ")[1] for row in rows_of(page).values()] == ["Step"]
    assert "1 of 1 job failed" in visible_text(client.get(f"/pgbus/batches/{batch_id}"))


def test_a_queues_messages_are_told_by_what_they_are_and_lead_to_what_they_belong_to(letters, read):
    batch_id, run = letters
    page = read(MAIL)
    first, second, third, last = rows_of(page).values()
    assert f"Due {__name__}.stamp (1, copy=true) job · 1 due for" in first
    assert "(2) job of a batch" in second
    assert "Step of a run" in third
    assert "Later" in last
    assert "due in 3 h" in last
    assert f'href="/pgbus/batches/{batch_id}"' in page
    assert f'href="/pgbus/workflows/{run.workflow_id}"' in page
    assert "Due: 3, in flight: 0, later: 1" in page


def test_pages_of_messages_lead_on_and_back(bus, read, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    with bus.active():
        for number in range(5):
            stamp.enqueue(number)

    def link(page, rel):
        [href] = re.findall(rf'href="([^"]+)" rel="{rel}"', page)
        return html.unescape(href)

    def numbers(page):
        return [key.rpartition(":")[2] for key in rows_of(page)]

    first = read(MAIL)
    second = read(link(first, "next"))
    last = read(link(second, "next"))
    assert [*numbers(first), *numbers(second), *numbers(last)] == ["1", "2", "3", "4", "5"]
    assert numbers(read(link(last, "prev"))) == ["3", "4"]
    assert 'rel="next"' not in last
    # A dialog of a later page stays with it.
    [ask] = asks_of(second)["Pause…"]
    assert dialog_of(read(ask)).action == link(first, "next")


def test_what_a_message_holds_is_shown_as_the_host_allows(bus, database, make_site):
    with bus.active():
        stamp.enqueue("secret")
        stamp.enqueue("x" * 3000)
    database.rows("SELECT pgmq.send('pgbus_letters', to_jsonb(%s::text))", HOSTILE)
    redacted = make_site(
        redact=lambda kind, value: f"({kind} {type(value).__name__})"
    ).test_client()
    page = redacted.get(MAIL).text
    hidden, large, odd = rows_of(page).values()
    assert "(payload dict)" in hidden
    assert "3.1 KB" in large
    assert 'Message without a job "(payload str)" nothing that pgbus sent' in odd
    assert "secret" not in page + redacted.get("/pgbus/messages/pgbus_letters/1").text
    shown = make_site().test_client().get(MAIL).text
    assert HOSTILE not in shown
    assert html.escape(HOSTILE, quote=False) in shown


def test_what_the_host_denies_is_neither_offered_nor_done(letters, make_site, database):
    client = make_site(can=lambda _request, action: action == "pause_queue").test_client()
    page = client.get(PAGE).text
    assert set(asks_of(page)) == {"Pause…"}
    purge = {"ask": "purge_queue", "of": "letters"}
    assert dialog_of(client.get(PAGE, query_string=purge).text) is None
    token = {"csrf_token": hidden_fields(page)["csrf_token"]}
    answer = client.post(PAGE, data=purge | token | {"typed": "letters"})
    told = toast_of(client.get(answer.location).text)
    assert told == ("bad", "Nothing was done: you are not allowed to do that.")
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_letters") == 4


def test_a_form_that_no_page_made_does_nothing(letters, press, client, read):
    for fields in ({}, {"ask": "explode", "of": "letters"}, {"ask": "pause_queue"}):
        answer = press(PAGE, **fields)
        assert toast_of(read(answer.location))[1].startswith("Nothing was done: the form names")
    answer = press(PAGE, ask="pause_queue", of="nowhere")
    assert toast_of(read(answer.location))[1] == "Nothing was done: there is no queue nowhere."
    assert client.post(PAGE, data={"ask": "pause_queue", "of": "letters"}).status_code == 400
    assert "Resume…" not in read(PAGE)


@pytest.mark.parametrize(
    ("where", "told"),
    [("of_logical", "Nothing was done. Press again later."), ("pauses", "It is not known whether")],
)
def test_an_outage_says_whether_anything_can_have_been_done(
    letters, press, monkeypatch, where, told
):
    def away(*_arguments):
        raise DatabaseAway("gone")

    if where == "of_logical":
        monkeypatch.setattr("pgbus.engine.insights.queues.of_logical", away)
    else:
        monkeypatch.setattr(control.storage, "pause", lambda *_given, **_by: away())
    answer = press(PAGE, ask="pause_queue", of="letters")
    assert answer.status_code == 503
    assert told in visible_text(answer)


@pytest.mark.parametrize(
    ("address", "status", "told"),
    [
        (f"{PAGE}/nowhere", 404, "No such queue"),
        (f"{MAIL}?after=x", 400, "after is x"),
        (f"{MAIL}?after=a:1&before=a:1", 400, "nothing, where the other cursor is given"),
        (f"{PAGE}?ask=explode", 400, "ask is explode"),
        (f"{PAGE}?ask=pause_queue", 400, "of is"),
        ("/pgbus/messages/pgbus_letters/99", 404, "No such message"),
        ("/pgbus/messages/pgbus_nowhere/1", 404, "No such queue"),
        ("/pgbus/messages/pgbus_letters/x", 404, "No such page"),
    ],
)
def test_what_is_not_there_or_cannot_be_read_is_told(letters, client, address, status, told):
    answer = client.get(address)
    assert answer.status_code == status
    assert told in visible_text(answer)
