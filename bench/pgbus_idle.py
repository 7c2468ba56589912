"""pgbus: what a worker process that has worked costs while there is nothing to do.

Queries are counted as the database's commits: an idle worker's statements are autocommit.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import psutil  # type: ignore[import-untyped]  # it has no types
import psycopg

from bench.contender import worker
from bench.pgbus_app import bus
from bench.pgbus_drain import drain
from bench.server import scalar

SETTLE_SECONDS, WINDOW_SECONDS = 15, 60
MEBIBYTE = 1024 * 1024

COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"


def commits(url: str) -> int:
    """Return the database's commits, asked from another one so that asking adds none."""
    database = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    elsewhere = psycopg.conninfo.make_conninfo(url, dbname="postgres")
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        counted: int = scalar(connection, COMMITS, database)
        return counted


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main(url: str) -> dict[str, float]:
    bus.migrate()
    pause = threading.Event()
    with worker(url) as process:
        with psycopg.connect(url, autocommit=True) as connection:
            drain(connection)
        pause.wait(SETTLE_SECONDS)
        watched = psutil.Process(process.pid)
        before, cpu, began = commits(url), cpu_seconds(watched), time.perf_counter()
        pause.wait(WINDOW_SECONDS)
        seconds = time.perf_counter() - began
        return {
            "queries_per_second": (commits(url) - before) / seconds,
            "cpu_percent": (cpu_seconds(watched) - cpu) / seconds * 100,
            "rss_mib": watched.memory_info().rss / MEBIBYTE,
        }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
