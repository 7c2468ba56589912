"""pgbus: a sweep that finds nothing beside a million finished runs and ten thousand that wait.

It is every task that is due more often than hourly; the reference reads the table of attempts from end
to end.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING

import psycopg

from bench.pgbus_app import History, bus
from bench.pgbus_load import FINISHED, copy
from bench.server import scalar
from pgbus import Workflow, step
from pgbus.engine.storage.claims import Worker
from pgbus.engine.sweep.tasks import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable

WAITING = 10_000
TIMES = 5
HOUR = 3600

SEQUENTIALLY = "SET max_parallel_workers_per_gather = 0; SET enable_indexonlyscan = off"
COUNT = "SELECT count(*) FROM pgbus.workflow_steps"
WHOLE_SCANS = """
SELECT sum(seq_scan)::integer FROM pg_stat_user_tables
 WHERE schemaname = 'pgbus' AND relname IN ('workflows', 'workflow_steps', 'workflow_events')
"""


class Waiting(Workflow):
    """What ten thousand waiting runs are copies of."""

    @step(wait_for="signal", wait_timeout=86_400)
    def waits(self) -> None:
        """Do nothing."""


def load(connection: psycopg.Connection) -> None:
    finished, waiting = History.start(), Waiting.start()
    pause = threading.Event()
    with bus.run_in_background():
        while (finished.reload().status, waiting.reload().status) != ("finished", "waiting"):
            pause.wait(0.1)
    copy(connection, finished.workflow_id, FINISHED)
    copy(connection, waiting.workflow_id, WAITING)
    connection.execute("VACUUM ANALYZE")
    connection.execute("CHECKPOINT")


def milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def sweep_once() -> None:
    """Do every task of a sweep: each is due when nothing was done before."""
    sweep = Sweep(bus.services, Worker("bench:1", None), lambda: False)
    sweep.tasks = tuple(task for task in sweep.tasks if task.every < HOUR)
    sweep.tick()


def whole_scans(connection: psycopg.Connection) -> int:
    bus.services.database.close()  # its connections report what they did at their end
    counted: int = scalar(connection, WHOLE_SCANS)
    return counted


def main(url: str) -> dict[str, float]:
    bus.migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        load(connection)
        before = whole_scans(connection)
        sweep_once()
        scans = whole_scans(connection) - before
        connection.execute(SEQUENTIALLY)
        sweeps, counts = [], []
        for _ in range(TIMES):
            sweeps.append(milliseconds(sweep_once))
            counts.append(milliseconds(lambda: connection.execute(COUNT)))
    return {
        "sweep_ms": statistics.median(sweeps),
        "count_ms": statistics.median(counts),
        "whole_scans": scans,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
