"""Migrating: at once, again, beside another schema, and to what a fresh schema would be."""

from __future__ import annotations

import multiprocessing

import pytest
import sqlalchemy
from alembic import command
from support.catalog import catalog

from pgbus.engine.errors import SchemaOutdated
from pgbus.engine.storage.migrate import _config, functions_sql, migrate, migration_sql, pending
from pgbus.engine.storage.revision import is_current, version_table
from pgbus.engine.storage.schema import metadata

#: The first waits for the timer; so did the last before it was paused.
OLDER_RUNS = """
INSERT INTO pgbus.workflows (workflow_id, workflow_class, definition_digest, status, arguments, current_step, step_id,
                             created_at, updated_at)
SELECT lpad(n::text, 32, '0')::uuid, 'shop.Order', '', status, '{}', 'pack', n, now(), now()
  FROM unnest(ARRAY['ready', 'ready', 'performing', 'waiting', 'paused']) WITH ORDINALITY AS r (status, n);
INSERT INTO pgbus.workflow_steps (step_id, workflow_id, step_name, attempt, status, queue, created_at, scheduled_at,
                                  send_at)
SELECT step_id, workflow_id, 'pack', 1, 'scheduled', 'q', now(), now() + interval '1 day',
       CASE WHEN step_id IN (1, 5) THEN now() + interval '1 day' END
  FROM pgbus.workflows;
INSERT INTO pgbus.processes (process_id, kind, host, pid, revision, details, started_at, heartbeat_at)
SELECT gen_random_uuid(), kind, 'h', 1, revision, '{}', timestamptz '2026-01-01' + hours * interval '1 hour', now()
  FROM (VALUES ('worker', 'r1', 2), ('worker', 'r1', 1), ('worker', NULL, 0), ('dispatcher', 'r2', 0))
       p (kind, revision, hours)
"""


def test_ten_processes_that_migrate_an_empty_database_at_once_all_succeed(empty_database, database):
    forked = multiprocessing.get_context("fork")
    together = forked.Barrier(10)
    processes = [
        forked.Process(target=_migrate_together, args=(empty_database, together)) for _ in range(10)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0] * 10
    assert catalog(empty_database, "pgbus") == catalog(database, "pgbus")
    assert empty_database.rows("SELECT version_num FROM pgbus.schema_version") == [("0007",)]
    assert empty_database.rows("SELECT pgmq.create('q')") != []


def test_the_migrations_end_equal_to_a_fresh_schema(database, empty_database):
    with empty_database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA pgbus")
        metadata("pgbus").create_all(connection)
        connection.exec_driver_sql("CREATE TABLE pgbus.schema_version ()")
        connection.exec_driver_sql(
            functions_sql("pgbus"), execution_options={"no_parameters": True}
        )

    migrated, fresh = catalog(database, "pgbus"), catalog(empty_database, "pgbus")
    for kind in migrated:
        assert migrated[kind] == fresh[kind], kind
    assert len(migrated["functions"]) > 3


def test_the_script_does_what_migrating_does(database, empty_database):
    empty_database.rows(migration_sql("pgbus"))

    assert catalog(empty_database, "pgbus") == catalog(database, "pgbus")
    assert pending(empty_database.engine, "pgbus") == []


def test_another_schema_stands_beside_the_first_and_shares_its_pgmq(database):
    migrate(database.engine, "Shop bus")

    assert pending(database.engine, "Shop bus") == []
    assert pending(database.engine, "pgbus") == []
    renamed = {
        kind: {item.replace('"Shop bus"', "pgbus").replace("Shop bus", "pgbus") for item in items}
        for kind, items in catalog(database, "Shop bus").items()
    }
    expected = {
        kind: {item.replace('"pgbus"', "pgbus") for item in items}
        for kind, items in catalog(database, "pgbus").items()
    }
    assert renamed == expected


def test_migrating_again_leaves_everything_as_it_was(database):
    oids = "SELECT oid FROM pg_proc WHERE pronamespace = 'pgbus'::regnamespace ORDER BY oid"
    before = database.rows(oids)

    migrate(database.engine, "pgbus")

    assert database.rows(oids) == before


def test_a_failure_leaves_no_trace(empty_database, monkeypatch):
    monkeypatch.setattr("pgbus.engine.storage.migrate.functions_sql", lambda schema: "SELECT 1 / 0")

    autocommit = empty_database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(sqlalchemy.exc.DataError):
        migrate(autocommit, "pgbus")

    assert (
        empty_database.rows("SELECT nspname FROM pg_namespace WHERE nspname IN ('pgbus', 'pgmq')")
        == []
    )


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("isolation_level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_it_works_with_any_driver_and_isolation_level(empty_database, driver, isolation_level):
    engine = sqlalchemy.create_engine(
        empty_database.sqlalchemy_url(driver), isolation_level=isolation_level
    )

    migrate(engine, "pgbus")

    assert pending(engine, "pgbus") == []
    engine.dispose()


def test_a_role_that_may_not_create_schemas_can_migrate_one_that_is_there(database):
    role = f"{database.name}_owner"
    database.rows(
        f"""
        CREATE ROLE {role};
        CREATE SCHEMA prepared AUTHORIZATION {role};
        GRANT USAGE ON SCHEMA pgmq TO {role};
        """
    )
    engine = sqlalchemy.create_engine(
        database.sqlalchemy_url("psycopg").update_query_dict({"options": f"-c role={role}"})
    )

    migrate(engine, "prepared")

    assert pending(database.engine, "prepared") == []
    engine.dispose()
    database.rows(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_an_empty_database_lacks_pgmq_and_the_schema(empty_database):
    assert pending(empty_database.engine, "pgbus") == [
        "PGMQ is not installed",
        "schema pgbus was never migrated",
    ]
    assert not _is_current(empty_database)


def test_a_migrated_database_is_current(database):
    assert pending(database.engine, "pgbus") == []
    assert _is_current(database)


def test_a_schema_without_pgmq_is_not_current(database):
    database.rows("DROP SCHEMA pgmq CASCADE")

    assert pending(database.engine, "pgbus") == ["PGMQ is not installed"]
    assert not _is_current(database)


def test_a_schema_of_another_name_is_not_current(database):
    assert pending(database.engine, "other") == ["schema other was never migrated"]


def test_runs_that_sleep_already_are_put_into_their_lane(empty_database):
    with empty_database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA pgbus")
        command.upgrade(_config("pgbus", connection=connection), "0005")
        connection.exec_driver_sql(OLDER_RUNS, execution_options={"no_parameters": True})

    migrate(empty_database.engine, "pgbus")

    assert empty_database.rows(
        "SELECT lane, sleeps_until = s.send_at, settled_step, settled_attempt"
        "  FROM pgbus.workflows JOIN pgbus.workflow_steps s USING (step_id) ORDER BY step_id"
    ) == [
        ("sleeping", True, None, None),
        ("moving", None, None, None),
        ("moving", None, None, None),
        ("waiting", None, "pack", 4),
        ("paused", None, "pack", 5),
    ]
    assert empty_database.rows(
        "SELECT revision, first_seen_at = timestamptz '2026-01-01' + interval '1 hour'"
        "  FROM pgbus.app_revisions"
    ) == [("r1", True)]


def test_changed_functions_are_found_and_mended(database):
    expected = catalog(database, "pgbus")
    database.rows(f"COMMENT ON TABLE {version_table('pgbus')} IS 'those of yesterday'")
    database.rows("CREATE FUNCTION pgbus.of_yesterday() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    assert pending(database.engine, "pgbus") == [
        "the functions of schema pgbus are not those of this pgbus"
    ]
    assert not _is_current(database)

    migrate(database.engine, "pgbus")

    assert _is_current(database)
    assert catalog(database, "pgbus") == expected


def test_an_older_revision_is_found(database):
    database.rows("UPDATE pgbus.schema_version SET version_num = '0000'")

    assert pending(database.engine, "pgbus") == [
        "schema pgbus is at revision 0000, this pgbus needs 0007"
    ]


def test_a_schema_of_a_newer_pgbus_is_refused_untouched(database):
    database.rows("UPDATE pgbus.schema_version SET version_num = '9999'")

    with pytest.raises(SchemaOutdated, match="pgbus is at revision 9999, which this pgbus"):
        migrate(database.engine, "pgbus")

    assert database.value("SELECT version_num FROM pgbus.schema_version") == "9999"


def _is_current(database):
    with database.engine.connect() as connection:
        return is_current(connection, "pgbus")


def _migrate_together(database, together):
    # Would not see what the others did while it waited for the lock, if migrate() let it.
    engine = database.engine.execution_options(isolation_level="REPEATABLE READ")
    together.wait()
    migrate(engine, "pgbus")


def test_a_queue_can_be_read_before_and_after_its_reader_is_renewed(empty_database):
    migrate(empty_database.engine, "pgbus")
    empty_database.rows("SELECT pgbus.make_queue('orders')")
    empty_database.rows("SELECT pgmq.send('orders', '1'), pgmq.send('orders', '2')")
    first = empty_database.rows("SELECT msg_id, read_ct, message FROM pgbus.read_orders(30)")
    empty_database.rows("COMMENT ON TABLE pgbus.schema_version IS 'older functions'")
    migrate(empty_database.engine, "pgbus")
    second = empty_database.rows("SELECT msg_id, read_ct, message FROM pgbus.read_orders(30)")
    assert (first, second) == ([(1, 1, 1)], [(2, 1, 2)])
    assert empty_database.rows("SELECT FROM pgbus.read_orders(30)") == []


def test_the_reader_of_a_dropped_queue_keeps_no_migration_from_ending(empty_database):
    migrate(empty_database.engine, "pgbus")
    empty_database.rows("SELECT pgbus.make_queue('orders')")
    empty_database.rows("SELECT pgmq.drop_queue('orders')")
    empty_database.rows("COMMENT ON TABLE pgbus.schema_version IS 'older functions'")
    migrate(empty_database.engine, "pgbus")
    assert empty_database.rows("SELECT queue_name FROM pgmq.meta") == []
