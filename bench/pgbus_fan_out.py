"""pgbus: a fan-out of jobs that do nothing, from its body's end to the run's next step."""

from __future__ import annotations

import json
import sys

import psycopg
import sqlalchemy

from bench.contender import worker
from bench.pgbus_app import MEMBERS, FannedOut, bus
from bench.pgbus_batches import jobs_per_second, send_singly
from bench.probe import VARIABLE, Probe

ROUNDS = 3


def main(url: str) -> dict[str, float]:
    bus.migrate()
    bus.ensure_queues(["pgbus_default"])
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
    with (
        Probe() as probe,
        worker(url, **{VARIABLE: probe.path}),
        psycopg.connect(url, autocommit=True) as connection,
    ):
        singly = fanned_out = 0.0
        for _ in range(ROUNDS):  # the first warms up
            singly = jobs_per_second(
                connection, engine, lambda session: send_singly(session, MEMBERS)
            )
            FannedOut.start()
            body_ended = probe.next()
            fanned_out = MEMBERS / (probe.next() - body_ended)
        return {"jobs_per_second": singly, "members_per_second": fanned_out}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
