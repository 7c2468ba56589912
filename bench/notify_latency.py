"""A bare NOTIFY to a listening psycopg connection: the floor of every wake-up."""

from __future__ import annotations

import json
import sys

import psycopg

from bench.contender import running
from bench.idle_latency import sample
from bench.probe import VARIABLE, Probe


def main(url: str) -> dict[str, float]:
    with (
        Probe() as probe,
        running("bench.listener", url, url=url, **{VARIABLE: probe.path}),
        psycopg.connect(url, autocommit=True) as connection,
    ):
        probe.next()
        return sample(lambda: connection.execute("NOTIFY probe"), probe)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
