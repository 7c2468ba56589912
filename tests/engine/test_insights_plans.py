"""The list's questions are answered by indexes, whatever it is narrowed to: none reads all runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from pgbus.engine.insights import runs
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.settings import Settings
from pgbus.engine.states import RunStatus
from pgbus.engine.storage.database import Connection

NOW = datetime(2030, 1, 31, tzinfo=UTC)
SETTINGS = Settings(database_url="postgresql://")

#: A run an hour, of twenty classes; one in ten is ongoing, one in a hundred failed.
ATTEMPTS = """
INSERT INTO pgbus.workflow_steps (step_id, workflow_id, step_name, attempt, status, queue, created_at, scheduled_at,
                                  error_class)
SELECT n, lpad(to_hex(n), 32, '0')::uuid, 'step', 1, 'completed', 'q', at, at,
       CASE WHEN n % 100 = 0 THEN 'Error' || n / 100 % 20 END
  FROM generate_series(1, 20000) n,
       LATERAL (SELECT timestamptz '2030-01-31 00:00Z' - interval '1 hour' * (20000 - n)) t (at)
"""
RUNS = """
INSERT INTO pgbus.workflows (workflow_id, workflow_class, definition_digest, status, subject_type, subject_id,
                             arguments, current_step, step_id, created_at, updated_at, paused_at, ended_at,
                             settled_error)
SELECT lpad(to_hex(n), 32, '0')::uuid, 'shop.Class' || n % 20, '', status, 'Order', n, '{}', 'step' || n / 10 % 5, n,
       at, at, CASE WHEN status = 'paused' THEN at END, CASE WHEN status IN ('finished', 'cancelled') THEN at END,
       CASE WHEN status IN ('paused', 'finished', 'cancelled')
            THEN CASE WHEN n % 100 = 0 THEN 'Error' || n / 100 % 20 ELSE '' END END
  FROM generate_series(1, 20000) n,
       LATERAL (SELECT timestamptz '2030-01-31 00:00Z' - interval '1 hour' * (20000 - n)) t (at),
       LATERAL (SELECT CASE WHEN n % 10 > 0 THEN 'finished' ELSE (ARRAY['ready', 'performing', 'waiting', 'paused',
                                                                        'cancelled'])[1 + n / 10 % 5] END) u (status)
"""
EVENTS = """
INSERT INTO pgbus.workflow_events (workflow_id, event, actor, to_status, created_at)
SELECT workflow_id, 'started', 'app', 'ready', created_at FROM pgbus.workflows
"""


class Explaining(Connection):
    """Answers nothing, and keeps how PostgreSQL would find the answers."""

    __slots__ = ("plans",)

    @property
    def plan(self):
        return self.plans[-1]

    def rows(self, statement, **parameters):
        self.plans.append(
            "\n".join(line for (line,) in super().rows(f"EXPLAIN {statement}", **parameters))
        )
        return []


@pytest.fixture
def explaining(database):
    with database.connection(autocommit=True) as driver:
        for statement in (ATTEMPTS, RUNS, EVENTS):
            driver.execute(statement)
        driver.execute("VACUUM ANALYZE")
        # Of tables this small a good part would be read as a whole.
        for way in ("seqscan", "bitmapscan"):
            driver.execute(f"SET enable_{way} = off")
        explaining = Explaining(driver, "pgbus")
        explaining.plans = []
        yield explaining


CLASS = {"workflow_class": "shop.Class7"}
HOUR = {"ended_from": NOW - timedelta(days=9), "ended_to": NOW - timedelta(days=9, hours=-1)}

#: What narrows a list, the index of its pages, and that of its counts.
CASES = [
    ({}, "lane", "lane"),
    ({"status": "all"}, "lane", "lane"),
    *(({"status": status}, "lane|pkey", "lane") for status in RunStatus),
    (CLASS, "class", "class"),
    (CLASS | {"current_step": "step3"}, "class", "class"),
    (CLASS | {"status": RunStatus.CANCELLED}, "class", "class"),
    ({"current_step": "step3"}, "lane", "lane"),
    ({"subject_type": "Order", "subject_id": "77"}, "subject_id", "subject_id"),
    ({"workflow_id": "00000000-0000-0000-0000-00000000004d"}, "pkey", "pkey"),
    ({"created_from": NOW - timedelta(days=9)}, "lane", "lane"),
    (HOUR | {"status": "all"}, "ended_at", "ended_at"),
    ({"status": "all", "ended_from": NOW - timedelta(days=700)}, "lane", "lane|ended_at"),
]


@pytest.mark.parametrize(("wanted", "of_page", "of_counts"), CASES)
def test_pages_and_counts_are_found_by_an_index(explaining, wanted, of_page, of_counts):
    place = str(runs._Cursor(NOW - timedelta(days=300), runs.UUID(int=1)))
    for cursor in ({}, {"after": place}, {"before": place}):
        runs.page(explaining, SETTINGS, RunFilter(**wanted), limit=50, **cursor)
        assert re.search(rf" using workflows_({of_page}) ", explaining.plan), explaining.plan
        assert "Seq Scan on workflow" not in explaining.plan
    runs.status_counts(explaining, SETTINGS, RunFilter(**wanted))
    assert re.search(rf" using workflows_({of_counts}) ", explaining.plan), explaining.plan
    assert "Seq Scan on workflow" not in explaining.plan


@pytest.mark.parametrize("wanted", [{}, {"status": "all"}, CLASS, {"created_to": NOW}])
def test_a_page_is_read_in_the_order_of_its_index(explaining, wanted):
    runs.page(explaining, SETTINGS, RunFilter(**wanted), limit=50)
    assert "Sort  (" not in explaining.plan
    assert "Merge Append" in explaining.plan
    assert "Index Scan Backward" in explaining.plan


@pytest.mark.parametrize("wanted", [{}, CLASS])
def test_counts_do_not_read_the_runs_themselves_but_those_that_may_perform(explaining, wanted):
    runs.status_counts(explaining, SETTINGS, RunFilter(**wanted))
    read = re.findall(r"(?:Bitmap Heap|Index) Scan .*on workflows w\S*", explaining.plan)
    assert len(read) == 1, explaining.plan
    assert "(status = 'performing'::text)" in explaining.plan


def test_a_step_of_settled_runs_is_found_in_the_index(explaining):
    runs.status_counts(explaining, SETTINGS, RunFilter(**CLASS, current_step="step3"))
    assert explaining.plan.count("(settled_step = 'step3'::text))") == 4, explaining.plan


@pytest.mark.parametrize("status", ["all", "ongoing", RunStatus.CANCELLED])
def test_an_error_leads_to_the_runs_that_have_it(explaining, status):
    wanted = RunFilter(status=status, error_class="Error7")
    runs.page(explaining, SETTINGS, wanted, limit=50)
    runs.status_counts(explaining, SETTINGS, wanted)
    for plan in explaining.plans:
        assert "using workflows_error" in plan
        assert "Seq Scan on workflow" not in plan


def test_paused_runs_without_an_error_are_found_by_an_index(explaining):
    runs.status_counts(explaining, SETTINGS, RunFilter(error_class=runs.NO_ERROR))
    assert re.search(
        r"using workflows_error on .*\n.*Index Cond: \(\(settled_error = ''::text\)",
        explaining.plan,
    ), explaining.plan


@pytest.mark.parametrize("reason", StuckReason)
def test_stuck_runs_are_looked_for_among_those_that_may_be(explaining, reason):
    runs.page(explaining, SETTINGS, RunFilter(stuck=reason), limit=50)
    assert "Seq Scan on workflow" not in explaining.plan
