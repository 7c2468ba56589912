"""Filling the tables: copies of a run that pgbus itself finished, or scheduled for days ahead."""

from __future__ import annotations

import json
import sys

import psycopg
from psycopg import sql

from bench.contender import worker
from bench.pgbus_app import FarOff, History, bus
from bench.pgbus_drain import await_end

FINISHED, SCHEDULED = 1_000_000, 200_000

# The copies' ids lie before the present, as those of older runs do.
COPIES = """
CREATE TEMP TABLE copies ON COMMIT DROP AS
SELECT uuidv7(make_interval(secs => n - %s)) AS workflow_id FROM generate_series(1, %s) n
"""
COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = 'pgbus' AND table_name = %s AND is_identity = 'NO' AND is_generated = 'NEVER'
  AND column_name NOT IN ('workflow_id', 'step_id')
"""
CHILDREN = """
INSERT INTO pgbus.{table} (workflow_id, {columns})
SELECT copies.workflow_id, {columns} FROM copies CROSS JOIN
  (SELECT {columns} FROM pgbus.{table} WHERE workflow_id = %s ORDER BY {identity}) original
"""
RUNS = """
INSERT INTO pgbus.workflows (workflow_id, step_id, {columns})
SELECT newest.workflow_id, newest.step_id, {columns} FROM
  (SELECT workflow_id, max(step_id) AS step_id
   FROM pgbus.workflow_steps JOIN copies USING (workflow_id) GROUP BY workflow_id) newest
  CROSS JOIN (SELECT {columns} FROM pgbus.workflows WHERE workflow_id = %s) original
"""


def columns_of(connection: psycopg.Connection, table: str) -> sql.Composed:
    names = connection.execute(COLUMNS, [table]).fetchall()
    return sql.SQL(", ").join(sql.Identifier(name) for (name,) in names)


def copy(connection: psycopg.Connection, original: str, copies: int) -> None:
    """Copy a run with its attempts and its trail, `copies` times, under new ids."""
    with connection.transaction():
        connection.execute(COPIES, [copies, copies])
        for table, identity in (("workflow_steps", "step_id"), ("workflow_events", "event_id")):
            statement = sql.SQL(CHILDREN).format(
                table=sql.Identifier(table),
                columns=columns_of(connection, table),
                identity=sql.Identifier(identity),
            )
            connection.execute(statement, [original])
        statement = sql.SQL(RUNS).format(columns=columns_of(connection, "workflows"))
        connection.execute(statement, [original])


def main(url: str, kind: str) -> dict[str, float]:
    bus.migrate()
    original = (History if kind == "finished" else FarOff).start().workflow_id
    with psycopg.connect(url, autocommit=True) as connection:
        if kind == "finished":
            with worker(url):
                await_end(connection, [original])
        copies = FINISHED if kind == "finished" else SCHEDULED
        copy(connection, original, copies)
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
    return {"copies": copies}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
