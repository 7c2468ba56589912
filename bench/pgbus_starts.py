"""pgbus: single starts in transactions of their own, then many by `start_many`; no worker."""

from __future__ import annotations

import json
import sys
import time

from bench.pgbus_app import ThreeSteps, bus

RUNS, WARM_UP, MANY = 2000, 200, 5000


def start_singly(runs: int) -> None:
    for _ in range(runs):
        ThreeSteps.start()


def main(_: str) -> dict[str, float]:
    bus.migrate()
    start_singly(WARM_UP)
    began = time.perf_counter()
    start_singly(RUNS)
    between = time.perf_counter()
    ThreeSteps.start_many([(None, {})] * MANY)
    ended = time.perf_counter()
    return {
        "starts_per_second": RUNS / (between - began),
        "many_per_second": MANY / (ended - between),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
