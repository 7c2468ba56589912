"""How many runs are in which state, by class."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.states import ONGOING, RunStatus
from pgbus.engine.storage.runs import IS_ONGOING

if TYPE_CHECKING:
    from collections.abc import Collection

    from pgbus.engine.storage.database import Connection


_BY_STATUS = f"""
SELECT workflow_class, status, count(*) FROM {{schema}}.workflows
 WHERE {IS_ONGOING}
 GROUP BY workflow_class, status
"""

#: Every class that ever had a run here.
_CLASSES = "SELECT DISTINCT workflow_class FROM {schema}.workflow_definitions"


def started_classes(connection: Connection) -> set[str]:
    """Return the classes that ever had a run here."""
    return {row[0] for row in connection.rows(_CLASSES)}


def known_classes(connection: Connection) -> set[str]:
    """Return the classes that are loaded or ever had a run here."""
    return started_classes(connection) | {definition.name for definition in registry.definitions()}


def by_status(connection: Connection, classes: Collection[str]) -> dict[tuple[str, RunStatus], int]:
    """Count the ongoing runs by class and status; 0 where one of `classes` has none."""
    ongoing = [status for status in RunStatus if status in ONGOING]
    return dict.fromkeys(product(classes, ongoing), 0) | {
        (workflow_class, RunStatus(status)): number
        for workflow_class, status, number in connection.rows(_BY_STATUS)
    }
