"""pgbus: what the insights by class ask of a million attempts, beside counting the attempts one by one.

Twenty classes over thirty days, five attempts a run, a tenth of the runs ongoing. `python -m
bench.pgbus_insights --plans` prints the plan of every statement instead.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import psycopg

from bench.pgbus_pages import SEQUENTIALLY, Page, explain, medians, without_indexes
from bench.server import server
from pgbus import Pgbus
from pgbus.engine.insights import classes, performance, windows
from pgbus.engine.insights.reading import now
from pgbus.engine.insights.windows import Window

if TYPE_CHECKING:
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

ATTEMPTS_PER_RUN = 5
CLASS = "shop.workflows.Class3"
ZONE = ZoneInfo("Europe/Berlin")

#: The newest run has the highest `n`; `lot` is from 0 to 999. An ongoing run stands at its last attempt.
RUN = """
CREATE TEMP TABLE run AS
SELECT n, uuidv7(age) AS workflow_id, now() + age AS created_at, lot,
       'shop.workflows.Class' || abs(hashint4(n + 7)) % 20 AS workflow_class,
       CASE WHEN n % 10 > 0 THEN CASE WHEN lot < 30 THEN 'cancelled' ELSE 'finished' END
            WHEN lot < 100 THEN 'paused' WHEN lot < 500 THEN 'waiting' ELSE 'ready' END AS status,
       least(now(), now() + age + interval '1 second' * CASE lot % 50 WHEN 0 THEN 400000 ELSE 10 * lot END) AS moved_at
  FROM generate_series(1, {runs}) n,
       LATERAL (SELECT interval '30 days' * (n - {runs}) / {runs}, abs(hashint4(n)) % 1000) a (age, lot)
"""

#: Evenly from the run's begin to its latest move; one in thirty-three failed and was tried again, one in
#: twenty was skipped; a revision a week.
ATTEMPTS = f"""
INSERT INTO pgbus.workflow_steps
    (step_id, workflow_id, step_name, attempt, status, outcome, queue, created_at, scheduled_at, send_at, started_at,
     finished_at, worker, revision, output, error_class, error_message, waiting_for, waiting_since)
SELECT {ATTEMPTS_PER_RUN} * (n - 1) + k, workflow_id, 'step_' || k, 1,
       CASE WHEN open THEN CASE status WHEN 'paused' THEN 'failed' WHEN 'waiting' THEN 'waiting' ELSE 'scheduled' END
            WHEN failed THEN 'failed' WHEN skipped THEN 'skipped' ELSE 'completed' END,
       CASE WHEN open AND status <> 'paused' THEN NULL WHEN open THEN 'paused' WHEN failed THEN 'reattempted'
            WHEN skipped THEN 'skipped' ELSE 'completed' END,
       'pgbus_workflows', due_at, due_at, CASE WHEN open AND status = 'ready' THEN now() + interval '1 day' END,
       CASE WHEN NOT open OR status = 'paused' THEN due_at + interval '1 millisecond' * (lot % 97) END,
       CASE WHEN NOT open OR status = 'paused' THEN due_at + (moved_at - created_at) / {ATTEMPTS_PER_RUN} END,
       'host:1', 'r' || extract(week FROM due_at), '{{"ok": true}}'::jsonb,
       CASE WHEN open AND status = 'paused' OR failed THEN 'shop.errors.Error' || lot % 8 END,
       CASE WHEN open AND status = 'paused' OR failed THEN 'it did not answer' END,
       CASE WHEN open AND status = 'waiting' THEN 'paid' END, CASE WHEN open AND status = 'waiting' THEN due_at END
  FROM run CROSS JOIN generate_series(1, {ATTEMPTS_PER_RUN}) k
 CROSS JOIN LATERAL (SELECT created_at + (moved_at - created_at) * (k - 1) / {ATTEMPTS_PER_RUN},
                            k = {ATTEMPTS_PER_RUN} AND status NOT IN ('finished', 'cancelled'),
                            (lot + k) % 33 = 0, (lot + k) % 20 = 0) a (due_at, open, failed, skipped)
 ORDER BY 1
"""

WORKFLOWS = f"""
INSERT INTO pgbus.workflows
    (workflow_id, workflow_class, definition_digest, status, subject_type, subject_id, arguments, current_step,
     step_id, created_at, updated_at, paused_at, ended_at, settled_error, sleeps_until)
SELECT workflow_id, workflow_class, repeat('0', 64), status, 'Order', n::text, jsonb_build_object('order_id', n),
       'step_{ATTEMPTS_PER_RUN}', {ATTEMPTS_PER_RUN} * n, created_at, moved_at,
       CASE status WHEN 'paused' THEN moved_at END,
       CASE WHEN status IN ('finished', 'cancelled') THEN moved_at END,
       CASE WHEN status = 'paused' THEN 'shop.errors.Error' || lot % 8
            WHEN status IN ('finished', 'cancelled') THEN '' END,
       CASE status WHEN 'ready' THEN now() + interval '1 day' END
  FROM run ORDER BY n
"""

DEFINITIONS = """
INSERT INTO pgbus.workflow_definitions (workflow_class, digest, steps, created_at)
SELECT DISTINCT workflow_class, repeat('0', 64), '[]'::jsonb, now() FROM run
"""

COUNT = "SELECT count(*) FROM pgbus.workflow_steps"


def load(connection: psycopg.Connection, runs: int) -> None:
    connection.execute("SET maintenance_work_mem = '512MB'")
    connection.execute(RUN.format(runs=runs))
    with without_indexes(connection):
        for statement in (ATTEMPTS, WORKFLOWS, DEFINITIONS):
            connection.execute(statement)
    connection.execute("VACUUM ANALYZE")
    connection.execute("CHECKPOINT")


def list_page(connection: Connection, *, settings: Settings, window: Window) -> None:
    classes.summaries(connection, settings, windows.span(settings, window, now(connection)))


def class_page(connection: Connection, *, settings: Settings, window: Window) -> None:
    span = windows.span(settings, window, now(connection))
    performance.performance(connection, settings, CLASS, span, ZONE)


def pages(settings: Settings) -> dict[str, Page]:
    """Return what asks all that a page asks, by the page's name and its window."""
    return {
        f"{name}, {window}": partial(page, settings=settings, window=window)
        for name, page in (("list", list_page), ("class", class_page))
        for window in (Window.DAY, Window.MONTH)
    }


def main(url: str, runs: str, mode: str = "") -> dict[str, float]:
    with (
        closing(Pgbus(database_url=url)) as bus,
        psycopg.connect(url, autocommit=True) as counting,
    ):
        bus.migrate()
        load(counting, int(runs))
        counting.execute(SEQUENTIALLY)
        asked = pages(bus.settings)
        if mode == "--plans":
            explain(bus, asked)
            return {}
        return medians(bus, asked, counting, COUNT)


if __name__ == "__main__":
    if sys.argv[1:] == ["--plans"]:
        with server() as running:
            main(running.fresh_database(), "200000", "--plans")
    else:
        print(json.dumps(main(*sys.argv[1:])))
