"""The list of runs: its pages, what it can be narrowed to, and how many there are of each status."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from support.sweeps import age

from pgbus import Workflow, on_exception, step
from pgbus.engine.errors import BadCursor
from pgbus.engine.insights import runs
from pgbus.engine.insights.runs import NO_ERROR, RunFilter
from pgbus.engine.insights.stuck import NO_END, StuckReason
from pgbus.engine.states import RunStatus

HERE = __name__


class Base(DeclarativeBase):
    pass


class Crate(Base):
    __tablename__ = "crates"
    number: Mapped[str] = mapped_column(String, primary_key=True)


class Import(Workflow[Crate]):
    @step
    def unload(self):
        if self.arguments.get("fails"):
            raise ConnectionError("no crane")

    @step(wait=86_400)
    def inspect(self): ...


class Export(Workflow):
    @step
    def load(self): ...


class Customs(Workflow):
    @step(wait_for="cleared")
    def wait(self): ...


class Transit(Workflow):
    policies = (
        on_exception(TimeoutError, action="reattempt"),
        on_exception(LookupError, action="skip"),
    )

    @step
    def cross(self):
        self.meanwhile()
        raise TimeoutError if self.arguments["late"] else LookupError

    def meanwhile(self): ...


@pytest.fixture
def list_page(bus):
    def list_page(*, limit=50, after=None, before=None, **wanted):
        with bus.services.database.autocommit() as connection:
            return runs.page(
                connection,
                bus.settings,
                RunFilter(**wanted),
                limit=limit,
                after=after,
                before=before,
            )

    return list_page


@pytest.fixture
def counts(bus):
    def counts(*, cap=10_000, **wanted):
        with bus.services.database.autocommit() as connection:
            return runs.status_counts(connection, bus.settings, RunFilter(**wanted), cap=cap)

    return counts


def ids(page):
    return [run.workflow_id for run in page.runs]


def started(count):
    """The ids of new runs, the newest first."""
    return [Export.start().workflow_id for _ in range(count)][::-1]


class TestPages:
    def test_the_newest_runs_are_first_and_the_next_page_goes_on_where_one_ended(
        self, bus, list_page
    ):
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

    def test_paging_back_gives_the_pages_that_were_seen_on_the_way(self, bus, list_page):
        started(5)
        first = list_page(limit=2)
        second = list_page(limit=2, after=first.older)
        third = list_page(limit=2, after=second.older)
        assert list_page(limit=2, before=third.newer) == second
        assert list_page(limit=2, before=second.newer) == first

    @pytest.mark.rows_by_hand
    def test_many_runs_of_one_microsecond_are_paged_without_loss_or_repeat(
        self, bus, database, list_page
    ):
        started(7)
        database.rows("UPDATE pgbus.workflows SET created_at = '2030-01-31 08:00+00'")
        forth = [list_page(limit=2)]
        while forth[-1].older:
            forth.append(list_page(limit=2, after=forth[-1].older))
        assert [*chain(*map(ids, forth))] == sorted(ids(list_page()), reverse=True)
        back = [forth[-1]]
        while back[-1].newer:
            back.append(list_page(limit=2, before=back[-1].newer))
        assert back[::-1] == forth

    @pytest.mark.rows_by_hand
    def test_a_run_older_by_a_microsecond_is_behind_one_with_a_lower_id(
        self, bus, database, list_page
    ):
        newest, oldest = started(2)
        database.rows(
            "UPDATE pgbus.workflows SET created_at = timestamptz '2030-01-31 08:00+00'"
            " - CASE WHEN workflow_id = %s THEN interval '1 us' ELSE '0' END",
            newest,
        )
        first = list_page(limit=1)
        assert ids(first) == [oldest]
        assert ids(list_page(limit=1, after=first.older)) == [newest]

    def test_runs_of_every_status_stand_in_one_order(self, bus, driver, list_page):
        finished, waiting = Export.start(), Customs.start()
        driver.drain()
        cancelled = Export.start().cancel()
        paused, ready = Export.start().pause(), Export.start()
        expected = [run.workflow_id for run in (ready, paused, cancelled, waiting, finished)]
        assert ids(list_page(status="all")) == expected
        assert ids(list_page(status="all", limit=3)) == expected[:3]

    def test_a_full_last_page_has_no_older_one(self, bus, list_page):
        started(2)
        assert list_page(limit=2).older is None

    def test_an_empty_page_has_no_neighbours(self, bus, list_page):
        started(1)
        (only,) = list_page().runs
        page = list_page(after=str(runs._Cursor.of(only)))
        assert (page.runs, page.older, page.newer) == ((), None, None)

    def test_a_cursor_is_a_short_word_that_fits_into_a_url(self, bus, list_page):
        started(2)
        cursor = list_page(limit=1).older
        assert len(cursor) == 32
        assert cursor.replace("-", "").replace("_", "").isalnum()

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "x",
            "née",
            "0" * 31,
            "0" * 36,
            f"+/{'0' * 30}",
            f"{'0' * 31}=",
            base64.urlsafe_b64encode(b"\x7f" * 24).decode(),
            "01900000-0000-7000-8000-000000000000",
        ],
    )
    @pytest.mark.parametrize("side", ["after", "before"])
    def test_what_no_page_gave_is_refused(self, bus, list_page, text, side):
        with pytest.raises(BadCursor, match="is no place in a list"):
            list_page(**{side: text})


class TestFilters:
    def test_each_status_lists_its_own(self, bus, driver, list_page):
        finished, waiting = Export.start(), Customs.start()
        driver.drain()
        of = {
            RunStatus.FINISHED: finished,
            RunStatus.WAITING: waiting,
            RunStatus.CANCELLED: Export.start().cancel(),
            RunStatus.PERFORMING: Export.start(),
        }
        while not driver.take():
            pass
        of |= {RunStatus.READY: Export.start(), RunStatus.PAUSED: Export.start().pause()}
        for status in RunStatus:
            assert ids(list_page(status=status)) == [of[status].workflow_id], status

    def test_a_run_that_sleeps_is_ready_and_not_performing(self, bus, driver, list_page, counts):
        run = Import.start()
        driver.drain()
        assert ids(list_page(status=RunStatus.READY)) == [run.workflow_id]
        assert ids(list_page(status=RunStatus.PERFORMING)) == []
        assert (counts()[RunStatus.READY], counts()[RunStatus.PERFORMING]) == (1, 0)

    @pytest.mark.parametrize(
        "wanted",
        [
            {"workflow_class": f"{HERE}.Import"},
            {"current_step": "unload"},
            {"error_class": "ConnectionError"},
            {"stuck": StuckReason.PAUSED_ERROR},
            {"subject_type": "Crate"},
            {"subject_id": "c-1"},
        ],
    )
    @pytest.mark.parametrize("status", ["ongoing", "all", RunStatus.PAUSED])
    def test_each_keeps_what_matches_it_and_nothing_else(
        self, bus, driver, list_page, counts, wanted, status
    ):
        failed = Import.start(Crate(number="c-1"), fails=True)
        driver.drain()
        Export.start()
        Export.start().pause()
        assert ids(list_page(status=status, **wanted)) == [failed.workflow_id]
        assert counts(**wanted)[status] == 1
        assert counts(**wanted)["all"] == 1

    @pytest.mark.parametrize(
        "name",
        ["workflow_class", "current_step", "error_class", "subject_type", "subject_id"],
    )
    @pytest.mark.parametrize("status", ["all", *RunStatus])
    def test_a_name_that_no_run_has_matches_nothing(
        self, bus, driver, list_page, counts, name, status
    ):
        Import.start(Crate(number="c-1"), fails=True)
        driver.drain()
        Export.start()
        assert ids(list_page(status=status, **{name: "elsewhere"})) == []
        assert set(counts(**{name: "elsewhere"}).values()) == {0}

    def test_they_combine(self, bus, list_page):
        one = Import.start(Crate(number="c-1"))
        two = Import.start(Crate(number="c-2"))
        assert ids(list_page(subject_type="Crate", subject_id="c-2")) == [two.workflow_id]
        assert ids(list_page(workflow_id=one.workflow_id)) == [one.workflow_id]
        assert ids(list_page(workflow_id=one.workflow_id, subject_id="c-2")) == []

    @pytest.mark.parametrize("status", ["all", "ongoing", RunStatus.READY])
    def test_a_step_is_that_of_the_newest_attempt_of_moving_and_settled_runs(
        self, bus, driver, list_page, counts, status
    ):
        run = Import.start()
        driver.drain()
        assert ids(list_page(status=status, current_step="inspect")) == [run.workflow_id]
        assert ids(list_page(status=status, current_step="unload")) == []
        run.cancel()
        assert ids(list_page(status="all", current_step="inspect")) == [run.workflow_id]
        assert counts(current_step="inspect")[RunStatus.CANCELLED] == 1
        assert counts(current_step="unload")["all"] == 0

    @pytest.mark.rows_by_hand
    def test_created_and_ended_times_include_their_beginning_and_not_their_end(
        self, bus, driver, database, list_page, counts
    ):
        run = Export.start()
        driver.drain()
        created, ended = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)
        database.rows("UPDATE pgbus.workflows SET created_at = %s, ended_at = %s", created, ended)
        instant = timedelta(microseconds=1)
        for name, at in (("created", created), ("ended", ended)):
            for begin, end, found in (
                (at, at + instant, 1),
                (at + instant, None, 0),
                (None, at, 0),
                (at, None, 1),
                (None, at + instant, 1),
            ):
                wanted = {f"{name}_from": begin, f"{name}_to": end}
                assert len(list_page(status="all", **wanted).runs) == found, wanted
                assert counts(**wanted)[RunStatus.FINISHED] == found, wanted
        assert ids(list_page(status="all", created_to=ended, ended_from=ended)) == [run.workflow_id]

    def test_runs_that_have_not_ended_are_outside_any_time_of_ending(self, bus, list_page, counts):
        Export.start()
        since = datetime(2000, 1, 1, tzinfo=UTC)
        assert ids(list_page(status="all", ended_from=since)) == []
        assert ids(list_page(ended_from=since)) == []
        assert counts(ended_from=since)["all"] == 0

    def test_only_the_error_of_the_newest_attempt_counts(self, bus, driver, list_page, counts):
        run = Import.start(fails=True)
        driver.drain()
        run.resume()
        assert ids(list_page(error_class="ConnectionError")) == []
        assert counts(error_class="ConnectionError")["all"] == 0
        driver.drain()
        assert ids(list_page(error_class="ConnectionError")) == [run.workflow_id]
        run.cancel()
        assert ids(list_page(status="all", error_class="ConnectionError")) == [run.workflow_id]
        assert counts(error_class="ConnectionError")[RunStatus.CANCELLED] == 1

    @pytest.mark.parametrize(
        ("late", "error", "stuck"),
        [
            (True, "TimeoutError", StuckReason.PAUSED_ERROR),
            (False, "LookupError", StuckReason.PAUSED_MANUAL),
        ],
    )
    def test_an_error_that_a_policy_answered_counts_while_the_answer_is_held(
        self, bus, driver, list_page, counts, monkeypatch, late, error, stuck
    ):
        monkeypatch.setattr(Transit, "meanwhile", lambda self: bus.find(self.workflow_id).pause())
        run = Transit.start(late=late)
        driver.drain()
        assert ids(list_page(error_class=error)) == [run.workflow_id]
        assert ids(list_page(error_class=error, stuck=stuck)) == [run.workflow_id]
        assert counts(error_class=error)[RunStatus.PAUSED] == 1
        assert counts(error_class=error, stuck=stuck)[RunStatus.PAUSED] == 1
        run.reload().cancel()
        assert ids(list_page(status="all", error_class=error)) == [run.workflow_id]
        assert counts(error_class=error)[RunStatus.CANCELLED] == 1

    def test_an_error_still_counts_whose_step_was_skipped_while_another_try_was_held(
        self, bus, driver, list_page, counts, monkeypatch
    ):
        monkeypatch.setattr(Transit, "meanwhile", lambda self: bus.find(self.workflow_id).pause())
        run = Transit.start(late=True)
        driver.drain()
        assert run.reload().skip().status == "finished"
        wanted = {"status": "all", "error_class": "TimeoutError"}
        assert ids(list_page(**wanted)) == [run.workflow_id]
        assert counts(**wanted)["all"] == 1
        assert ids(list_page(status="all", error_class="none")) == []

    @pytest.mark.parametrize(
        ("wanted", "statuses"),
        [
            ({}, {"paused"}),
            ({"status": "all"}, {"paused", "cancelled"}),
            ({"status": RunStatus.CANCELLED}, {"cancelled"}),
            ({"stuck": StuckReason.PAUSED_ERROR, "held": NO_END}, {"paused"}),
        ],
    )
    def test_pages_of_an_error_have_each_run_whose_newest_attempt_has_it(
        self, bus, driver, list_page, counts, wanted, statuses
    ):
        failed = [Import.start(fails=True) for _ in range(12)]
        driver.drain()
        Import.start().pause()
        for place, run in enumerate(failed):
            if place % 3 == 1:
                run.cancel()
            if place % 3 == 2:
                run.resume()
        kept = [run.workflow_id for run in reversed(failed) if run.reload().status in statuses]
        wanted = {"error_class": "ConnectionError", **wanted}
        pages = [list_page(limit=3, **wanted)]
        while pages[-1].older:
            pages.append(list_page(limit=3, after=pages[-1].older, **wanted))
        assert [*chain(*map(ids, pages))] == kept
        assert list_page(limit=3, before=pages[-1].newer, **wanted) == pages[-2]
        counted = counts(**wanted)
        assert (counted[RunStatus.PAUSED], counted["ongoing"]) == (4, 4)
        assert counted[RunStatus.CANCELLED] == (0 if "stuck" in wanted else 4)

    def test_a_run_that_failed_before_has_no_error(self, bus, driver, list_page, counts):
        run = Import.start(fails=True)
        driver.drain()
        run.reload().skip().cancel()
        assert ids(list_page(status="all", error_class=NO_ERROR)) == [run.workflow_id]
        assert counts(error_class=NO_ERROR)[RunStatus.CANCELLED] == 1

    def test_no_error_is_a_filter_of_its_own(self, bus, driver, list_page, counts):
        failed, done = Import.start(fails=True), Export.start()
        driver.drain()
        ready = Export.start()
        without = [ready.workflow_id, done.workflow_id]
        assert ids(list_page(status="all", error_class=NO_ERROR)) == without
        counted = counts(error_class=NO_ERROR)
        assert (counted["all"], counted[RunStatus.PAUSED]) == (2, 0)
        failed.resume()
        assert counts(error_class=NO_ERROR)["all"] == 3

    def test_each_way_of_being_stuck_lists_its_own(self, bus, driver, database, list_page, counts):
        failed, waiting = Import.start(fails=True), Customs.start()
        driver.drain()
        age(database, "8 days", waiting)
        overdue, manual = Export.start(), Export.start().pause()
        age(database, "2 hours", overdue)
        Export.start()
        of = {
            StuckReason.PAUSED_ERROR: (failed, RunStatus.PAUSED),
            StuckReason.PAUSED_MANUAL: (manual, RunStatus.PAUSED),
            StuckReason.OVERDUE: (overdue, RunStatus.READY),
            StuckReason.WAITING_OVERDUE: (waiting, RunStatus.WAITING),
        }
        for reason in StuckReason:
            run, status = of.get(reason, (None, None))
            assert ids(list_page(stuck=reason)) == ([run.workflow_id] if run else []), reason
            counted = counts(stuck=reason)
            assert counted["all"] == counted["ongoing"] == bool(run), reason
            assert run is None or counted[status] == 1

    def test_an_overdue_step_that_was_not_even_sent_is_found(
        self, bus, driver, database, list_page
    ):
        run = Import.start()
        driver.drain()
        database.rows("UPDATE pgbus.workflow_steps SET send_at = send_at - interval '2 days'"
                      " WHERE send_at IS NOT NULL")  # fmt: skip
        age(database, "2 days", run)
        assert ids(list_page(stuck=StuckReason.OVERDUE)) == [run.workflow_id]


class TestCounts:
    def test_every_status_is_counted_whichever_is_listed(self, bus, driver, counts):
        finished, waiting = [Export.start() for _ in range(2)], Customs.start()
        driver.drain()
        Export.start().cancel()
        for _ in range(3):
            Export.start().pause()
        for _ in range(4):
            Export.start()
        expected = {
            "all": 11, "ongoing": 8, RunStatus.READY: 4, RunStatus.PERFORMING: 0,
            RunStatus.WAITING: 1, RunStatus.PAUSED: 3, RunStatus.FINISHED: 2,
            RunStatus.CANCELLED: 1,
        }  # fmt: skip
        assert finished
        assert waiting
        for status in ("ongoing", "all", *RunStatus):
            assert counts(status=status) == expected

    def test_a_count_beyond_the_cap_is_one_more_than_that(self, bus, driver, counts):
        for _ in range(3):
            Export.start().pause()
        for _ in range(2):
            Export.start()
        counted = counts(cap=2)
        assert counted[RunStatus.PAUSED] == 3
        assert counted[RunStatus.READY] == 2
        assert counted["ongoing"] == counted["all"] == 3

    def test_those_that_perform_do_not_hide_that_many_are_ready(self, bus, driver, counts):
        for _ in range(6):
            Export.start()
        for _ in range(2):
            driver.take()
        for cap, ready in ((2, 3), (3, 4), (4, 4), (9, 4)):
            counted = counts(cap=cap)
            assert (counted[RunStatus.READY], counted[RunStatus.PERFORMING]) == (ready, 2), cap


def test_ended_runs_are_hidden_only_when_the_other_filters_match_them(bus, driver):
    def hidden(**wanted):
        with bus.services.database.autocommit() as connection:
            return runs.hides_ended(connection, bus.settings, RunFilter(**wanted))

    Import.start(Crate(number="c-1"))
    driver.drain()
    assert not hidden()
    Export.start()
    driver.drain()
    assert hidden()
    assert hidden(workflow_class=f"{HERE}.Export", current_step="load")
    assert not hidden(workflow_class=f"{HERE}.Export", current_step="unload")
    assert not hidden(workflow_class=f"{HERE}.Import")
