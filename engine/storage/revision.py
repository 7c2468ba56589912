"""Which schema this code needs, and whether a database has it; cheap enough for every start.

`pgbus migrate` leaves the fingerprint as the comment of the version table, where one
query finds it without Alembic, and without failing when there is no such table.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from sqlalchemy import Connection

VERSION_TABLE = "schema_version"

IS_CURRENT = """
SELECT obj_description(to_regclass(CAST(:version_table AS text)), 'pg_class') = CAST(:fingerprint AS text)
       AND to_regclass('pgmq.meta') IS NOT NULL
"""


def is_current(connection: Connection, schema: str) -> bool:
    """Return whether `migrate` of this very code was the last to change the schema; one query."""
    found = connection.scalar(
        text(IS_CURRENT), {"version_table": version_table(schema), "fingerprint": fingerprint()}
    )
    return bool(found)


@cache
def fingerprint() -> str:
    """Return the SHA-256 over the names of the revisions and the text of the functions."""
    digest = sha256()
    for revision in _sorted_files("pgbus.migrations.versions", ".py"):
        digest.update(f"{revision.name}\n".encode())
    for source in function_sources():
        digest.update(source.encode())
    return digest.hexdigest()


def function_sources() -> Iterator[str]:
    """Yield the files that define the functions, in the order of their names."""
    for file in _sorted_files("pgbus.engine.storage", ".sql", folder="functions"):
        yield file.read_text(encoding="utf-8")


def version_table(schema: str) -> str:
    """Return the version table's name as SQL."""
    return f"{quoted(schema)}.{VERSION_TABLE}"


def quoted(identifier: str) -> str:
    """Return the identifier as SQL, always in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


def _sorted_files(package: str, suffix: str, *, folder: str = "") -> list[Traversable]:
    found = files(package).joinpath(folder).iterdir()
    return sorted((file for file in found if file.name.endswith(suffix)), key=_name)


def _name(file: Traversable) -> str:
    return file.name
