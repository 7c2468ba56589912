"""DBOS: messages sent from here by its client to a workflow that waits in recv() elsewhere."""

from __future__ import annotations

import json
import sys

from dbos import DBOSClient

from bench.contender import running
from bench.dbos_receiver import TOPIC, WORKFLOW_ID
from bench.idle_latency import sample
from bench.probe import VARIABLE, Probe


def main(url: str) -> dict[str, float]:
    with (
        Probe() as probe,
        running("bench.dbos_receiver", url, url=url, **{VARIABLE: probe.path}),
    ):
        probe.next()
        client = DBOSClient(system_database_url=url)
        try:
            return sample(lambda: client.send(WORKFLOW_ID, "go", topic=TOPIC), probe)
        finally:
            client.destroy()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
