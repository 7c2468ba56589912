"""Home: one verdict, and the figures that it is made from."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations
from support.sites import visible_text

from pgbus import Workflow, job, step
from pgbus.dashboard.pages import home as pages
from pgbus.dashboard.presenters import home, processes, queues, throughput
from pgbus.dashboard.presenters.home import Figures
from pgbus.dashboard.presenters.queues import QueueTotal
from pgbus.dashboard.words import Words
from pgbus.engine.definition import registry
from pgbus.engine.errors import ReadTimeout
from pgbus.engine.insights import reading
from pgbus.engine.insights.processes import Fleet, Process, RunningAttempt
from pgbus.engine.insights.queues import DeadLetters, QueueDepth, QueuePause
from pgbus.engine.insights.stuck import Attention, GroupKey, StuckGroup, StuckReason
from pgbus.engine.insights.throughput import Bucket
from pgbus.engine.jobs.execute import execute

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ENGLISH = Words(NullTranslations(), Locale("en"), ZoneInfo("UTC"), NOW)
HOSTILE = "<script>alert(1)</script>"
WORKER = Process(
    process_id="p",
    kind="worker",
    host="worker-3",
    pid=2211,
    revision="b81d07e",
    started_at=NOW - timedelta(hours=1),
    heartbeat_at=NOW - timedelta(seconds=2),
    silent_seconds=2.0,
    alive=True,
    queues=("orders",),
    running=0,
    attempts=(),
    jobs=0,
    running_jobs=(),
    children=0,
)
SILENT = replace(WORKER, heartbeat_at=NOW - timedelta(minutes=9), silent_seconds=540.0, alive=False)
FLEET = Fleet(
    alive={"worker": 1, "dispatcher": 1},
    silent={},
    served=frozenset({"orders"}),
    processes=(WORKER,),
)
NOBODY = Fleet(alive={}, silent={}, served=frozenset(), processes=())
PAUSE = QueuePause("dashboard:alice", "vendor is down", NOW - timedelta(hours=1))
ORDERS = QueueTotal("orders", 0, 0, 0, None, served=True)
ATTEMPT = RunningAttempt("01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58", "shop.Order", "capture", 1, NOW)


def group(count, step="capture", reason=StuckReason.PAUSED_ERROR):
    return StuckGroup(
        key=GroupKey("shop.OrderWorkflow", step, reason, None),
        count=count,
        first_at=NOW - timedelta(minutes=35),
        last_at=NOW,
        newest_error_message=None,
        newest_actor=None,
        newest_because=None,
    )


def stuck(*counts):
    groups = tuple(group(count, f"step_{n}") for n, count in enumerate(counts))
    return Attention(groups=groups, exhaustive=True, total=sum(counts), by_class={}, as_of=NOW)


WELL = Figures(
    attention=stuck(), ongoing=1284, untouched=False, queues=(ORDERS,), dead_letters=(), fleet=FLEET
)


def plain(markup):
    return html.unescape(re.sub(r"<[^>]*>", "", str(markup)))


def verdict(**figures):
    told = home.verdict(replace(WELL, **figures), "paused on error", ENGLISH)
    return " ".join(map(plain, told))


def test_where_nothing_is_wrong_it_says_so_in_few_words():
    assert verdict() == "Everything moves: 1,284 runs are ongoing, and none needs you."
    assert verdict(ongoing=1) == "Everything moves: 1 run is ongoing, and it does not need you."
    assert verdict(ongoing=10_001).startswith("Everything moves: 10,000+ runs")
    assert verdict(ongoing=0) == "No run is ongoing, and nothing needs you."


def test_where_nothing_ever_ran_nothing_is_wrong():
    assert verdict(untouched=True, ongoing=0, fleet=NOBODY) == "Nothing has run here yet."


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((1,), "OrderWorkflow on step_0 (paused on error), 35 min ago."),
        ((5,), "All of them: OrderWorkflow on step_0 (paused on error), the first 35 min ago."),
        ((6, 5), "Most of them: OrderWorkflow on step_0 (paused on error), the first 35 min ago."),
        ((5, 5), "5 of them: OrderWorkflow on step_0 (paused on error), the first 35 min ago."),
        ((1, 1), "Each has a cause of its own."),
    ],
)
def test_the_biggest_group_is_told_with_its_share(counts, sentence):
    assert verdict(attention=stuck(*counts)) == f"{sentence} Everything else moves."


def test_runs_that_need_somebody_are_counted():
    assert home.needs(stuck(), ENGLISH) is None
    assert home.needs(stuck(1), ENGLISH) == "1 run needs you."
    assert home.needs(stuck(270, 9), ENGLISH) == "279 runs need you."


def test_nothing_else_moves_where_all_runs_are_stuck():
    assert "Everything else" not in verdict(attention=stuck(5), ongoing=5)


def test_a_silent_process_is_named_and_several_are_counted():
    one = replace(FLEET, silent={"worker": 1}, processes=(SILENT, WORKER))
    assert verdict(fleet=one) == "worker-3:2211 went silent 9 min ago. Everything else moves."
    three = replace(one, silent={"worker": 2, "dispatcher": 1})
    assert verdict(fleet=three).startswith("3 processes went silent, the first 9 min ago.")


def test_without_a_worker_nothing_moves_if_there_is_something_to_move():
    sentence = "No worker is running: nothing moves until one does."
    assert verdict(fleet=NOBODY) == sentence
    due = replace(ORDERS, visible=1, served=False)
    assert verdict(fleet=NOBODY, ongoing=0, queues=(due,)) == sentence
    assert "worker" not in verdict(fleet=NOBODY, ongoing=0)


def test_without_a_dispatcher_deadlines_pass_unnoticed():
    assert verdict(fleet=replace(FLEET, alive={"worker": 1})).startswith("No dispatcher is running")


def test_a_queue_that_no_worker_reads_is_named_if_messages_are_due():
    mail = QueueTotal("mail", 7, 0, 0, NOW, served=False)
    told = "No worker reads the queue mail, where 7 messages are due."
    assert verdict(queues=(ORDERS, mail)) == told
    assert verdict(queues=(replace(mail, visible=1),)).endswith("where 1 message is due.")
    idle = replace(mail, visible=0, due_since=None)
    assert "mail" not in verdict(queues=(ORDERS, idle))


def test_a_queue_whose_first_message_has_been_due_for_long_is_behind():
    def due(**ago):
        return replace(ORDERS, visible=3, due_since=NOW - timedelta(**ago))

    assert verdict(queues=(due(minutes=6),)) == (
        "The workers do not keep up with orders: its first message has been due for 6 min."
    )
    assert verdict(queues=(due(minutes=5),)).startswith("Everything moves")


def test_a_paused_queue_is_told_of_and_is_neither_behind_nor_unread():
    paused = replace(ORDERS, visible=3, due_since=NOW - timedelta(hours=1), pause=PAUSE)
    told = "The queue orders is paused, and 3 messages are due there."
    assert verdict(queues=(paused,)) == told
    assert verdict(queues=(replace(paused, served=False),), attention=stuck(1)).endswith(told)
    assert verdict(queues=(replace(paused, visible=0),)).startswith("Everything moves")


def test_dead_letters_wait_for_a_decision():
    letters = DeadLetters(queue="q_dlq", logical="mail", messages=3, newest_at=NOW)
    assert verdict(dead_letters=(letters, replace(letters, messages=0))) == (
        "3 dead letters wait for a decision. Everything else moves."
    )
    one = replace(letters, messages=1)
    assert verdict(dead_letters=(one,)).startswith("1 dead letter waits for a decision.")


@pytest.mark.parametrize(
    ("queue", "word"),
    [
        (ORDERS, "Served"),
        (replace(ORDERS, visible=1, due_since=NOW - timedelta(hours=1)), "Behind"),
        (replace(ORDERS, served=False), "No worker"),
        (replace(ORDERS, served=False, visible=1, due_since=NOW), "Nobody reads it"),
        (replace(ORDERS, visible=1, due_since=NOW - timedelta(hours=1), pause=PAUSE), "Paused"),
    ],
)
def test_a_queue_has_a_state(queue, word):
    assert ENGLISH.gettext(queues.badge(queue, NOW).word) == word


def test_priorities_of_a_queue_are_one_line_the_fullest_first():
    def depth(queue, logical, visible, since=None):
        return QueueDepth(
            queue=queue,
            logical=logical,
            priority=1,
            visible=visible,
            in_flight=2,
            later=3,
            due_since=since,
        )

    first, then = NOW - timedelta(minutes=4), NOW - timedelta(minutes=2)
    found = queues.totals(
        [
            depth("a", "alpha", 1, then),
            depth("b", "beta", 2, then),
            depth("b_p0", "beta", 4, first),
            depth("b_p2", "beta", 0),
        ],
        {"beta"},
        {"alpha": PAUSE},
    )
    assert found == (
        QueueTotal("beta", 6, 6, 9, first, served=True),
        QueueTotal("alpha", 1, 2, 3, then, served=False, pause=PAUSE),
    )


@pytest.mark.parametrize(
    ("process", "told"),
    [
        (WORKER, ("nothing",)),
        (replace(WORKER, running=1, attempts=(ATTEMPT,)), ()),
        (replace(WORKER, running=6, attempts=(ATTEMPT,), jobs=1), ("5 more runs", "1 job")),
        (replace(WORKER, jobs=2), ("2 jobs",)),
        (replace(WORKER, kind="dispatcher"), ("timer and sweep",)),
        (replace(WORKER, kind="supervisor", children=6), ("watches 6 processes",)),
    ],
)
def test_a_process_has_an_occupation(process, told):
    assert processes.occupation(process, ENGLISH) == told


def test_a_process_of_a_kind_that_is_not_known_here_is_called_by_that():
    assert processes.kind(replace(WORKER, kind="scheduler"), ENGLISH) == "scheduler"


def hours(*numbers):
    begin = NOW.replace(hour=1)
    return tuple(
        Bucket(begin + timedelta(hours=n), number, number // 2, n)
        for n, number in enumerate(numbers)
    )


def test_the_chart_has_a_bar_for_each_hour_as_high_as_its_share_of_the_most():
    bars = throughput.bars(hours(0, 5, 10, 0), ENGLISH)
    assert [(bar.x, bar.y, bar.width, bar.height) for bar in bars] == [
        ("1.0", "40.0", "58.0", "0.0"),
        ("61.0", "20.0", "58.0", "20.0"),
        ("121.0", "0.0", "58.0", "40.0"),
        ("181.0", "40.0", "58.0", "0.0"),
    ]
    assert bars[2].title.endswith(". Started: 10. Finished: 5. Cancelled: 2.")


def test_the_chart_of_a_day_without_runs_is_empty():
    assert {bar.height for bar in throughput.bars(hours(0, 0), ENGLISH)} == {"0.0"}
    assert plain(throughput.started(hours(0, 0), ENGLISH)) == "No run was started."


def test_the_throughput_in_words_names_the_busiest_hour():
    assert plain(throughput.started(hours(2, 177, 5), ENGLISH)) == (
        "184 runs were started, 177 of them in the hour from 02:00."
    )
    assert plain(throughput.started(hours(0, 1), ENGLISH)) == (
        "1 run was started, in the hour from 02:00."
    )
    assert plain(throughput.started(hours(0, 12), ENGLISH)) == (
        "12 runs were started, all in the hour from 02:00."
    )
    assert throughput.ended(hours(2, 4), ENGLISH) == "Finished: 3. Cancelled: 1."


def test_cards_tell_the_figure_and_what_qualifies_it():
    def told(card):
        return card.figure, plain(card.detail), card.tone

    due = replace(ORDERS, visible=274, due_since=NOW - timedelta(minutes=4))
    later = replace(ORDERS, name="mail", visible=38, due_since=NOW)
    assert told(home.queues_card((later, due), ENGLISH)) == (
        "312 due",
        "the first has waited 4 min in orders",
        "mute",
    )
    assert told(home.queues_card((), ENGLISH)) == (
        "0 due",
        "No message waits for a worker.",
        "mute",
    )
    assert told(home.processes_card(FLEET, ENGLISH))[0] == "2 of 2 healthy"
    silent = replace(FLEET, silent={"worker": 1}, processes=(SILENT,))
    assert told(home.processes_card(silent, ENGLISH)) == (
        "2 of 3 healthy",
        "worker-3:2211 silent for 9 min",
        "bad",
    )
    assert told(home.processes_card(NOBODY, ENGLISH))[0] == "No process"
    mail = DeadLetters(queue="m", logical="mail", messages=2, newest_at=NOW - timedelta(hours=2))
    other = replace(mail, logical="other", newest_at=NOW - timedelta(hours=3), messages=1)
    assert told(home.dead_letters_card((other, mail), ENGLISH)) == (
        "3 messages",
        "the newest 2 h ago from mail",
        "mute",
    )
    assert told(home.dead_letters_card((), ENGLISH)) == (
        "0 messages",
        "No job was given up.",
        "mute",
    )


class Ship(Workflow):
    @step
    def load(self):
        if self.arguments.get("leaks"):
            raise OSError("a leak")

    @step(wait_for="tide")
    def sail(self): ...


@job(queue="harbour", max_retries=0)
def sink():
    raise OSError("sunk")


@pytest.fixture
def beats(database):
    def beats(kind="worker", host="test", pid=1, ago=0, **details):
        process_id = str(uuid4())
        database.rows(
            "INSERT INTO pgbus.processes VALUES (%s, %s, %s, %s, %s, %s,"
            " now() - interval '1 hour', now() - make_interval(secs => %s))",
            *(process_id, kind, host, pid, "r1", json.dumps(details), ago),
        )
        return process_id

    return beats


@pytest.fixture
def text(client):
    """The words of Home, as one reads them."""

    def text():
        answer = client.get("/pgbus/")
        assert answer.status_code == 200
        main = answer.text[answer.text.index("<main") : answer.text.index("</main>")]
        apart = re.sub(r"</(td|th|p|h1|h2|span|pre)>", " ", main)
        return re.sub(r"\s+", " ", plain(apart))

    return text


def test_an_empty_database_says_how_to_begin(bus, text, monkeypatch):
    monkeypatch.setattr(registry, "_definitions", {Ship._definition.name: Ship._definition})
    told = text()
    assert "Nothing has run here yet." in told
    assert "No runs yet" in told
    assert "pgbus start --app MODULE:BUS" in told
    assert "No queue yet" in told
    assert "Ship.start(...) Classes that are loaded here: Ship" in told
    monkeypatch.setattr(registry, "_definitions", {})
    assert "OrderWorkflow.start(...) No workflow class is loaded here" in text()


def test_the_figures_of_a_bus_stand_on_the_page(bus, driver, beats, text, client):
    with bus.active():
        for leaks in (True, True, False):
            Ship.start(leaks=leaks)
        Ship.start().cancel()
        driver.drain()
        sink.enqueue()
        [delivery] = driver.take()
        execute(bus.services, delivery)
        running = Ship.start()
        driver.take()
    beats(queues=["pgbus_workflows", "pgbus_harbour"])
    beats("dispatcher", pid=2)
    beats("worker", "lost", 7, ago=540)
    told = text()
    assert "2 runs need you. All of them: Ship on load (paused on error)" in told
    assert "lost:7 went silent 9 min ago" in told
    assert "1 dead letter waits for a decision." in told
    assert "Everything else moves." in told
    assert "4 ongoing" in told
    assert "2 paused · 2 need attention" in told
    assert "2 of 3 healthy" in told
    assert "1 message the newest" in told
    assert "5 runs were started" in told
    assert "Cancelled: 1." in told
    page = client.get("/pgbus/").text
    assert '<a href="/pgbus/queues/harbour"><code>harbour</code></a>' in page
    for path, figure in (
        ("queues", "0 due"),
        ("processes", "2 of 3"),
        ("dead-letters", "1 message"),
    ):
        assert f'<p class="big"><a href="/pgbus/{path}">{figure}' in page
    assert f'<a href="/pgbus/workflows/{running.workflow_id}">Ship <code>load</code></a>' in page
    assert '<a href="/pgbus/workflows">4 ongoing</a>' in page
    assert '<a href="/pgbus/workflows?status=paused">2 paused</a>' in page
    assert '<a href="/pgbus/workflows/attention">2 need attention</a>' in page
    assert page.count('<rect class="c-run"') in (23, 24)


def test_where_no_run_needs_anybody_the_card_does_not_lead_there(bus, beats, client):
    with bus.active():
        Ship.start()
    beats(queues=["pgbus_workflows"])
    beats("dispatcher", pid=2)
    page = client.get("/pgbus/").text
    assert "Everything moves: 1 run is ongoing" in page
    assert "need attention" not in page
    assert "status=paused" not in page


def test_names_of_processes_and_queues_are_text(bus, beats, client):
    beats("worker", HOSTILE, 1, ago=100, queues=[HOSTILE])
    beats(HOSTILE, "h", 2)
    page = client.get("/pgbus/").text
    assert HOSTILE not in page
    assert html.escape("alert(1)") in page


def test_more_queues_than_are_shown_are_counted(bus, database, text, monkeypatch):
    monkeypatch.setattr(pages, "_MOST_QUEUES", 1)
    for queue in ("alpha", "beta", "gamma"):
        database.rows("SELECT pgbus.make_queue(%s)", f"pgbus_{queue}")
    told = text()
    assert "And 2 more." in told
    assert "alpha" in told
    assert "beta" not in told


def test_more_processes_than_are_shown_are_counted(bus, beats, text):
    for pid in range(23):
        beats(pid=pid)
    told = text()
    assert "And 3 more." in told
    assert "23 of 23 healthy" in told


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/pgbus/", "PostgreSQL has much to do, or this page asks too much of it."),
        ("/pgbus/batches", "PostgreSQL has much to do, or this page asks too much of it."),
        ("/pgbus/workflows", "Narrow the list: filter by class, or by when runs were created."),
    ],
)
def test_a_page_that_took_too_long_says_what_can_be_done_about_it(client, monkeypatch, path, told):
    def slow(*_arguments):
        raise ReadTimeout("15 seconds")

    monkeypatch.setattr(reading, "now", slow)
    answer = client.get(path)
    assert answer.status_code == 503
    assert told in visible_text(answer)
    assert "It is not known" not in visible_text(answer)
