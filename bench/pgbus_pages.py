"""pgbus: what the console's pages ask of a million runs, beside counting the runs one by one.

Twenty classes over thirty days, three million attempts; a tenth of the runs is ongoing, half of those
stuck. `python -m bench.pgbus_pages --plans` prints the plan of every statement instead.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, contextmanager
from datetime import UTC, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import psycopg

from bench.server import scalar, server
from pgbus import Pgbus
from pgbus.engine.insights import counts, detail, runs, stuck, throughput
from pgbus.engine.insights.reading import reading
from pgbus.engine.insights.runs import NO_ERROR, RunFilter
from pgbus.engine.states import RunStatus
from pgbus.engine.storage.database import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pgbus.engine.settings import Settings

Page = Callable[[Connection], object]

RUNS = 1_000_000
PAGE = 50
TIMES = 5

#: The newest run has the highest `n`; half of the last three days' runs are ongoing, fewer of those before.
#: `lot` is from 0 to 999.
RUN = f"""
CREATE TEMP TABLE run AS
SELECT n, workflow_id, created_at, ongoing, lot, fault,
       'shop.workflows.Class' || abs(hashint4(n + 7)) % 20 AS workflow_class,
       CASE WHEN ongoing AND lot < 485 THEN 'paused' WHEN ongoing AND lot < 495 THEN 'ready'
            WHEN ongoing AND lot < 700 THEN 'waiting' WHEN ongoing AND lot < 999 THEN 'ready'
            WHEN ongoing THEN 'performing' WHEN lot < 30 THEN 'cancelled' ELSE 'finished' END AS status,
       CASE WHEN lot < 10 OR ongoing AND lot < 450 THEN fault
            WHEN ongoing AND lot < 470 THEN 'pgbus.engine.errors.StepStalled' END AS error_class,
       CASE WHEN ongoing AND lot BETWEEN 700 AND 998 THEN now() + interval '1 minute' * lot
            ELSE created_at END AS due_at,
       least(now(), created_at + interval '1 second' * CASE lot % 50 WHEN 0 THEN 400000 ELSE lot END) AS moved_at,
       abs(hashint4(n + 13)) % 5 AS first_step
  FROM (SELECT n, uuidv7(age) AS workflow_id, now() + age AS created_at, abs(hashint4(n)) % 1000 AS lot,
               CASE WHEN n > {RUNS} * 0.9 THEN n % 2 = 0 ELSE n % 18 = 0 END AS ongoing,
               'shop.errors.Error' || floor(sqrt(abs(hashint4(n + 11)) % 64)) AS fault
          FROM generate_series(1, {RUNS}) n, LATERAL (SELECT interval '30 days' * (n - {RUNS}) / {RUNS}) a (age)) r
"""

STEP = "(ARRAY['capture', 'reserve', 'notify', 'ship', 'invoice'])[1 + (first_step + k) % 5]"

#: Three a run; one in thirty-three of the first two failed and was tried again.
ATTEMPTS = f"""
INSERT INTO pgbus.workflow_steps
    (step_id, workflow_id, step_name, attempt, status, outcome, queue, created_at, scheduled_at, send_at, started_at,
     finished_at, worker, output, error_class, error_message, error, reattempted_by,
     waiting_for, waiting_since, timeout_at)
SELECT 3 * (n - 1) + k, workflow_id, {STEP}, 1, CASE WHEN tried_again THEN 'failed' ELSE 'completed' END,
       CASE WHEN tried_again THEN 'reattempted' ELSE 'completed' END, 'pgbus_workflows', created_at, created_at, NULL,
       created_at, moved_at, 'host:1', '{{"ok": true}}'::jsonb, CASE WHEN tried_again THEN fault END,
       CASE WHEN tried_again THEN 'no answer' END, NULL::jsonb, CASE WHEN tried_again THEN 'policy' END,
       NULL, NULL, NULL
  FROM run CROSS JOIN generate_series(1, 2) k CROSS JOIN LATERAL (SELECT (lot + k) % 33 = 0) t (tried_again)
UNION ALL
SELECT 3 * n, workflow_id, {STEP}, 1,
       CASE WHEN error_class IS NOT NULL THEN 'failed' ELSE CASE status
            WHEN 'waiting' THEN 'waiting' WHEN 'performing' THEN 'in_progress' WHEN 'finished' THEN 'completed'
            WHEN 'cancelled' THEN 'cancelled' ELSE 'scheduled' END END,
       CASE WHEN error_class IS NOT NULL THEN 'paused' WHEN status = 'finished' THEN 'completed' END,
       'pgbus_workflows', created_at, due_at, CASE WHEN due_at > now() THEN due_at END, created_at,
       CASE WHEN error_class IS NOT NULL OR NOT ongoing THEN moved_at END, 'host:1', NULL, error_class,
       CASE WHEN error_class IS NOT NULL THEN repeat('it did not answer ', 5) END,
       CASE WHEN error_class IS NOT NULL
            THEN jsonb_build_object('backtrace', ARRAY[repeat('line ', 60)], 'causes', '{{}}'::text[]) END,
       NULL, CASE status WHEN 'waiting' THEN 'paid' END,
       CASE WHEN status = 'waiting' THEN CASE WHEN lot < 500 THEN now() - interval '9 days' ELSE moved_at END END,
       CASE WHEN status = 'waiting' AND lot >= 500 THEN now() + interval '2 days' END
  FROM run CROSS JOIN (VALUES (3)) k (k)
 ORDER BY 1
"""

WORKFLOWS = f"""
INSERT INTO pgbus.workflows
    (workflow_id, workflow_class, definition_digest, status, subject_type, subject_id, arguments, current_step,
     step_id, created_at, updated_at, paused_at, ended_at, settled_error, sleeps_until)
SELECT workflow_id, workflow_class, repeat('0', 64), status, 'Order',
       (CASE WHEN ongoing THEN n ELSE n - n % 3 END)::text,
       jsonb_build_object('order_id', n, 'email', 'customer' || n || '@example.com'), {STEP}, 3 * n,
       created_at, moved_at, CASE status WHEN 'paused' THEN moved_at END, CASE WHEN NOT ongoing THEN moved_at END,
       CASE WHEN status IN ('paused', 'finished', 'cancelled') THEN coalesce(error_class, '') END,
       CASE WHEN status = 'ready' AND due_at > now() THEN due_at END
  FROM run CROSS JOIN (VALUES (3)) k (k) ORDER BY n
"""

EVENTS = """
INSERT INTO pgbus.workflow_events (workflow_id, event, actor, to_status, created_at)
SELECT workflow_id, event, 'app', status, created_at
  FROM run CROSS JOIN LATERAL (VALUES ('started'), (CASE WHEN status IN ('paused', 'finished', 'cancelled')
                                                         THEN status ELSE 'step_scheduled' END)) e (event)
 ORDER BY n
"""

IDS = f"SELECT setval('pgbus.workflow_steps_step_id_seq', 3 * {RUNS})"

#: Of one paused run: more attempts of its step, and what the trail tells of them.
LONG = """
WITH a AS (
    INSERT INTO pgbus.workflow_steps (workflow_id, step_name, attempt, status, outcome, queue, created_at, scheduled_at,
                                      started_at, finished_at, worker, error_class, error_message, error)
    SELECT workflow_id, step_name, n, 'failed', 'paused', queue, created_at, created_at, created_at, now(), worker,
           error_class, error_message, error
      FROM pgbus.workflow_steps CROSS JOIN generate_series(2, 98) n WHERE step_id = %s
    RETURNING workflow_id, step_id, step_name, attempt, created_at),
e AS (
    INSERT INTO pgbus.workflow_events (workflow_id, event, step_name, attempt, actor, to_status, created_at)
    SELECT workflow_id, event, step_name, attempt, 'system', 'paused', created_at
      FROM a CROSS JOIN unnest(ARRAY['step_scheduled', 'step_started', 'step_failed', 'paused', 'resumed',
                                     'rescheduled', 'run_now', 'signal_received', 'signal_claimed', 'stall_detected',
                                     'late_completion_ignored']) event)
UPDATE pgbus.workflows w SET step_id = n.step_id
  FROM (SELECT workflow_id, max(step_id) AS step_id FROM a GROUP BY 1) n WHERE w.workflow_id = n.workflow_id
RETURNING w.workflow_id::text
"""

COMMONEST, RAREST = "shop.errors.Error7", "shop.errors.Error0"

A_FAILED_ATTEMPT = (
    "SELECT max(step_id) FROM pgbus.workflow_steps WHERE error_class = 'shop.errors.Error4'"
)

#: A bulk load does better without these.
INDEXES = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid)
  FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
 WHERE relnamespace = 'pgbus'::regnamespace AND NOT indisprimary AND relname IN ('workflows', 'workflow_steps')
"""

SEQUENTIALLY = """
SET max_parallel_workers_per_gather = 0;
SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off
"""
COUNT = "SELECT count(*) FROM pgbus.workflows"


class Explaining(Connection):
    """A connection that prints how each statement was answered."""

    __slots__ = ()

    @classmethod
    def like(cls, connection: Connection) -> Self:
        """Return one on the same connection of the driver."""
        return cls(connection._driver, connection._schema)  # noqa: SLF001 # nothing else lends it

    def rows(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows, after their plan."""
        for (line,) in super().rows(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", **parameters):
            print(line)
        print()
        return super().rows(statement, **parameters)


@contextmanager
def without_indexes(connection: psycopg.Connection) -> Iterator[None]:
    indexes = connection.execute(INDEXES).fetchall()
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}")
    yield
    for _, definition in indexes:
        connection.execute(definition)


def load(connection: psycopg.Connection) -> str:
    """Fill the tables; return the run with the long history."""
    connection.execute("SET maintenance_work_mem = '512MB'")
    connection.execute(RUN)
    with without_indexes(connection):
        for statement in (ATTEMPTS, WORKFLOWS, EVENTS, IDS):
            connection.execute(statement)
    step_id = scalar(connection, A_FAILED_ATTEMPT)
    workflow_id: str = scalar(connection, LONG, step_id)
    connection.execute("VACUUM ANALYZE")
    connection.execute("CHECKPOINT")
    return workflow_id


def filters(now: datetime, workflow_id: str) -> dict[str, RunFilter]:
    """Return what lists are narrowed to, by name."""
    name, begin = "shop.workflows.Class3", now - timedelta(days=16)
    end = begin + timedelta(days=1)
    return {
        "ongoing": RunFilter(),
        "all": RunFilter(status="all"),
        "class": RunFilter(workflow_class=name),
        "commonest error class": RunFilter(error_class=COMMONEST),
        "commonest error class of all": RunFilter(status="all", error_class=COMMONEST),
        "rarest error class": RunFilter(error_class=RAREST),
        "rarest error class of all": RunFilter(status="all", error_class=RAREST),
        "no error": RunFilter(error_class=NO_ERROR),
        "no error of all": RunFilter(status="all", error_class=NO_ERROR),
        "class and step": RunFilter(workflow_class=name, current_step="ship"),
        "subject": RunFilter(status="all", subject_type="Order", subject_id="600000"),
        "created on a day": RunFilter(status="all", created_from=begin, created_to=end),
        "ended on a day": RunFilter(status="all", ended_from=begin, ended_to=end),
        "finished": RunFilter(status=RunStatus.FINISHED),
        "cancelled": RunFilter(status=RunStatus.CANCELLED),
        "paused": RunFilter(status=RunStatus.PAUSED),
        "performing": RunFilter(status=RunStatus.PERFORMING),
        "id": RunFilter(status="all", workflow_id=workflow_id),
    }


def list_page(
    connection: Connection, *, settings: Settings, wanted: RunFilter, after: str | None
) -> None:
    runs.page(connection, settings, wanted, limit=PAGE, after=after)
    runs.status_counts(connection, settings, wanted)
    counts.known_classes(connection)
    stuck.count(connection, settings)


def run_page(connection: Connection, *, settings: Settings, workflow_id: str) -> None:
    detail.detail(connection, settings, workflow_id, limit=100, inline=2048)
    stuck.count(connection, settings)


def attention(connection: Connection, *, settings: Settings) -> None:
    stuck.groups(connection, settings)
    stuck.count(connection, settings)


def pages(connection: Connection, settings: Settings, workflow_id: str) -> dict[str, Page]:
    """Return what asks all that a page asks, by the page's name; each list also from its middle."""
    ((now,),) = connection.rows("SELECT now()")
    half = RunFilter(status="all", created_to=now - timedelta(days=15))
    middle = runs.page(connection, settings, half, limit=PAGE).older
    asked: dict[str, Page] = {
        f"list, {name}{place}": partial(list_page, settings=settings, wanted=wanted, after=after)
        for name, wanted in filters(now, workflow_id).items()
        for place, after in (("", None), (", 10,000th page", middle))
    }
    asked["run, 100 attempts"] = partial(run_page, settings=settings, workflow_id=workflow_id)
    asked["runs by the hour"] = partial(throughput.last_hours, zone=UTC, now=now)
    asked["attention, 50,000 stuck"] = partial(attention, settings=settings)
    return asked


def milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def explain(bus: Pgbus, asked: dict[str, Page]) -> None:
    """Print the plan of every statement of the pages."""
    with reading(bus.services) as connection:
        for name, page in asked.items():
            print(f"== {name}\n")
            page(Explaining.like(connection))


def medians(
    bus: Pgbus, asked: dict[str, Page], counting: psycopg.Connection, count: str
) -> dict[str, float]:
    """Return the milliseconds of each page, and of the count that is made before each."""

    def look(page: Page) -> None:
        with reading(bus.services) as connection:
            page(connection)

    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(TIMES):
        for name, page in asked.items():
            taken["count"].append(milliseconds(lambda: counting.execute(count)))
            taken[name].append(milliseconds(partial(look, page)))
    return {name: statistics.median(times) for name, times in taken.items()}


def main(url: str, mode: str = "") -> dict[str, float]:
    with (
        closing(Pgbus(database_url=url)) as bus,
        psycopg.connect(url, autocommit=True) as counting,
    ):
        bus.migrate()
        workflow_id = load(counting)
        counting.execute(SEQUENTIALLY)
        with reading(bus.services) as connection:
            asked = pages(connection, bus.settings, workflow_id)
        if mode == "--plans":
            explain(bus, asked)
            return {}
        return medians(bus, asked, counting, COUNT)


if __name__ == "__main__":
    if sys.argv[1:] == ["--plans"]:
        with server() as running:
            main(running.fresh_database(), "--plans")
    else:
        print(json.dumps(main(*sys.argv[1:])))
