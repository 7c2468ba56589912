"""pgbus: the processor time a worker takes per step, with tracing off and on.

Each take is a worker of its own, in turn, on the same database; the median of each kind counts.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict

import psutil  # type: ignore[import-untyped]  # it has no types
import psycopg

from bench.contender import worker
from bench.pgbus_app import bus
from bench.pgbus_drain import STEPS, await_end, start
from bench.pgbus_idle import cpu_seconds

TAKES = 7
WARM_UP, RUNS = 200, 3_000

KINDS = {
    "off": {},
    "on": {"PGBUS_TRACING": "true"},
    # The application records spans, and sends them nowhere.
    "recording": {
        "PGBUS_TRACING": "true",
        "OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider",
    },
}


def take(url: str, connection: psycopg.Connection, variables: dict[str, str]) -> float:
    """Return the microseconds per step of a new worker, once it is warm."""
    with worker(url, **variables) as process:
        await_end(connection, start(WARM_UP))
        watched = psutil.Process(process.pid)
        before = cpu_seconds(watched)
        await_end(connection, start(RUNS))
        return (cpu_seconds(watched) - before) / (RUNS * STEPS) * 1e6


def main(url: str) -> dict[str, float]:
    bus.migrate()
    taken: dict[str, list[float]] = defaultdict(list)
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(TAKES):
            for kind, variables in KINDS.items():
                taken[kind].append(take(url, connection, variables))
    return {kind: statistics.median(values) for kind, values in taken.items()}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
