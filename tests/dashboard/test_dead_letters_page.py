"""What was given up: the list, one dead letter, and what an operator decides."""

from __future__ import annotations

import html
import json
import re

import pytest
from support.sites import asks_of, dialog_of, rows_of, toast_of, visible_text

from pgbus import Batch, job
from pgbus.dashboard.pages import dead_letters as pages

PAGE = "/pgbus/dead-letters"
done = []


class BridgeOut(Exception):
    pass


@job(queue="ferry", max_retries=0)
def cross(number, *, storm=True):
    if storm and not done:
        raise BridgeOut(f"crossing {number}")
    done.append(number)


@pytest.fixture(autouse=True)
def forget():
    done.clear()


@pytest.fixture
def given_up(bus, work):
    """Crossings that were given up, one after the other."""

    def given_up(number=1):
        with bus.active():
            for crossing in range(number):
                cross.enqueue(crossing)
                work()

    return given_up


def test_where_nothing_was_given_up_the_page_says_so(read):
    page = read(PAGE)
    assert "No job was given up." in page
    assert "Nothing was given up" in page
    assert (asks_of(page), "Filter" in page) == ({}, False)


def test_dead_letters_are_told_with_why_and_counted_in_the_navigation(given_up, read, client):
    given_up(2)
    page = read(PAGE)
    newest, oldest = rows_of(page).values()
    assert re.fullmatch(
        rf"{__name__}\.cross \(1\) job · 2 {__name__}\.BridgeOut crossing 1 1 just now pgbus_ferry "
        r"Retry… Discard…",
        newest,
    )
    assert "crossing 0" in oldest
    told = visible_text(client.get(PAGE))
    assert "2 dead letters wait for a decision; the newest came just now." in told
    assert "All 2 ferry 2 Filter" in told
    assert "Dead letters 2 2 wait for somebody" in visible_text(client.get("/pgbus/workflows"))


def test_a_dead_letter_goes_back_to_its_queue_once_and_is_done_there(
    bus, given_up, read, confirm, work, database
):
    given_up()
    [ask] = asks_of(read(PAGE))["Retry…"]
    assert "goes to the queue it came from" in dialog_of(read(ask)).text
    asked = dialog_of(read(ask))
    page = confirm(ask, reason="bridge is mended")
    told = f"{__name__}.cross is in its queue again; its tries start over."
    assert toast_of(page) == ("good", told)
    assert "Nothing was given up" in page
    assert dialog_of(read(ask)) is None
    assert asked.fields["of"] == "pgbus_ferry_dlq:1"
    done.append("mended")
    with bus.active():
        work()
    assert done == ["mended", 0]
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_ferry") == 0


def test_a_form_that_is_sent_again_does_nothing_more(given_up, read, client, database):
    given_up()
    asked = dialog_of(read(asks_of(read(PAGE))["Retry…"][0]))
    for tone in ("good", "warn"):
        answer = client.post(asked.action, data=asked.fields)
        assert toast_of(read(answer.location))[0] == tone
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_ferry") == 1


def test_a_dead_letter_is_discarded_with_who_and_why(given_up, read, confirm, database):
    given_up()
    page = read("/pgbus/dead-letters/pgbus_ferry_dlq/1")
    assert "crossing 0" in page
    [ask] = asks_of(page)["Discard…"]
    page = confirm(ask, reason="nobody waits for it")
    assert toast_of(page) == ("good", f"{__name__}.cross is discarded.")
    [(headers,)] = database.rows("SELECT headers FROM pgmq.a_pgbus_ferry_dlq")
    assert "nobody waits for it" in str(headers)
    read("/pgbus/dead-letters/pgbus_ferry_dlq/1", status=404)


def test_a_press_on_dead_letters_takes_what_the_page_showed_and_counts_honestly(
    given_up, read, client, database
):
    given_up(3)
    asked = dialog_of(read(asks_of(read(PAGE))["Retry all…"][0]))
    assert asked.text.startswith("Send 3 dead letters back to their queues?")
    given_up(1)
    database.rows("SELECT pgmq.delete('pgbus_ferry_dlq', 2::bigint)")
    answer = client.post(asked.action, data=asked.fields)
    assert toast_of(read(answer.location)) == ("good", "Sent back 2; 1 had already moved on.")
    assert list(rows_of(read(PAGE))) == ["pgbus_ferry_dlq:4"]
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_ferry") == 2


def test_dead_letters_are_narrowed_by_queue_job_and_error(bus, given_up, read, confirm, database):
    given_up(2)
    database.rows("SELECT pgbus.make_queue('pgbus_other_dlq'), pgbus.make_queue('pgbus_other')")
    database.rows("""SELECT pgmq.send('pgbus_other_dlq', '{"job": "others"}')""")
    for query, number in (
        ("queue=ferry", 2),
        ("queue=other", 1),
        (f"job={__name__}.cross", 2),
        (f"error_class={__name__}.BridgeOut&queue=ferry", 2),
        ("error_class=LookupError", 0),
    ):
        assert len(rows_of(read(f"{PAGE}?{query}"))) == number, query
    assert "No dead letter matches" in read(f"{PAGE}?error_class=LookupError")
    [ask] = asks_of(read(f"{PAGE}?queue=ferry"))["Discard all that match…"]
    assert toast_of(confirm(ask)) == ("good", "Discarded 2.")
    assert list(rows_of(read(PAGE))) == ["pgbus_other_dlq:1"]


def test_pages_of_dead_letters_lead_on(given_up, read, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    given_up(3)
    first = read(PAGE)
    [following] = re.findall(r'href="([^"]+)" rel="next"', first)
    assert list(rows_of(read(html.unescape(following)))) == ["pgbus_ferry_dlq:1"]


@pytest.mark.parametrize(
    "body",
    ["null", "7", '"<b>text</b>"', "[[]]", '{"job": 7}', "9" * 5000],
    ids=lambda given: given[:9],
)
@pytest.mark.parametrize(
    "told",
    [
        None,
        "text",
        {"error": 5, "read_count": "many", "queue": {"a": 1}},
        {"error": {"backtrace": 3, "causes": "x"}, "error_class": "<i>Odd</i>"},
        {"error": {"backtrace": [1, None], "causes": [7, {"message": [1]}]}, "error_message": 9},
    ],
    ids=lambda told: str(told)[:40],
)
def test_a_dead_letter_may_be_anything(bus, client, database, body, told):
    database.rows("SELECT pgbus.make_queue('pgbus_odd'), pgbus.make_queue('pgbus_odd_dlq')")
    headers = None if told is None else json.dumps({"dead_letter": told})
    database.rows("SELECT pgmq.send('pgbus_odd_dlq', %s::jsonb, %s::jsonb)", body, headers)
    for address in (PAGE, "/pgbus/dead-letters/pgbus_odd_dlq/1"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert "Message without a job" in visible_text(answer)
        assert "<b>text" not in answer.text
        assert "<i>Odd" not in answer.text


def test_a_batchs_dead_letter_leads_to_it_and_errors_are_shown_as_the_host_allows(
    bus, work, make_site
):
    with bus.active(), Batch.open() as batch:
        batch.add(cross, "secret")
    work()
    client = make_site(redact=lambda kind, _value: f"({kind})").test_client()
    for address in (PAGE, "/pgbus/dead-letters/pgbus_ferry_dlq/1"):
        page = client.get(address).text
        assert "secret" not in page
        assert "(error)" in page
        assert "(payload)" in page
        assert f'href="/pgbus/batches/{batch.batch_id}"' in page


@pytest.mark.parametrize(
    ("address", "status"),
    [
        (f"{PAGE}?queue=nowhere", 400),
        (f"{PAGE}?after=x", 400),
        (f"{PAGE}?ask=retry_job&of=q:1", 400),
        (f"{PAGE}/pgbus_ferry_dlq/7?ask=retry_dead_letters&as_of=2026-11-29T03:00Z", 400),
        (f"{PAGE}/pgbus_ferry_dlq/7", 404),
        (f"{PAGE}/pgbus_ferry/1", 404),
        (f"{PAGE}/pgbus_ferry_dlq/x", 404),
    ],
)
def test_what_is_no_dead_letter_is_told(given_up, client, address, status):
    given_up()
    assert client.get(address).status_code == status
