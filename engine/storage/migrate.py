"""Brings a database to the schema of this code: PGMQ, the tables, the functions.

Tables change by Alembic revisions; functions are made anew each time, from the files in
`functions/`. All of it is one transaction under one advisory lock, so any number of
processes may start at once, and a failure leaves the database as it was.
"""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text

from pgbus.engine.errors import SchemaOutdated
from pgbus.engine.storage import pgmq
from pgbus.engine.storage.revision import fingerprint, function_sources, quoted, version_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

# Of the whole database, not of one schema: schemas share its PGMQ.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('pgbus migrate'));"

_CREATE_SCHEMA = """
DO $pgbus$
BEGIN
    -- CREATE SCHEMA IF NOT EXISTS asks for the right to create even when the schema is there.
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END $pgbus$;
"""

_DROP_FUNCTIONS = r"""
DO $pgbus$
DECLARE
    obsolete regprocedure;
BEGIN
    FOR obsolete IN SELECT oid::regprocedure FROM pg_proc
                     WHERE pronamespace = '{schema}'::regnamespace AND proname NOT LIKE 'read\_%' LOOP
        EXECUTE format('DROP ROUTINE %s', obsolete);
    END LOOP;
END $pgbus$;
"""


# The readers of queues (see make_queue) outlive the drop, since workers may be reading.
_RENEW_READERS = r"""
DO $pgbus$
DECLARE
    queue text;
BEGIN
    FOR queue IN SELECT substr(proname, 6) FROM pg_proc
                  WHERE pronamespace = '{schema}'::regnamespace AND proname LIKE 'read\_%' LOOP
        IF to_regclass(format('pgmq.%I', 'q_' || queue)) IS NOT NULL THEN
            PERFORM {schema}.make_queue(queue);
        END IF;
    END LOOP;
END $pgbus$;
"""


def migrate(engine: Engine, schema: str) -> None:
    """Give the database PGMQ and this schema, up to date; do nothing where it already has them.

    Raise `SchemaOutdated` when a newer pgbus migrated the schema.
    """
    # What the lock's last holder committed must be seen, whatever the engine's default.
    options = {"isolation_level": "READ COMMITTED"}
    with engine.connect().execution_options(**options) as connection, connection.begin():
        _run(connection, _LOCK)
        if not any(_shortcomings(connection, schema)):
            return
        _refuse_newer(connection, schema)
        _run(connection, pgmq.install_sql())
        _run(connection, _in_schema(_CREATE_SCHEMA, schema))
        command.upgrade(_config(schema, connection=connection), "head")
        _run(connection, functions_sql(schema))


def pending(engine: Engine, schema: str) -> list[str]:
    """Return why the database is not what this code needs, in words; empty when it is."""
    with engine.connect() as connection:
        return list(_shortcomings(connection, schema))


def migration_sql(schema: str) -> str:
    """Return what `migrate` does to a database without the schema, as a script for `psql`."""
    tables = StringIO()
    command.upgrade(_config(schema, output_buffer=tables), "head", sql=True)
    return "\n".join(
        [
            "BEGIN;",
            _LOCK,
            pgmq.install_sql(),
            _in_schema(_CREATE_SCHEMA, schema),
            tables.getvalue(),
            functions_sql(schema),
            "COMMIT;\n",
        ]
    )


def functions_sql(schema: str) -> str:
    """Return SQL to drop the schema's functions, create this code's and record its fingerprint."""
    return "\n".join(
        [
            _in_schema(_DROP_FUNCTIONS, schema),
            *(_in_schema(source, schema) for source in function_sources()),
            _in_schema(_RENEW_READERS, schema),
            f"COMMENT ON TABLE {version_table(schema)} IS '{fingerprint()}';",
        ]
    )


def _shortcomings(connection: Connection, schema: str) -> Iterator[str]:
    if problem := pgmq.problem(connection):
        yield problem
    head = _scripts(schema).get_current_head()
    revision, recorded = _recorded(connection, schema)
    if revision is None:
        yield f"schema {schema} was never migrated"
    elif revision != head:
        yield f"schema {schema} is at revision {revision}, this pgbus needs {head}"
    elif recorded != fingerprint():
        yield f"the functions of schema {schema} are not those of this pgbus"


def _recorded(connection: Connection, schema: str) -> tuple[str | None, str | None]:
    """Return the revision and fingerprint that the last migration left; two None where none ran."""
    table = version_table(schema)
    if connection.scalar(text("SELECT to_regclass(:table)"), {"table": table}) is None:
        return None, None
    comment = text("SELECT obj_description(to_regclass(:table), 'pg_class')")
    return (
        connection.scalar(text(f"SELECT version_num FROM {table}")),
        connection.scalar(comment, {"table": table}),
    )


def _refuse_newer(connection: Connection, schema: str) -> None:
    revision, _ = _recorded(connection, schema)
    known = {script.revision for script in _scripts(schema).walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaOutdated(
            f"Schema {schema} is at revision {revision}, which this pgbus does not know: "
            "a newer pgbus migrated it. Install that one here."
        )


def _scripts(schema: str) -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(schema))


def _config(
    schema: str, *, connection: Connection | None = None, output_buffer: StringIO | None = None
) -> Config:
    config = Config(
        output_buffer=output_buffer, attributes={"schema": schema, "connection": connection}
    )
    config.set_main_option("script_location", "pgbus:migrations")
    return config


def _in_schema(sql: str, schema: str) -> str:
    return sql.replace("{schema}", quoted(schema)).replace("{channel}", schema)


def _run(connection: Connection, script: str) -> None:
    # Without parameters a driver takes several statements at once and leaves `%` alone.
    connection.exec_driver_sql(script, execution_options={"no_parameters": True})
