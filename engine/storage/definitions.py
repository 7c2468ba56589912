"""The step list of each version of a class, stored once, so that a change can be told later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.storage.database import Connection

_STORE = """
INSERT INTO {schema}.workflow_definitions (workflow_class, digest, steps, created_at)
VALUES (:workflow_class, :digest, CAST(:steps AS jsonb), clock_timestamp())
ON CONFLICT DO NOTHING
"""


def store(connection: Connection, definition: Definition) -> None:
    """Keep the definition's step list under its digest."""
    connection.rows(
        _STORE,
        workflow_class=definition.name,
        digest=definition.digest,
        steps=json.dumps(definition.step_list),
    )
