"""Bare `pgmq.send`, each in a commit of its own and in one round trip, from one thread."""

from __future__ import annotations

import json
import sys
import time

import psycopg
from pgmq.install import get_embedded_install_sql

MESSAGES, WARM_UP = 2000, 200
SEND = "SELECT pgmq.send('starts'::text, %s::jsonb, NULL::jsonb, 0::integer)"
BODY = json.dumps({"workflow_id": "0198c0de-0000-7000-8000-000000000000"})


def send(connection: psycopg.Connection, messages: int) -> None:
    for _ in range(messages):
        connection.execute(SEND, [BODY])


def main(url: str) -> dict[str, float]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(get_embedded_install_sql())
        connection.execute("SELECT pgmq.create('starts')")
        send(connection, WARM_UP)
        began = time.perf_counter()
        send(connection, MESSAGES)
        return {"starts_per_second": MESSAGES / (time.perf_counter() - began)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
