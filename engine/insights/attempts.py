"""The attempts of one run, and where the time of each went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.states import AttemptStatus, Outcome

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a step; of an open one the seconds go on rising.

    It waited until it was due, was queued until a worker claimed it, then ran:
    `ran_seconds` is None when none did. `encoded_error` has the backtrace and the causes.
    `waiting_for` describes the signal that it waits or waited for, `batch_id` names the batch;
    `waiting_since`, `timeout_at` and the missed deadline `late_since` are those of a wait that lasts.
    """

    step_name: str
    attempt: int
    status: AttemptStatus
    outcome: Outcome | None
    created_at: datetime
    scheduled_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    waited_seconds: float
    queued_seconds: float
    ran_seconds: float | None
    worker: str | None
    revision: str | None
    error_class: str | None
    error_message: str | None
    encoded_output: str | None
    encoded_error: str | None
    waiting_for: str | None
    waiting_since: datetime | None
    timeout_at: datetime | None
    late_since: datetime | None
    timed_out: bool
    batch_id: str | None


#: The newest attempts of a run; what ended before it was due only waited. One that a signal woke was
#: claimed for its wait before it was due; what waits has run until then.
_NEWEST = """
SELECT s.step_name, s.attempt, s.status, s.outcome, s.created_at, s.scheduled_at, s.started_at, s.finished_at,
       extract(epoch FROM least(s.scheduled_at, e.left_queue) - s.created_at)::double precision,
       extract(epoch FROM e.left_queue - least(s.scheduled_at, e.left_queue))::double precision,
       extract(epoch FROM coalesce(s.finished_at, s.waiting_since, e.now) - e.began)::double precision,
       s.worker, s.revision, s.error_class, s.error_message, s.output::text, s.error::text,
       s.waiting_for, s.waiting_since, s.timeout_at, s.late_since, s.timed_out, s.batch_id::text
  FROM {schema}.workflow_steps s
 CROSS JOIN LATERAL (SELECT t.now, t.began, coalesce(t.began, s.finished_at, t.now) AS left_queue
                       FROM (SELECT clock_timestamp() AS now,
                                    CASE WHEN s.started_at >= s.scheduled_at THEN s.started_at END AS began) t) e
 WHERE s.workflow_id = CAST(:workflow_id AS uuid)
 ORDER BY s.step_id DESC
 LIMIT CAST(:limit AS integer)
"""


def newest(connection: Connection, workflow_id: str, limit: int) -> list[Attempt]:
    """Return the run's newest attempts, at most `limit`, newest first."""
    return [_from(row) for row in connection.rows(_NEWEST, workflow_id=workflow_id, limit=limit)]


def _from(row: tuple[Any, ...]) -> Attempt:
    step_name, attempt, status, outcome, *rest = row
    return Attempt(
        step_name, attempt, AttemptStatus(status), Outcome(outcome) if outcome else None, *rest
    )
