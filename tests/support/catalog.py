"""What a schema consists of, as text that two schemas can be compared by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.database import Database

_OF_TABLES = """
  FROM pg_class t WHERE t.relnamespace = to_regnamespace(%s) AND t.relname <> 'schema_version'
"""

_QUERIES = {
    "columns": """
        SELECT format('%%s.%%s %%s null=%%s default=%%s identity=%%s', t.relname, a.attname,
                      format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
                      pg_get_expr(d.adbin, d.adrelid), a.attidentity)
          FROM pg_attribute a
          JOIN pg_class t ON t.oid = a.attrelid AND t.relkind = 'r'
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attnum > 0 AND NOT a.attisdropped AND t.relname <> 'schema_version'
           AND t.relnamespace = to_regnamespace(%s)
    """,
    "relations": f"SELECT format('%%s %%s %%s', t.relkind, t.relname, t.reloptions) {_OF_TABLES}"
    " AND t.relname <> 'schema_version_pkc'",
    "constraints": """
        SELECT format('%%s.%%s %%s', t.relname, c.conname, pg_get_constraintdef(c.oid))
          FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
         WHERE t.relname <> 'schema_version' AND c.connamespace = to_regnamespace(%s)
    """,
    "indexes": """
        SELECT pg_get_indexdef(i.indexrelid)
          FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
         WHERE t.relname <> 'schema_version' AND t.relnamespace = to_regnamespace(%s)
    """,
    "triggers": """
        SELECT pg_get_triggerdef(g.oid)
          FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid
         WHERE t.relnamespace = to_regnamespace(%s)
    """,
    "functions": """
        SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = to_regnamespace(%s)
    """,
}


def catalog(database: Database, schema: str) -> dict[str, set[str]]:
    """Each kind of object the schema has, the version table aside, by its definition."""
    return {
        kind: {definition for (definition,) in database.rows(query, f'"{schema}"')}
        for kind, query in _QUERIES.items()
    }
