"""Runs, attempts and events as rows, and how they are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import sqlalchemy.exc

from pgbus.engine import codec
from pgbus.engine.decision import Held
from pgbus.engine.errors import RunLocked, RunNotFound
from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus
from pgbus.engine.storage.database import LOCK_NOT_AVAILABLE, sqlstate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from pgbus.engine.storage.database import Connection

#: The lanes that are no status: the runs that are ready or performing, but for those that sleep until the timer
#: sends their step.
MOVING, SLEEPING = "moving", "sleeping"

ONGOING_LANES = (MOVING, SLEEPING, RunStatus.WAITING, RunStatus.PAUSED)

#: Of a run that has not ended, in the words of the indexes.
IS_ONGOING = f"lane IN ({', '.join(map(repr, map(str, ONGOING_LANES)))})"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row of `workflows`."""

    workflow_id: str
    workflow_class: str
    definition_digest: str
    status: RunStatus
    subject_type: str | None
    subject_id: str | None
    encoded_arguments: str
    idempotency_key: str | None
    current_step: str
    step_id: int
    rerun_of: str | None
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
    ended_at: datetime | None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the run was started with; subjects in it are references."""
        return dict(codec.decode(self.encoded_arguments))


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One row of `workflow_steps`: one attempt of a step.

    Times are aware; `scheduled_at` is when it was due, `started_at` when a worker claimed it. While it
    waits: `waiting_for` a signal or for the batch `batch_id`, until `timeout_at` (None: without end, or
    while its run is paused), and late since the first deadline it missed.
    """

    step_id: int
    workflow_id: str
    step_name: str
    attempt: int
    status: AttemptStatus
    outcome: Outcome | None
    queue: str
    message_id: int | None
    created_at: datetime
    scheduled_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    revision: str | None
    encoded_output: str | None
    error_class: str | None
    error_message: str | None
    encoded_error: str | None
    reattempted_by: str | None
    encoded_held: str | None
    waiting_for: str | None
    waiting_since: datetime | None
    timeout_at: datetime | None
    late_since: datetime | None
    timed_out: bool
    batch_id: str | None
    trace: str | None

    @property
    def output(self) -> dict[str, Any] | None:
        """What the body output; None when nothing."""
        return None if self.encoded_output is None else codec.decode(self.encoded_output)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error's `backtrace` (lines) and `causes` (class, message, backtrace); or None."""
        return None if self.encoded_error is None else json.loads(self.encoded_error)

    @property
    def held(self) -> Held | None:
        """What resume applies first; None when nothing is held."""
        return None if self.encoded_held is None else Held.decode(self.encoded_held)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One entry of a run's audit trail."""

    event_id: int
    event: Event
    step_name: str | None
    attempt: int | None
    actor: str
    reason: str | None
    from_status: RunStatus | None
    to_status: RunStatus
    encoded_details: str | None
    created_at: datetime

    @property
    def details(self) -> dict[str, Any]:
        """What else the event tells; {} when nothing."""
        return {} if self.encoded_details is None else json.loads(self.encoded_details)


_RUN_COLUMNS = """
w.workflow_id::text, w.workflow_class, w.definition_digest, w.status, w.subject_type, w.subject_id,
w.arguments::text, w.idempotency_key, w.current_step, w.step_id, w.rerun_of::text,
w.created_at, w.updated_at, w.paused_at, w.ended_at
"""

_ATTEMPT_COLUMNS = """
s.step_id, s.workflow_id::text, s.step_name, s.attempt, s.status, s.outcome, s.queue, s.message_id,
s.created_at, s.scheduled_at, s.started_at, s.finished_at, s.worker, s.revision, s.output::text,
s.error_class, s.error_message, s.error::text, s.reattempted_by, s.held::text,
s.waiting_for, s.waiting_since, s.timeout_at, s.late_since, s.timed_out, s.batch_id::text,
s.trace
"""

_FIND = f"SELECT {_RUN_COLUMNS} FROM {{schema}}.workflows w WHERE w.workflow_id = CAST(:id AS uuid)"

_LOCK = f"SELECT {_RUN_COLUMNS} FROM {{schema}}.lock_run(CAST(:id AS uuid)) w"

_ONGOING_OF_SUBJECTS = f"""
SELECT {_RUN_COLUMNS}
  FROM unnest(CAST(:subject_types AS text[]), CAST(:subject_ids AS text[])) AS n (subject_type, subject_id)
  JOIN {{schema}}.workflows w USING (subject_type, subject_id)
 WHERE w.workflow_class = :workflow_class AND w.ended_at IS NULL
"""

_RERUNS = """
SELECT workflow_id::text FROM {schema}.workflows WHERE rerun_of = CAST(:id AS uuid) ORDER BY workflow_id
"""

_NEWEST_ATTEMPT = f"""
SELECT {_ATTEMPT_COLUMNS} FROM {{schema}}.workflow_steps s WHERE s.step_id = CAST(:step_id AS bigint)
"""

_LOCK_NEWEST_ATTEMPT = f"{_NEWEST_ATTEMPT} FOR UPDATE"

_ATTEMPTS = f"""
SELECT {_ATTEMPT_COLUMNS} FROM {{schema}}.workflow_steps s
 WHERE s.workflow_id = CAST(:id AS uuid) ORDER BY s.step_id
"""

_EVENTS = """
SELECT event_id, event, step_name, attempt, actor, reason, from_status, to_status, details::text, created_at
  FROM {schema}.workflow_events WHERE workflow_id = CAST(:id AS uuid) ORDER BY event_id
"""

#: The output of each step's latest completed attempt, also when it has none but an earlier one had.
_OUTPUTS = """
SELECT step_name, output::text
  FROM (SELECT DISTINCT ON (step_name) step_name, output
          FROM {schema}.workflow_steps
         WHERE workflow_id = CAST(:id AS uuid) AND status = 'completed'
         ORDER BY step_name, attempt DESC) s
 WHERE output IS NOT NULL
"""

_IN_PROGRESS = """
SELECT 1 FROM {schema}.workflow_steps WHERE step_id = CAST(:step_id AS bigint) AND status = 'in_progress'
"""

_ON_STEPS = f"""
SELECT current_step, count(*) FROM {{schema}}.workflows
 WHERE workflow_class = :workflow_class AND {IS_ONGOING}
   AND current_step = ANY (CAST(:steps AS text[]))
 GROUP BY current_step
"""


def _run_from(row: tuple[Any, ...]) -> RunRow:
    """Turn a row of _RUN_COLUMNS into a RunRow."""
    values = list(row)
    values[3] = RunStatus(values[3])
    return RunRow(*values)


def _attempt_from(row: tuple[Any, ...]) -> AttemptRow:
    values = list(row)
    values[4] = AttemptStatus(values[4])
    values[5] = Outcome(values[5]) if values[5] else None
    return AttemptRow(*values)


def find(connection: Connection, workflow_id: str) -> RunRow | None:
    """Return the run, or None; also for what is no run's id at all."""
    known = _canonical(workflow_id)
    row = connection.row(_FIND, id=known) if known else None
    return _run_from(row) if row else None


def ongoing_of_subjects(
    connection: Connection,
    workflow_class: str,
    subjects: Sequence[tuple[str | None, str | None]],
) -> dict[tuple[str | None, str | None], RunRow]:
    """Return the ongoing run of exactly this class for each subject (type and id) that has one."""
    rows = connection.rows(
        _ONGOING_OF_SUBJECTS,
        workflow_class=workflow_class,
        subject_types=[subject_type for subject_type, _ in subjects],
        subject_ids=[subject_id for _, subject_id in subjects],
    )
    return {(row.subject_type, row.subject_id): row for row in map(_run_from, rows)}


def newest_attempt(connection: Connection, run: RunRow) -> AttemptRow:
    """Return the attempt that decides what the run is on."""
    return _newest(connection, run, _NEWEST_ATTEMPT)


def _newest(connection: Connection, run: RunRow, statement: str) -> AttemptRow:
    row = connection.row(statement, step_id=run.step_id)
    if row is None:
        raise RunNotFound(f"Run {run.workflow_id} has no attempt {run.step_id}.")
    return _attempt_from(row)


def lock(connection: Connection, workflow_id: str) -> tuple[RunRow, AttemptRow]:
    """Return the run and its newest attempt, both rows locked until the transaction ends.

    Raise `RunNotFound`, and `RunLocked` when another transaction keeps the lock.
    """
    known = _canonical(workflow_id)
    try:
        row = connection.row(_LOCK, id=known) if known else None
    except (psycopg.errors.LockNotAvailable, sqlalchemy.exc.OperationalError) as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise locked_too_long(workflow_id) from error
    if row is None:
        raise RunNotFound(f"There is no run {workflow_id}.")
    run = _run_from(row)
    return run, _newest(connection, run, _LOCK_NEWEST_ATTEMPT)


def _canonical(workflow_id: object) -> str | None:
    """Return the id as PostgreSQL writes it; None when it cannot be one."""
    try:
        return str(UUID(str(workflow_id)))
    except ValueError:
        return None


def locked_too_long(workflow_id: str) -> RunLocked:
    """Return the error that tells of a run's lock that was not to be had."""
    return RunLocked(
        f"Run {workflow_id} has been locked by another transaction for ten seconds. "
        "Try again when that transaction (often a host's, left open) has ended."
    )


def attempts(connection: Connection, workflow_id: str) -> list[AttemptRow]:
    """Return all attempts of a run, oldest first."""
    return [_attempt_from(row) for row in connection.rows(_ATTEMPTS, id=workflow_id)]


def events(connection: Connection, workflow_id: str) -> list[EventRow]:
    """Return a run's audit trail, oldest first."""
    return [_event_from(row) for row in connection.rows(_EVENTS, id=workflow_id)]


def _event_from(row: tuple[Any, ...]) -> EventRow:
    values = list(row)
    values[1] = Event(values[1])
    values[6] = RunStatus(values[6]) if values[6] else None
    values[7] = RunStatus(values[7])
    return EventRow(*values)


def outputs(connection: Connection, workflow_id: str) -> dict[str, str]:
    """Return the encoded output of each step's latest completed attempt that has one."""
    return dict(_pairs(connection.rows(_OUTPUTS, id=workflow_id)))


def reruns(connection: Connection, workflow_id: str) -> list[str]:
    """Return the ids of the runs that were started as re-runs of this one."""
    return [row[0] for row in connection.rows(_RERUNS, id=workflow_id)]


def in_progress(connection: Connection, step_id: int) -> bool:
    """Return whether the attempt still is its body's."""
    return connection.row(_IN_PROGRESS, step_id=step_id) is not None


def ongoing_on_steps(
    connection: Connection, workflow_class: str, steps: Iterable[str]
) -> dict[str, int]:
    """Count the ongoing runs of the class on each of these steps (absent: none)."""
    rows = connection.rows(_ON_STEPS, workflow_class=workflow_class, steps=list(steps))
    return dict(_pairs(rows))


def _pairs(rows: list[tuple[Any, ...]]) -> Iterable[tuple[Any, Any]]:
    return ((row[0], row[1]) for row in rows)
