"""Gives a database PGMQ, and says what is wrong with the one it has.

The extension is preferred, because the server's owner updates it. Whether this role may
create it is asked beforehand: a refused CREATE EXTENSION would abort the transaction.
Where it may not, the script of the `pgmq` package gives the same functions; its version
is kept as the schema's comment, because a script leaves no other trace of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection

# A script cannot alter what it finds, so what an older one left is dropped first: all but the
# tables, which hold the messages, and the trigger functions, which hang on them and are replaced.
_INSTALL = """
DO $pgbus$
DECLARE
    recorded text := substring(obj_description(to_regnamespace('pgmq'), 'pg_namespace')
                               from '^PGMQ ([0-9.]+) installed by pgbus$');
    obsolete text;
BEGIN
    IF to_regclass('pgmq.meta') IS NULL THEN
        IF EXISTS (SELECT FROM pg_available_extensions a
                     JOIN pg_available_extension_versions v
                       ON v.name = a.name AND v.version = a.default_version
                    WHERE a.name = 'pgmq'
                      AND (NOT v.superuser OR v.trusted
                           OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))) THEN
            CREATE EXTENSION pgmq;
            RETURN;
        END IF;
    ELSIF recorded IS NULL
          OR string_to_array(recorded, '.')::int[] >= string_to_array('{version}', '.')::int[] THEN
        RETURN;
    ELSE
        FOR obsolete IN SELECT format('DROP ROUTINE %s', oid::regprocedure) FROM pg_proc
                         WHERE pronamespace = 'pgmq'::regnamespace
                           AND prorettype <> 'trigger'::regtype LOOP
            EXECUTE obsolete;
        END LOOP;
        FOR obsolete IN SELECT format('DROP TYPE %s', oid::regtype) FROM pg_type
                         WHERE typnamespace = 'pgmq'::regnamespace AND typtype = 'c'
                           AND (SELECT relkind FROM pg_class c WHERE c.oid = typrelid) = 'c' LOOP
            EXECUTE obsolete;
        END LOOP;
    END IF;
    EXECUTE $pgmq_script$
{script}
$pgmq_script$;
    COMMENT ON SCHEMA pgmq IS 'PGMQ {version} installed by pgbus';
END $pgbus$;
"""

_RECORDED = text("""
SELECT to_regclass('pgmq.meta') IS NOT NULL AS present,
       substring(obj_description(to_regnamespace('pgmq'), 'pg_namespace')
                 from '^PGMQ ([0-9.]+) installed by pgbus$') AS version
""")


def install_sql() -> str:
    """Return one statement that installs PGMQ, or brings one that a script installed up to date."""
    from pgmq import get_embedded_install_sql, get_embedded_sql_version  # noqa: PLC0415  costs 0.2 s

    script = get_embedded_install_sql()
    return _INSTALL.replace("{version}", get_embedded_sql_version()).replace("{script}", script)


def problem(connection: Connection) -> str | None:
    """Return why this database's PGMQ will not do; None when it will.

    An extension's version is its server's business, so only a script's is compared.
    """
    from pgmq import get_embedded_sql_version  # noqa: PLC0415  costs 0.2 s

    recorded = connection.execute(_RECORDED).one()
    shipped = get_embedded_sql_version()
    if not recorded.present:
        return "PGMQ is not installed"
    if recorded.version is not None and _numbers(recorded.version) < _numbers(shipped):
        return f"PGMQ {recorded.version} is older than the {shipped} that comes with this pgbus"
    return None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]
