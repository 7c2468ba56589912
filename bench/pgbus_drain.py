"""pgbus on the drain: one worker process of 8 threads, first claim to last end.

Both moments are the database's own, so neither the worker's start nor the watching counts.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

import psycopg

from bench.contender import worker
from bench.pgbus_app import ThreeSteps, bus
from bench.server import scalar
from pgbus import Run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

RUNS, STEPS, WARM_UP = 500, 3, 50
PATIENCE_SECONDS = 120

ONGOING = """
SELECT count(*) FROM pgbus.workflows WHERE workflow_id = ANY(%s::uuid[]) AND ended_at IS NULL
"""
ELAPSED = """
SELECT extract(epoch FROM max(run.ended_at) - min(attempt.started_at))::float
FROM pgbus.workflows run JOIN pgbus.workflow_steps attempt USING (workflow_id)
WHERE workflow_id = ANY(%s::uuid[])
"""


def start(runs: int) -> list[UUID]:
    started = ThreeSteps.start_many([(None, {})] * runs)
    return [run.workflow_id for run in started if isinstance(run, Run)]


def await_end(connection: psycopg.Connection, runs: Sequence[UUID]) -> None:
    """Return once none of the runs is ongoing, asking seldom enough not to be felt."""
    pause = threading.Event()
    for _ in range(PATIENCE_SECONDS * 4):
        ongoing = scalar(connection, ONGOING, runs)
        if not ongoing:
            return
        pause.wait(0.25)
    raise TimeoutError(f"{ongoing} of {len(runs)} runs did not end in {PATIENCE_SECONDS} s")


def drain(connection: psycopg.Connection) -> float:
    """Return the steps per second of a drain by the worker that runs already."""
    await_end(connection, start(WARM_UP))
    runs = start(RUNS)
    await_end(connection, runs)
    elapsed: float = scalar(connection, ELAPSED, runs)
    return RUNS * STEPS / elapsed


def main(url: str) -> dict[str, float]:
    bus.migrate()
    with psycopg.connect(url, autocommit=True) as connection, worker(url):
        return {"steps_per_second": drain(connection)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
