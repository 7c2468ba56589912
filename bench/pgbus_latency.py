"""pgbus: started here, run by a worker process that was idle."""

from __future__ import annotations

import json
import sys

from bench.contender import worker
from bench.idle_latency import sample
from bench.pgbus_app import Probed, bus
from bench.probe import VARIABLE, Probe


def main(url: str) -> dict[str, float]:
    bus.migrate()
    with Probe() as probe, worker(url, **{VARIABLE: probe.path}):
        Probed.start()
        probe.next()
        return sample(Probed.start, probe)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
