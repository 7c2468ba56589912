"""pgbus on jobs that do nothing, 8 threads: single ones, one batch of them, ten smaller batches.

All become visible with one commit; the rate is from the first read to the last end.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session

from bench.contender import worker
from bench.pgbus_app import bus, nothing
from bench.server import scalar
from pgbus import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS, SMALL, WARM_UP = 5_000, 500, 1_000
PATIENCE_SECONDS = 120

LEFT = "SELECT count(*) FROM pgmq.q_pgbus_default"
ELAPSED = """
SELECT extract(epoch FROM max(archived_at) - min(last_read_at))::float FROM pgmq.a_pgbus_default
"""


def send_singly(session: Session, jobs: int) -> None:
    for number in range(jobs):
        nothing.options(session=session).enqueue(number)


def send_batches(session: Session, jobs: int, *, size: int) -> None:
    for _ in range(jobs // size):
        with Batch.open(session=session) as batch:
            batch.add_many(nothing, [(number,) for number in range(size)])


def jobs_per_second(
    connection: psycopg.Connection, engine: sqlalchemy.Engine, send: Callable[[Session], None]
) -> float:
    """Return the rate at which the worker that runs already drains what `send` sends."""
    connection.execute("TRUNCATE pgmq.a_pgbus_default")
    with Session(engine) as session:
        send(session)
        session.commit()
    pause = threading.Event()
    for _ in range(PATIENCE_SECONDS * 4):
        if not scalar(connection, LEFT):
            break
        pause.wait(0.25)
    jobs: int = scalar(connection, "SELECT count(*) FROM pgmq.a_pgbus_default")
    elapsed: float = scalar(connection, ELAPSED)
    return jobs / elapsed


def main(url: str) -> dict[str, float]:
    bus.migrate()
    bus.ensure_queues(["pgbus_default"])
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
    with psycopg.connect(url, autocommit=True) as connection, worker(url):
        jobs_per_second(connection, engine, lambda session: send_singly(session, WARM_UP))
        return {
            "jobs_per_second": jobs_per_second(
                connection, engine, lambda session: send_singly(session, JOBS)
            ),
            "members_per_second_of_5000": jobs_per_second(
                connection, engine, lambda session: send_batches(session, JOBS, size=JOBS)
            ),
            "members_per_second_of_500": jobs_per_second(
                connection, engine, lambda session: send_batches(session, JOBS, size=SMALL)
            ),
        }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
