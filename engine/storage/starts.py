"""How a run comes into being: its row, its first attempt, their events and the message at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.engine.codec import storable
from pgbus.engine.storage.trail import cut

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.decision import NextAttempt
    from pgbus.engine.storage.database import Connection


class StartVerdict(StrEnum):
    """What became of a start (`functions/20_start_run.sql`)."""

    STARTED = "started"
    DUPLICATE = "duplicate"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class NewRun:
    """What `start_run` writes; documents are encoded."""

    workflow_id: str
    workflow_class: str
    digest: str
    subject_type: str | None
    subject_id: str | None
    arguments: str
    idempotency_key: str | None
    rerun_of: str | None
    step_name: str
    queue: str
    wait: float
    not_before: datetime | None
    actor: str
    reason: str | None
    details: str | None
    trace: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """What became of a start; unless it started, `workflow_id` is the run's in its way."""

    verdict: StartVerdict
    workflow_id: str
    created_at: datetime
    step_id: int


_START_RUN = """
SELECT verdict, workflow_id::text, created_at, step_id FROM {schema}.start_run(
    CAST(:workflow_id AS uuid), CAST(:workflow_class AS text), CAST(:digest AS text),
    CAST(:subject_type AS text), CAST(:subject_id AS text), CAST(:arguments AS jsonb),
    CAST(:idempotency_key AS text), CAST(:rerun_of AS uuid), CAST(:step_name AS text), CAST(:queue AS text),
    CAST(:wait AS double precision), CAST(:not_before AS timestamptz), CAST(:actor AS text),
    CAST(:reason AS text), CAST(:details AS jsonb), CAST(:trace AS text))
"""

_START_RUNS = """
SELECT workflow_id::text, created_at, step_id FROM {schema}.start_runs(
    CAST(:workflow_ids AS uuid[]), CAST(:workflow_class AS text), CAST(:digest AS text),
    CAST(:subject_types AS text[]), CAST(:subject_ids AS text[]), CAST(:arguments AS text[]),
    CAST(:step_name AS text), CAST(:queue AS text), CAST(:wait AS double precision),
    CAST(:not_before AS timestamptz), CAST(:actor AS text), CAST(:reason AS text),
    CAST(:trace AS text))
"""


def start_run(connection: Connection, new: NewRun) -> Started:
    """Write a run, its first attempt and events, and send the step message."""
    ((verdict, workflow_id, created_at, step_id),) = connection.rows(
        _START_RUN,
        workflow_id=new.workflow_id,
        workflow_class=new.workflow_class,
        digest=new.digest,
        subject_type=new.subject_type,
        subject_id=new.subject_id,
        arguments=new.arguments,
        idempotency_key=new.idempotency_key,
        rerun_of=new.rerun_of,
        step_name=new.step_name,
        queue=new.queue,
        wait=new.wait,
        not_before=new.not_before,
        actor=storable(new.actor),
        reason=cut(new.reason),
        details=new.details,
        trace=new.trace,
    )
    return Started(StartVerdict(verdict), workflow_id, created_at, step_id)


def start_runs(
    connection: Connection,
    *,
    workflow_ids: list[str],
    subject_types: list[str | None],
    subject_ids: list[str | None],
    arguments: list[str],
    workflow_class: str,
    digest: str,
    first: NextAttempt,
    actor: str,
    reason: str | None,
    trace: str | None,
) -> list[tuple[str, datetime, int]]:
    """Write many runs of one class; return id, creation and step_id of those that started."""
    rows = connection.rows(
        _START_RUNS,
        workflow_ids=workflow_ids,
        subject_types=subject_types,
        subject_ids=subject_ids,
        arguments=arguments,
        workflow_class=workflow_class,
        digest=digest,
        step_name=first.step_name,
        queue=first.queue,
        wait=first.wait,
        not_before=first.not_before,
        actor=storable(actor),
        reason=cut(reason),
        trace=trace,
    )
    return [(row[0], row[1], row[2]) for row in rows]
