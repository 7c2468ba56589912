"""PgQueuer: enqueued through its synchronous client, run by its worker in another process."""

from __future__ import annotations

import asyncio
import json
import sys

import asyncpg  # type: ignore[import-untyped]  # it has no types
import psycopg
from pgqueuer import AsyncpgDriver, Queries
from pgqueuer.db import SyncPsycopgDriver
from pgqueuer.queries import SyncQueries

from bench.contender import running
from bench.idle_latency import sample
from bench.probe import VARIABLE, Probe


async def install(url: str) -> None:
    connection = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


def main(url: str) -> dict[str, float]:
    asyncio.run(install(url))
    with (
        Probe() as probe,
        running("bench.pgqueuer_worker", url, url=url, **{VARIABLE: probe.path}),
        psycopg.connect(url, autocommit=True) as connection,
    ):
        queries = SyncQueries(SyncPsycopgDriver(connection))
        queries.enqueue("probe", None)
        probe.next()
        return sample(lambda: queries.enqueue("probe", None), probe)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
