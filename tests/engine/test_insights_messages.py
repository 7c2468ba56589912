"""Messages, failed jobs and dead letters page by page, whatever their bodies are."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from pgbus import Batch, Workflow, job, step
from pgbus.engine.errors import BadCursor, MessageNotFound, QueueNotFound
from pgbus.engine.insights import dead_letters, jobs, matches, messages, queues
from pgbus.engine.insights.jobs import EnqueuedCount, JobFilter
from pgbus.engine.insights.messages import MessageKind, MessageState
from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage.claims import Idle

#: Bodies that no `enqueue` makes.
ODD = [
    None,
    "5",
    "[]",
    '"text"',
    '"batch"',
    "{}",
    '{"job": 5}',
    '{"job": null, "batch": 7}',
    '{"workflow_id": "none"}',
    '{"workflow_id": 12345678901234567890}',
    '{"batch": ["01900000-0000-7000-8000-000000000000", 1]}',
]

POST, FRAIL = f"{__name__}.post", f"{__name__}.frail"


@job(queue="posted")
def post(*numbers): ...


@job(queue="posted")
def frail():
    raise LookupError("nobody home")


@job(queue="posted", max_retries=0)
def mortal(error="LookupError", text="nobody home"):
    raise {"LookupError": LookupError, "OSError": OSError}[error](text)


class Posted(Workflow):
    @step(job_options={"queue": "posted"})
    def go(self): ...


@pytest.fixture
def ask(bus):
    """Asks one of the insights on a connection of its own."""

    def ask(question, *arguments, **options):
        with bus.services.database.autocommit() as connection:
            return question(connection, bus.settings, *arguments, **options)

    return ask


@pytest.fixture
def walked(ask):
    """All entries, page by page there and back, as both ways have them."""

    def walked(question, *arguments, entries, ways=("following", "preceding"), limit=2):
        following, preceding = ways
        pages = [ask(question, *arguments, limit=limit)]
        while place := getattr(pages[-1], following):
            pages.append(ask(question, *arguments, limit=limit, after=place))
        there = [one for page in pages for one in getattr(page, entries)]
        back, page = [*getattr(pages[-1], entries)], pages[-1]
        while place := getattr(page, preceding):
            page = ask(question, *arguments, limit=limit, before=place)
            back[:0] = getattr(page, entries)
        assert back == there
        return there

    return walked


@pytest.fixture
def work(bus, driver):
    """Executes the jobs that are due."""

    def work():
        while not isinstance(taken := driver.take(), Idle):
            for delivery in taken:
                execute(bus.services, delivery)

    return work


def send(bus, database, body, headers=None, queue="pgbus_posted"):
    bus.ensure_queues(["pgbus_posted", queue])
    return database.value(
        "SELECT pgmq.send(%s, %s::jsonb, %s::jsonb)", queue, body, headers and json.dumps(headers)
    )


def places(found):
    return [(one.queue.removeprefix("pgbus_posted"), one.message_id) for one in found]


def test_a_queues_messages_come_in_the_order_in_which_they_are_delivered(bus, walked):
    with bus.active():
        for priority in (1, 2, 0, 1, 0, 1):
            post.options(priority=priority).enqueue()
    order = [("_p0", 1), ("_p0", 2), ("", 1), ("", 2), ("", 3), ("_p2", 1)]
    for limit in (1, 2, 3, 7):
        found = walked(queues.waiting, "posted", entries="messages", limit=limit)
        assert places(found) == order


def test_a_message_says_what_it_is_and_what_it_waits_for(bus, database, driver, work, ask):
    with bus.active():
        frail.enqueue()
        work()
        post.enqueue(12345678901234567890)
        driver.take()
        post.options(wait=timedelta(hours=1)).enqueue()
        with Batch.open() as members:
            members.add(post, 7)
    run = Posted.start()
    failed, in_hand, later, member, of_run = ask(queues.waiting, "posted", limit=9).messages
    kinds = [one.kind for one in (failed, in_hand, later, member, of_run)]
    job, states = MessageKind.JOB, MessageState
    assert kinds == [job, job, job, MessageKind.MEMBER, MessageKind.STEP]
    assert [one.state for one in (failed, in_hand, later, member, of_run)] == [
        states.RETRYING,
        states.IN_HAND,
        states.LATER,
        states.DUE,
        states.DUE,
    ]
    assert (failed.job, failed.read_count, failed.logical) == (FRAIL, 1, "posted")
    assert (member.batch_id, member.job) == (members.batch_id, POST)
    assert (of_run.workflow_id, of_run.job) == (run.workflow_id, None)
    assert "12345678901234567890" in in_hand.body.encoded
    assert later.visible_at - later.enqueued_at > timedelta(minutes=59)


@pytest.mark.parametrize("body", ODD)
def test_a_body_that_is_no_envelope_is_shown_as_it_is(bus, database, ask, body):
    number = send(bus, database, body)
    for page in (
        ask(queues.waiting, "posted", limit=9),
        ask(jobs.enqueued, JobFilter(), limit=9),
    ):
        [found] = page.messages
        assert (found.kind, found.job, found.workflow_id) == (MessageKind.UNKNOWN, None, None)
        assert (found.body and json.loads(found.body.encoded)) == (body and json.loads(body))
    assert ask(queues.message, "pgbus_posted", number) == found


def test_a_large_body_and_a_long_name_are_left_out_of_lists(bus, database, ask):
    number = send(bus, database, json.dumps({"job": "x" * 5000}))
    [found] = ask(queues.waiting, "posted", limit=9).messages
    assert (found.body.encoded, found.job) == (None, "x" * 300)
    assert found.body.size > 5000
    whole = ask(queues.message, "pgbus_posted", number)
    assert len(whole.body.encoded) == whole.body.size


def test_enqueued_jobs_are_those_of_all_queues_and_no_runs(bus, database, walked, ask):
    with bus.active():
        for number in range(3):
            post.enqueue(number)
            post.options(queue="abroad", priority=2).enqueue(number)
        frail.enqueue()
    Posted.start()
    send(bus, database, "{}", queue="pgbus_posted_dlq")
    found = walked(jobs.enqueued, JobFilter(), entries="messages", limit=3)
    assert [(one.logical, one.job) for one in found] == [
        *[("abroad", POST)] * 3,
        *[("posted", POST)] * 3,
        ("posted", FRAIL),
    ]
    [found] = ask(jobs.enqueued, JobFilter(queue="posted", job=FRAIL), limit=3).messages
    assert found.job == FRAIL


def test_a_search_of_many_messages_goes_on_page_by_page(bus, database, ask, walked, monkeypatch):
    monkeypatch.setattr(messages, "_WINDOW", 4)
    for number in range(1, 15):
        send(bus, database, json.dumps({"job": "wanted" if number % 7 == 0 else "other"}))
    send(bus, database, '{"job": "wanted"}', queue="pgbus_zebras")
    wanted = JobFilter(job="wanted")
    for looks in (1, 2):
        monkeypatch.setattr(messages, "_MOST_LOOKS", looks)
        found = walked(jobs.enqueued, wanted, entries="messages", limit=2)
        assert [one.message_id for one in found] == [7, 14, 1]
    assert ask(jobs.enqueued, wanted, limit=2).messages == (found[0],)


def test_failed_jobs_come_newest_failure_first(bus, database, work, walked, ask):
    with bus.active():
        for priority in (0, 1, 1, 2, 1):
            frail.options(priority=priority).enqueue()
    work()
    # Of one moment, as after a restart of what they need.
    database.rows("UPDATE pgbus.failed_jobs SET failed_at = '2020-01-01' WHERE message_id <> 2")
    found = walked(jobs.failed, JobFilter(), entries="jobs", ways=("older", "newer"))
    assert places(found) == [("", 2), ("_p2", 1), ("_p0", 1), ("", 3), ("", 1)]
    one = found[0]
    assert (one.job, one.read_count, one.error_class) == (FRAIL, 1, "LookupError")
    assert (one.error_message, one.state) == ("nobody home", MessageState.RETRYING)
    assert one.next_try_at > one.failed_at
    assert ask(jobs.failed, JobFilter(queue="posted", job=POST), limit=9).jobs == ()


def test_a_failed_job_is_told_with_its_message_and_backtrace(bus, database, work, ask):
    with bus.active():
        frail.enqueue()
    work()
    detail = ask(jobs.failed_job, "pgbus_posted", 1)
    assert detail.failed.error_class == "LookupError"
    assert detail.message.job == FRAIL
    assert json.loads(detail.error.encoded)["backtrace"]
    database.rows("UPDATE pgmq.q_pgbus_posted SET read_ct = 2")
    assert ask(jobs.failed_job, "pgbus_posted", 1).failed.state is MessageState.IN_HAND
    database.rows("UPDATE pgmq.q_pgbus_posted SET vt = now()")
    assert ask(jobs.failed_job, "pgbus_posted", 1).failed.state is MessageState.DUE
    database.rows("SELECT pgmq.drop_queue('pgbus_posted')")
    detail = ask(jobs.failed_job, "pgbus_posted", 1)
    assert (detail.message, detail.failed.state, detail.failed.next_try_at) == (None, None, None)
    with pytest.raises(MessageNotFound):
        ask(jobs.failed_job, "pgbus_posted", 2)


def test_failed_jobs_are_counted_up_to_the_cap(bus, work):
    with bus.active():
        for _ in range(4):
            frail.enqueue()
    work()
    with bus.services.database.autocommit() as connection:
        assert jobs.count_failed(connection) == 4
        assert jobs.count_failed(connection, cap=2) == 3


def test_enqueued_jobs_are_counted_among_the_oldest_messages_of_each_queue(bus, database, ask):
    assert ask(jobs.count_enqueued) == EnqueuedCount(0, at_least=False)
    for _ in range(2):
        Posted.start()
    with bus.active():
        for queue in ("posted", "abroad"):
            for _ in range(3):
                post.options(queue=queue).enqueue()
    send(bus, database, "{}", queue="pgbus_posted_dlq")
    assert ask(jobs.count_enqueued, cap=5) == EnqueuedCount(6, at_least=False)
    assert ask(jobs.count_enqueued, cap=4) == EnqueuedCount(6, at_least=True)
    assert ask(jobs.count_enqueued, cap=1) == EnqueuedCount(2, at_least=True)


def test_a_search_for_a_press_looks_on_where_its_looks_ended(bus, database, ask, monkeypatch):
    monkeypatch.setattr(matches, "_WINDOW", 3)
    monkeypatch.setattr(matches, "_MOST_LOOKS", 2)
    for queue in ("pgbus_posted", "pgbus_posted_p2", "pgbus_zebras"):
        for number in range(1, 15):
            job = "wanted" if number % 7 == 0 else "other"
            send(bus, database, json.dumps({"job": job}), queue=queue)
    until = {"until": database.value("SELECT now()")}

    def searched(limit, after=None):
        wanted = JobFilter(job="wanted")
        return ask(jobs.enqueued_until, wanted, limit=limit, after=after, **until)

    found, ends = [], [None]
    while len(ends) == 1 or ends[-1]:
        search = searched(9, ends[-1])
        found += places(search.keys)
        ends.append(search.further)
    assert ends[1:] == [
        *("pgbus_posted:6", "pgbus_posted:12", "pgbus_posted_p2:6", "pgbus_posted_p2:12"),
        *("pgbus_zebras:6", "pgbus_zebras:12", None),
    ]
    assert found == [(queue, number) for queue in ("", "_p2", "pgbus_zebras") for number in (7, 14)]
    search = searched(1, "pgbus_posted:6")
    assert (places(search.keys), search.further) == ([("", 7)], None)


def test_dead_letters_come_by_queue_the_newest_of_each_first(bus, work, walked, ask):
    with bus.active():
        for error in ("LookupError", "OSError", "LookupError"):
            mortal.enqueue(error, text="x" * 2000)
        mortal.options(queue="abroad", priority=0).enqueue()
    work()
    found = walked(dead_letters.page, JobFilter(), entries="letters")
    assert [(one.message.logical, one.message.message_id, one.error_class) for one in found] == [
        ("abroad", 1, "LookupError"),
        ("posted", 3, "LookupError"),
        ("posted", 2, "OSError"),
        ("posted", 1, "LookupError"),
    ]
    assert (found[0].source, found[0].deliveries) == ("pgbus_abroad_p0", 1)
    assert found[1].error_message == "x" * 1000
    [letter] = ask(dead_letters.page, JobFilter(error_class="OSError"), limit=9).letters
    assert letter == found[2]
    wanted = JobFilter(queue="abroad", job=f"{__name__}.mortal")
    assert ask(dead_letters.page, wanted, limit=9).letters == (found[0],)


def test_a_dead_letter_is_told_with_its_backtrace_and_all_its_text(bus, work, ask):
    with bus.active():
        mortal.enqueue(text="x" * 2000)
    work()
    detail = ask(dead_letters.one, "pgbus_posted_dlq", 1)
    assert detail.letter.error_message == "x" * 2000
    assert json.loads(detail.error.encoded)["backtrace"]
    assert json.loads(detail.headers.encoded)["dead_letter"]["queue"] == "pgbus_posted"
    for number in (2, 2**63, -1):
        with pytest.raises(MessageNotFound):
            ask(dead_letters.one, "pgbus_posted_dlq", number)


@pytest.mark.parametrize(
    "headers",
    [
        None,
        5,
        "dead_letter",
        ["dead_letter"],
        {"dead_letter": None},
        {"dead_letter": ["queue"]},
        {"dead_letter": {"read_count": "many", "error_class": None}},
        {"dead_letter": {"read_count": 10**12}},
    ],
)
def test_a_dead_letter_whose_header_tells_nothing_is_shown_without(bus, database, ask, headers):
    number = send(bus, database, "[]", headers, queue="pgbus_posted_dlq")
    [letter] = ask(dead_letters.page, JobFilter(), limit=9).letters
    told = (letter.source, letter.deliveries, letter.error_class, letter.error_message)
    assert told == (None, None, None, None)
    detail = ask(dead_letters.one, "pgbus_posted_dlq", number)
    assert detail.letter == letter
    assert (detail.headers and json.loads(detail.headers.encoded)) == headers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "pgbus_posted",
        "pgbus_posted:",
        ":1",
        "pgbus_posted:-1",
        "q:1e3",
        "q:٣",
        "é",
        "A" * 40,
    ],
)
def test_a_text_that_is_no_place_is_refused(bus, ask, text):
    bus.ensure_queues(["pgbus_posted", "pgbus_posted_dlq"])
    for question in (jobs.enqueued, jobs.failed, dead_letters.page):
        with pytest.raises(BadCursor):
            ask(question, JobFilter(), limit=9, after=text)


def test_a_place_in_a_queue_that_was_dropped_leads_on(bus, ask):
    with bus.active():
        post.enqueue()
    assert ask(queues.waiting, "posted", limit=9, after="pgbus_apples:7").messages
    assert not ask(queues.waiting, "posted", limit=9, after="pgbus_zebras:7").messages
    assert ask(queues.waiting, "posted", limit=9, before="pgbus_zebras:7").messages


def test_a_queue_that_does_not_exist_is_told_of(bus, ask):
    bus.ensure_queues(["pgbus_posted", "pgbus_posted_dlq"])
    for question in (
        lambda: ask(queues.waiting, "missing", limit=9),
        lambda: ask(jobs.enqueued, JobFilter(queue="missing"), limit=9),
        lambda: ask(jobs.failed, JobFilter(queue="missing"), limit=9),
        lambda: ask(dead_letters.page, JobFilter(queue="missing"), limit=9),
        lambda: ask(queues.message, "pgbus_posted_dlq", 1),
        lambda: ask(dead_letters.one, "pgbus_posted", 1),
    ):
        with pytest.raises(QueueNotFound):
            question()


def test_where_there_are_no_queues_nothing_is_listed(ask):
    assert ask(jobs.enqueued, JobFilter(), limit=9).messages == ()
    assert ask(jobs.failed, JobFilter(), limit=9).jobs == ()
    assert ask(dead_letters.page, JobFilter(), limit=9).letters == ()
