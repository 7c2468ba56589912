"""The PgQueuer side of the latency figure: one consumer, asyncpg, as its guide sets it up."""

from __future__ import annotations

import asyncio
import sys

import asyncpg  # type: ignore[import-untyped]  # it has no types
from pgqueuer import AsyncpgDriver, Job, PgQueuer

from bench.probe import reached


async def main(url: str) -> None:
    connection = await asyncpg.connect(url)
    consumer = PgQueuer(AsyncpgDriver(connection))

    @consumer.entrypoint("probe")
    async def probe(_: Job) -> None:
        reached()

    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
