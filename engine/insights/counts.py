"""How many runs are in which state, and how many are stuck and why, by class."""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import StepStalled
from pgbus.engine.states import ONGOING, RunStatus

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from pgbus.engine.storage.database import Connection


class StuckReason(StrEnum):
    """Why a run does not move on by itself, as its newest attempt tells."""

    STALLED = "stalled"
    PAUSED_ERROR = "paused_error"
    PAUSED_MANUAL = "paused_manual"
    OVERDUE = "overdue"
    WAITING_OVERDUE = "waiting_overdue"


_BY_STATUS = """
SELECT workflow_class, status, count(*) FROM {schema}.workflows
 WHERE ended_at IS NULL
 GROUP BY workflow_class, status
"""

_PAUSED = """
SELECT w.workflow_class,
       count(*) FILTER (WHERE s.status = 'failed' AND s.error_class = CAST(:stalled AS text)),
       count(*) FILTER (WHERE s.status = 'failed' AND s.error_class IS DISTINCT FROM CAST(:stalled AS text)),
       count(*) FILTER (WHERE s.status <> 'failed')
  FROM {schema}.workflows w JOIN {schema}.workflow_steps s ON s.step_id = w.step_id
 WHERE w.ended_at IS NULL AND w.status = 'paused'
 GROUP BY w.workflow_class
"""

_OVERDUE = """
SELECT w.workflow_class, count(*)
  FROM {schema}.workflows w JOIN {schema}.workflow_steps s ON s.step_id = w.step_id
 WHERE w.moving AND w.status = 'ready'
   AND s.scheduled_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
 GROUP BY w.workflow_class
"""

#: A wait has no deadline either when it never had one, or when a late notice left it without.
_WAITING_OVERDUE = """
SELECT w.workflow_class, count(*)
  FROM {schema}.workflow_steps s JOIN {schema}.workflows w ON w.workflow_id = s.workflow_id AND w.step_id = s.step_id
 WHERE s.waiting_since < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
   AND s.timeout_at IS NULL AND w.ended_at IS NULL AND w.status = 'waiting'
 GROUP BY w.workflow_class
"""

#: Every class that ever had a run here.
_CLASSES = "SELECT DISTINCT workflow_class FROM {schema}.workflow_definitions"


def known_classes(connection: Connection) -> set[str]:
    """Return the classes that are loaded or ever had a run here."""
    stored = {row[0] for row in connection.rows(_CLASSES)}
    return stored | {definition.name for definition in registry.definitions()}


def by_status(connection: Connection, classes: Collection[str]) -> dict[tuple[str, RunStatus], int]:
    """Count the ongoing runs by class and status; 0 where one of `classes` has none."""
    ongoing = [status for status in RunStatus if status in ONGOING]
    return dict.fromkeys(product(classes, ongoing), 0) | {
        (workflow_class, RunStatus(status)): number
        for workflow_class, status, number in connection.rows(_BY_STATUS)
    }


def stuck(
    connection: Connection,
    classes: Collection[str],
    *,
    overdue_after: timedelta,
    waiting_overdue_after: timedelta,
) -> dict[tuple[str, StuckReason], int]:
    """Count the stuck runs by class and reason; 0 where one of `classes` has none.

    A step is overdue that has been due for longer than the first, a wait without a deadline
    that has lasted longer than the second.
    """
    paused = connection.rows(_PAUSED, stalled=qualified_name(StepStalled))
    overdue = connection.rows(_OVERDUE, seconds=overdue_after.total_seconds())
    waiting = connection.rows(_WAITING_OVERDUE, seconds=waiting_overdue_after.total_seconds())
    return dict.fromkeys(product(classes, StuckReason), 0) | {
        (workflow_class, reason): number
        for rows, reasons in (
            (
                paused,
                (StuckReason.STALLED, StuckReason.PAUSED_ERROR, StuckReason.PAUSED_MANUAL),
            ),
            (overdue, (StuckReason.OVERDUE,)),
            (waiting, (StuckReason.WAITING_OVERDUE,)),
        )
        for workflow_class, *numbers in rows
        for reason, number in zip(reasons, numbers, strict=True)
    }
