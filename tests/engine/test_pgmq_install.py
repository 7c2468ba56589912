"""PGMQ: the extension where the server offers it, else the script; each left alone when there."""

from __future__ import annotations

import shutil

import pytest
from pgmq import get_embedded_install_sql, get_embedded_sql_version
from support.server import Cluster

from pgbus.engine.storage import pgmq

_COMMENT = "SELECT obj_description('pgmq'::regnamespace, 'pg_namespace')"
_EXTENSIONS = "SELECT extname, extversion FROM pg_extension WHERE extname = 'pgmq'"


def test_without_the_extension_the_script_is_installed_and_its_version_kept(empty_database):
    empty_database.rows(pgmq.install_sql())

    assert empty_database.value(_COMMENT) == (
        f"PGMQ {get_embedded_sql_version()} installed by pgbus"
    )
    assert empty_database.rows(_EXTENSIONS) == []
    assert _problem(empty_database) is None


def test_installing_again_changes_nothing(empty_database):
    empty_database.rows(pgmq.install_sql())
    before = _functions(empty_database)

    empty_database.rows(pgmq.install_sql())

    assert _functions(empty_database) == before


def test_one_that_somebody_else_installed_is_left_alone(empty_database):
    empty_database.rows(get_embedded_install_sql())
    before = _functions(empty_database)

    empty_database.rows(pgmq.install_sql())

    assert _functions(empty_database) == before
    assert empty_database.value(_COMMENT) is None
    assert _problem(empty_database) is None


def test_an_older_script_is_reported_and_replaced_around_its_messages(empty_database):
    empty_database.rows(pgmq.install_sql())
    empty_database.rows("SELECT pgmq.create('orders')")
    empty_database.rows("SELECT pgmq.enable_notify_insert('orders')")
    empty_database.rows("""SELECT pgmq.send('orders', '{"order": 7}')""")
    expected = _functions(empty_database)
    empty_database.rows("DROP FUNCTION pgmq.read_with_poll")
    empty_database.rows("CREATE FUNCTION pgmq.of_1_9() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    empty_database.rows("COMMENT ON SCHEMA pgmq IS 'PGMQ 1.9.0 installed by pgbus'")
    assert _problem(empty_database) == (
        f"PGMQ 1.9.0 is older than the {get_embedded_sql_version()} that comes with this pgbus"
    )

    empty_database.rows(pgmq.install_sql())

    assert {name for name, _ in _functions(empty_database)} == {name for name, _ in expected}
    assert empty_database.rows("SELECT message FROM pgmq.read('orders', 0, 1)") == [({"order": 7},)]
    assert _problem(empty_database) is None


def test_a_newer_script_is_left_alone(empty_database):
    empty_database.rows(pgmq.install_sql())
    empty_database.rows("COMMENT ON SCHEMA pgmq IS 'PGMQ 10.0.0 installed by pgbus'")
    before = _functions(empty_database)

    empty_database.rows(pgmq.install_sql())

    assert _functions(empty_database) == before
    assert _problem(empty_database) is None


def test_the_extension_is_preferred(offered, empty_database):
    offered(superuser=True)

    empty_database.rows(pgmq.install_sql())

    assert empty_database.rows(_EXTENSIONS) == [("pgmq", "1.0")]
    assert _problem(empty_database) is None
    empty_database.rows(pgmq.install_sql())


def test_a_role_that_may_create_the_extension_does(offered, as_owner):
    offered(superuser=False)

    as_owner(pgmq.install_sql())

    assert as_owner(_EXTENSIONS) == [("pgmq", "1.0")]


def test_a_role_that_may_not_create_the_extension_falls_back_to_the_script(offered, as_owner):
    offered(superuser=True)

    as_owner(pgmq.install_sql())

    assert as_owner(_EXTENSIONS) == []
    assert as_owner(_COMMENT) == [(f"PGMQ {get_embedded_sql_version()} installed by pgbus",)]


@pytest.fixture
def offered(empty_database, server):
    """Makes the database's server offer an extension `pgmq`, which has only the one table."""
    if not isinstance(server, Cluster) or empty_database.value("SHOW server_version_num") < "18":
        pytest.skip("only a PostgreSQL 18 of our own takes extensions from another folder")
    folder = server.home / "share" / "extension"

    def offer(*, superuser):
        folder.mkdir(parents=True)
        (folder / "pgmq--1.0.sql").write_text("CREATE TABLE pgmq.meta ();")
        (folder / "pgmq.control").write_text(
            f"default_version = '1.0'\nschema = pgmq\nsuperuser = {str(superuser).lower()}\n"
        )
        empty_database.rows(
            f"ALTER DATABASE {empty_database.name}"
            f" SET extension_control_path = '$system:{folder.parent}'"
        )

    yield offer
    shutil.rmtree(folder.parent)


@pytest.fixture
def as_owner(empty_database):
    """Runs a statement as a role that may create schemas, but is no superuser."""
    role = f"{empty_database.name}_owner"
    empty_database.rows(f"CREATE ROLE {role}")
    empty_database.rows(f"GRANT CREATE ON DATABASE {empty_database.name} TO {role}")

    def rows(statement):
        with empty_database.connection(options=f"-c role={role}", autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    yield rows
    empty_database.rows(f"DROP OWNED BY {role} CASCADE")
    empty_database.rows(f"DROP ROLE {role}")


def _functions(database):
    return database.rows(
        "SELECT oid::regprocedure::text, oid FROM pg_proc"
        " WHERE pronamespace = 'pgmq'::regnamespace ORDER BY 1"
    )


def _problem(database):
    with database.engine.connect() as connection:
        return pgmq.problem(connection)
