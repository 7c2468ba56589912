"""pgbus: how long after its moment a step due in 30 seconds starts, worker and dispatcher up."""

from __future__ import annotations

import json
import sys

import psycopg

from bench.contender import running, worker
from bench.pgbus_app import Soon, bus
from bench.pgbus_drain import await_end
from bench.server import scalar

LATENESS = """
SELECT extract(epoch FROM max(started_at - scheduled_at))::float
FROM pgbus.workflow_steps WHERE workflow_id = ANY(%s::uuid[])
"""
RUNS = 20


def main(url: str) -> dict[str, float]:
    bus.migrate()
    dispatcher = ("pgbus.engine.cli", "dispatcher", "--app", "bench.pgbus_app:bus")
    with (
        psycopg.connect(url, autocommit=True) as connection,
        worker(url),
        running(*dispatcher, url=url),
    ):
        runs = [Soon.start().workflow_id for _ in range(RUNS)]
        await_end(connection, runs)
        return {"late_seconds": scalar(connection, LATENESS, runs)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
