"""pgbus: signals from here to runs that wait for them, performed by an idle worker process."""

from __future__ import annotations

import json
import sys
import threading

import psycopg

from bench.contender import worker
from bench.idle_latency import SAMPLES, WARM_UP, sample
from bench.pgbus_app import Signalled, bus
from bench.probe import VARIABLE, Probe
from bench.server import scalar

WAITING = "SELECT count(*) FROM pgbus.workflows WHERE status = 'waiting'"


def main(url: str) -> dict[str, float]:
    bus.migrate()
    with (
        Probe() as probe,
        worker(url, **{VARIABLE: probe.path}),
        psycopg.connect(url, autocommit=True) as connection,
    ):
        runs = [Signalled.start() for _ in range(WARM_UP + SAMPLES)]
        pause = threading.Event()
        while scalar(connection, WAITING) < len(runs):
            pause.wait(0.1)
        return sample(lambda: runs.pop().signal("go"), probe)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
