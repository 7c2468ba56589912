"""A bare NOTIFY round trip's far end: nothing happens between the wake and the report."""

from __future__ import annotations

import sys

import psycopg

from bench.probe import reached


def main(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN probe")
        reached()
        for _ in connection.notifies():
            reached()


if __name__ == "__main__":
    main(sys.argv[1])
