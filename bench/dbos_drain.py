"""DBOS on the same work: 500 workflows of 3 trivial steps, first start to last completion.

Workflows are started in the process that runs them: enqueued on a DBOS queue, even one polled
every 20 ms, they drain at three quarters of this.
"""

from __future__ import annotations

import json
import sys
import time

from dbos import DBOS, DBOSConfig

RUNS, STEPS, THREADS, WARM_UP = 500, 3, 10, 50


@DBOS.step()
def trivial(n: int) -> int:
    return n


@DBOS.workflow()
def three_steps() -> None:
    for n in range(STEPS):
        trivial(n)


def drain(runs: int) -> None:
    for handle in [DBOS.start_workflow(three_steps) for _ in range(runs)]:
        handle.get_result()


def main(url: str) -> dict[str, float]:
    config = DBOSConfig(
        name="bench",
        system_database_url=url,
        max_executor_threads=THREADS,
        log_level="WARNING",
    )
    DBOS(config=config)
    DBOS.launch()
    drain(WARM_UP)
    began = time.perf_counter()
    drain(RUNS)
    elapsed = time.perf_counter() - began
    DBOS.destroy()
    return {"steps_per_second": RUNS * STEPS / elapsed}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
