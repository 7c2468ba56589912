"""What the list of runs and the page of one run are made of."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pgbus import FanOut, Workflow, fan_out, job, step
from pgbus.engine.definition import registry
from pgbus.engine.errors import RunNotFound
from pgbus.engine.insights import runs
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.states import OnTimeout, RunStatus, Verb


class Base(DeclarativeBase):
    pass


class Parcel(Base):
    __tablename__ = "parcels"
    number: Mapped[str] = mapped_column(String, primary_key=True)


class Ship(Workflow[Parcel]):
    @step
    def pack(self):
        if self.arguments.get("fails"):
            raise ConnectionError("no carrier")
        self.output(boxes=12345678901234567890)

    @step(wait=86_400)
    def send(self): ...


class Other(Workflow):
    @step
    def only(self): ...


@job
def greet(name: str) -> None: ...


class Await(Workflow):
    @step(wait_for="paid", wait_timeout=60, on_timeout="notify")
    def capture(self): ...

    @fan_out
    def greetings(self, batch: FanOut):
        batch.add_many(greet, [(name,) for name in "abc"])


@pytest.fixture
def list_page(bus):
    def list_page(*, limit=50, after=None, before=None, **wanted):
        with bus.services.database.autocommit() as connection:
            return runs.page(
                connection, RunFilter(**wanted), limit=limit, after=after, before=before
            )

    return list_page


@pytest.fixture
def detail(bus):
    def detail(run, limit=100):
        with bus.services.database.autocommit() as connection:
            return runs.detail(connection, run.workflow_id, limit=limit)

    return detail


def test_signals_come_with_the_attempt_that_took_them_as_many_as_asked_for(bus, driver, detail):
    run = Await.start()
    for name in ("lost", "paid", "paid"):
        run.signal(name, None, f"key of {name}" if name == "lost" else None, actor="shop")
    driver.drain()
    lost, taken, pending = detail(run).signals
    assert (lost.name, lost.status, lost.idempotency_key) == ("lost", "pending", "key of lost")
    assert (taken.status, taken.step_name, taken.attempt) == ("consumed", "capture", 1)
    assert (pending.encoded_payload, pending.actor, pending.attempt) == ("{}", "shop", None)
    assert detail(run, limit=2).signals == (taken, pending)
    assert detail(run, limit=2).truncated


@pytest.mark.rows_by_hand
def test_a_wait_past_its_deadline_tells_how_long_and_what_the_sweep_does(
    bus, driver, database, detail, monkeypatch
):
    run = Await.start()
    driver.drain()
    told = detail(run).run
    assert (told.overdue_seconds, told.on_timeout) == (None, None)
    database.rows(
        "UPDATE pgbus.workflow_steps SET timeout_at = now() - interval '40 s' WHERE batch_id IS NULL"
    )
    told = detail(run).run
    assert 40 <= told.overdue_seconds < 60
    assert told.on_timeout is OnTimeout.NOTIFY
    monkeypatch.setattr(registry, "_definitions", {})
    assert detail(run).run.on_timeout is None


def ids(page):
    return [run.workflow_id for run in page.runs]


def started(count):
    return sorted((Other.start().workflow_id for _ in range(count)), reverse=True)


def test_a_page_lists_the_newest_runs_first_and_the_next_goes_on_where_it_ended(bus, list_page):
    newest_first = started(5)
    first = list_page(limit=2)
    second = list_page(limit=2, after=first.older)
    third = list_page(limit=2, after=second.older)
    assert [ids(first), ids(second), ids(third)] == [
        newest_first[:2],
        newest_first[2:4],
        newest_first[4:],
    ]
    assert first.newer is None
    assert third.older is None


def test_paging_back_gives_the_pages_that_were_seen_on_the_way(bus, list_page):
    newest_first = started(5)
    second = list_page(limit=2, before=newest_first[4])
    assert ids(second) == newest_first[2:4]
    assert second.older == newest_first[3]
    first = list_page(limit=2, before=second.newer)
    assert ids(first) == newest_first[:2]
    assert first.newer is None
    assert first.older == newest_first[1]


def test_a_full_last_page_has_no_older_one(bus, list_page):
    started(2)
    assert list_page(limit=2).older is None


def test_an_empty_page_has_no_neighbours(bus, list_page):
    (only,) = started(1)
    page = list_page(after=only)
    assert (page.runs, page.older, page.newer) == ((), None, None)


def test_ended_runs_are_listed_only_when_asked_for(bus, driver, list_page):
    ended = Other.start().workflow_id
    driver.drain()
    ongoing = Other.start().workflow_id
    assert ids(list_page()) == [ongoing]
    assert ids(list_page(status="all")) == [ongoing, ended]
    assert ids(list_page(status=RunStatus.FINISHED)) == [ended]
    assert ids(list_page(status=RunStatus.READY)) == [ongoing]
    assert ids(list_page(status=RunStatus.CANCELLED)) == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"workflow_class": f"{__name__}.Ship"},
        {"current_step": "pack"},
        {"error_class": "ConnectionError"},
        {"subject_type": "Parcel"},
        {"subject_id": "p-1"},
    ],
)
def test_each_filter_keeps_what_matches_it_and_nothing_else(bus, driver, list_page, wanted):
    failed = Ship.start(Parcel(number="p-1"), fails=True)
    driver.drain()
    Other.start()
    assert ids(list_page(**wanted)) == [failed.workflow_id]
    assert ids(list_page(**dict.fromkeys(wanted, "elsewhere"))) == []


def test_ended_runs_are_hidden_only_when_the_other_filters_match_them(bus, driver):
    def hidden(**wanted):
        with bus.services.database.autocommit() as connection:
            return runs.hides_ended(connection, RunFilter(**wanted))

    Ship.start(Parcel(number="p-1"))
    driver.drain()
    assert not hidden()
    Other.start()
    driver.drain()
    assert hidden()
    assert hidden(workflow_class=f"{__name__}.Other", current_step="only")
    assert not hidden(workflow_class=f"{__name__}.Ship")


def test_filters_combine(bus, list_page):
    one = Ship.start(Parcel(number="p-1"))
    two = Ship.start(Parcel(number="p-2"))
    assert ids(list_page(subject_type="Parcel", subject_id="p-2")) == [two.workflow_id]
    assert ids(list_page(workflow_id=one.workflow_id)) == [one.workflow_id]
    assert ids(list_page(workflow_id=one.workflow_id, subject_id="p-2")) == []


def test_only_the_error_of_the_newest_attempt_counts(bus, driver, list_page):
    run = Ship.start(fails=True)
    driver.drain()
    run.resume()
    assert ids(list_page(error_class="ConnectionError")) == []


def test_a_summary_says_whether_its_step_could_run_now(bus, driver, list_page):
    Ship.start()
    (waiting,) = list_page().runs
    assert (waiting.current_step, waiting.due) == ("pack", True)
    driver.drain()
    (scheduled,) = list_page().runs
    assert (scheduled.current_step, scheduled.due) == ("send", False)


def test_a_run_that_waits_for_a_signal_tells_which_and_until_when(bus, driver, list_page, detail):
    run = Await.start()
    driver.drain()
    (listed,) = list_page().runs
    (attempt,) = detail(run).attempts
    for one in (listed, attempt):
        assert (one.waiting_for, one.batch_id, one.late_since) == ("paid", None, None)
        assert (one.timeout_at - one.waiting_since).total_seconds() == pytest.approx(60, abs=1)
    assert (listed.open_jobs, listed.total_jobs) == (None, None)
    run.signal("paid")
    (woken,) = list_page().runs
    assert (woken.waiting_for, woken.waiting_since, woken.due) == ("paid", None, True)


def test_a_run_that_waits_for_jobs_tells_how_many_are_open(bus, driver, database, list_page):
    def counted():
        (run,) = list_page().runs
        return run.open_jobs, run.total_jobs

    run = Await.start()
    driver.drain()
    assert counted() == (None, None)
    run.signal("paid")
    driver.drain()
    assert counted() == (3, 3)
    run.pause()
    database.rows("UPDATE pgbus.batch_counters SET open = open - 1 WHERE counter = 0")
    assert counted() == (2, 3)
    database.rows("DELETE FROM pgbus.batch_counters")
    assert counted() == (0, 3)
    database.rows("DELETE FROM pgbus.batches")
    assert counted() == (None, None)


def test_an_attempt_that_waits_or_was_woken_has_not_run_since(bus, driver, database, detail):
    run = Await.start()
    driver.drain()
    database.rows(
        "UPDATE pgbus.workflow_steps SET created_at = created_at - interval '1 h',"
        " scheduled_at = created_at - interval '1 h',"
        " started_at = created_at - interval '59 min' - interval '58 s',"
        " waiting_since = created_at - interval '59 min' - interval '57 s'"
    )
    (waiting,) = detail(run).attempts
    assert (waiting.waited_seconds, waiting.queued_seconds, waiting.ran_seconds) == (0, 2, 1)
    run.signal("paid")
    (woken,) = detail(run).attempts
    assert woken.waited_seconds == pytest.approx(3600, abs=60)
    assert woken.queued_seconds < 60
    assert woken.ran_seconds is None


def test_an_attempt_tells_where_its_time_went(bus, driver, database, detail):
    run = Ship.start()
    driver.drain()
    database.rows(
        "UPDATE pgbus.workflow_steps SET scheduled_at = created_at + interval '60 s',"
        " started_at = created_at + interval '75 s', finished_at = created_at + interval '75.5 s'"
        " WHERE step_name = 'pack'"
    )
    packed, sending = detail(run).attempts
    assert (packed.waited_seconds, packed.queued_seconds, packed.ran_seconds) == (60, 15, 0.5)
    assert 0 < sending.waited_seconds < 60
    assert (sending.queued_seconds, sending.ran_seconds) == (0, None)


def test_an_attempt_that_ended_before_it_was_due_only_waited(bus, driver, database, detail):
    run = Ship.start()
    driver.drain()
    run.cancel()
    database.rows(
        "UPDATE pgbus.workflow_steps SET finished_at = created_at + interval '5 s'"
        " WHERE step_name = 'send'"
    )
    cancelled = detail(run).attempts[-1]
    assert (cancelled.waited_seconds, cancelled.queued_seconds) == (5, 0)


def test_a_run_is_shown_with_its_history_in_order_and_its_documents(bus, driver, detail):
    run = Ship.start(Parcel(number="p-1"), plan="pro")
    driver.drain()
    shown = detail(run)
    assert json.loads(shown.encoded_arguments) == {"plan": "pro"}
    assert json.loads(shown.attempts[0].encoded_output) == {"boxes": 12345678901234567890}
    assert [attempt.step_name for attempt in shown.attempts] == ["pack", "send"]
    assert [entry.event for entry in shown.events] == [event.event for event in run.events]
    assert shown.available_actions == run.available_actions
    assert not shown.truncated


def test_a_long_history_is_cut_to_its_newest_part_and_says_so(bus, driver, detail):
    run = Ship.start()
    driver.drain()
    shown = detail(run, limit=1)
    assert [attempt.step_name for attempt in shown.attempts] == ["send"]
    assert [entry.event for entry in shown.events] == ["step_scheduled"]
    assert shown.truncated


@pytest.mark.rows_by_hand
def test_a_run_whose_class_is_not_loaded_offers_only_what_needs_no_class(bus, database, detail):
    run = Other.start()
    database.rows("UPDATE pgbus.workflows SET workflow_class = 'gone.Gone', status = 'paused'")
    shown = detail(run)
    assert not shown.class_loaded
    assert shown.available_actions == (Verb.CANCEL, Verb.SIGNAL)


@pytest.mark.rows_by_hand
def test_an_event_that_only_a_newer_pgbus_knows_is_shown(bus, database, detail):
    run = Other.start()
    database.rows("UPDATE pgbus.workflow_events SET event = 'teleported' WHERE event = 'started'")
    assert detail(run).events[0].event == "teleported"


def test_a_run_and_its_reruns_know_of_each_other(bus, driver, detail):
    run = Other.start()
    driver.drain()
    again = run.reload().rerun()
    assert detail(run).reruns == (again.workflow_id,)
    assert detail(again).rerun_of == run.workflow_id


def test_a_run_that_does_not_exist_is_refused_by_its_id(bus, detail, driver):
    run = Other.start()
    with bus.services.database.autocommit() as connection:
        connection.rows("DELETE FROM {schema}.workflows")
    with pytest.raises(RunNotFound, match=run.workflow_id):
        detail(run)


@pytest.mark.parametrize(
    ("status", "index"), [("ongoing", "workflows_ongoing"), ("all", "workflows_pkey")]
)
def test_a_page_is_read_in_the_order_of_its_index(database, status, index):
    statement = runs._page_statement(status, {"after"}, "DESC").replace("{schema}", "pgbus")
    statement = statement.replace(":after", "gen_random_uuid()").replace(":limit", "50")
    with database.connection() as connection:
        # An empty table is sorted as cheaply as read in order: only what can be done counts.
        for method in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort"):
            connection.execute(f"SET enable_{method} = off")
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {statement}"))
    assert f"Backward using {index}" in plan
    assert "Sort" not in plan
