"""Runs as an operator looks for them: page by page, newest first, and one with its history."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pgbus.engine.definition import registry
from pgbus.engine.errors import RunNotFound
from pgbus.engine.insights import attempts, events, signals
from pgbus.engine.states import (
    ONGOING,
    AttemptStatus,
    OnTimeout,
    RunStatus,
    Verb,
    available_actions,
)
from pgbus.engine.storage import runs as storage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.events import TrailEntry
    from pgbus.engine.insights.signals import StoredSignal
    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list: those that match everything given.

    `current_step` and `error_class` are those of a run's newest attempt.
    """

    status: RunStatus | Literal["ongoing", "all"] = "ongoing"
    workflow_class: str | None = None
    current_step: str | None = None
    error_class: str | None = None
    subject_type: str | None = None
    subject_id: str | None = None
    workflow_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run and its newest attempt, without documents; `due` says its step could run now.

    `waiting_for` describes the signal that the attempt waits or waited for; `batch_id` names the batch.
    While the wait lasts: `waiting_since`, the deadline `timeout_at` (None: none, or its run is paused),
    the missed one `late_since`, and how many of the batch's jobs are open (None: it has no such row).
    `overdue_seconds` tells how long ago the deadline passed; the next sweep does what `on_timeout` says then
    (None: it is not past, or the step is not loaded).
    """

    workflow_id: str
    workflow_class: str
    status: RunStatus
    subject_type: str | None
    subject_id: str | None
    current_step: str
    attempt: int
    attempt_status: AttemptStatus
    scheduled_at: datetime
    due: bool
    error_class: str | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    waiting_for: str | None
    waiting_since: datetime | None
    timeout_at: datetime | None
    late_since: datetime | None
    timed_out: bool
    batch_id: str | None
    open_jobs: int | None
    total_jobs: int | None
    overdue_seconds: float | None
    on_timeout: OnTimeout | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, newest first; `older` and `newer` are cursors for `after=` and `before=`, None at an end."""

    runs: tuple[RunSummary, ...]
    older: str | None
    newer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail:
    """A run with its history, oldest first; `truncated` when older entries were left out."""

    run: RunSummary
    encoded_arguments: str
    idempotency_key: str | None
    definition_digest: str
    rerun_of: str | None
    reruns: tuple[str, ...]
    class_loaded: bool
    available_actions: tuple[Verb, ...]
    attempts: tuple[Attempt, ...]
    signals: tuple[StoredSignal, ...]
    events: tuple[TrailEntry, ...]
    truncated: bool


_SUMMARY = """
w.workflow_id::text, w.workflow_class, w.status, w.subject_type, w.subject_id, w.current_step,
s.attempt, s.status, s.scheduled_at, s.status = 'scheduled' AND s.scheduled_at <= clock_timestamp(),
s.error_class, w.created_at, w.updated_at, w.ended_at,
s.waiting_for, s.waiting_since, s.timeout_at, s.late_since, s.timed_out, s.batch_id::text,
b.open_jobs, b.total_jobs,
CASE WHEN s.timeout_at <= clock_timestamp()
     THEN extract(epoch FROM clock_timestamp() - s.timeout_at)::double precision END
"""

#: A finished batch has no counters left.
_RUNS = f"""
SELECT {_SUMMARY}
  FROM {{schema}}.workflows w JOIN {{schema}}.workflow_steps s ON s.step_id = w.step_id
  LEFT JOIN LATERAL (SELECT a.total_jobs,
                            coalesce((SELECT sum(c.open)::integer FROM {{schema}}.batch_counters c
                                       WHERE c.batch_id = a.batch_id), 0) AS open_jobs
                       FROM {{schema}}.batches a
                      WHERE a.batch_id = s.batch_id AND s.waiting_since IS NOT NULL) b ON true
"""

_ONE = f"{_RUNS} WHERE w.workflow_id = CAST(:workflow_id AS uuid)"

#: Bounded, because no index finds the ended runs that match a filter.
_ENDED_LATELY = """
SELECT 1
  FROM (SELECT * FROM {schema}.workflows ORDER BY workflow_id DESC LIMIT 1000) w
  JOIN {schema}.workflow_steps s ON s.step_id = w.step_id
 WHERE w.ended_at IS NOT NULL
"""

_CONDITIONS = {
    "workflow_class": "w.workflow_class = :workflow_class",
    "current_step": "w.current_step = :current_step",
    "error_class": "s.error_class = :error_class",
    "subject_type": "w.subject_type = :subject_type",
    "subject_id": "w.subject_id = :subject_id",
    "workflow_id": "w.workflow_id = CAST(:workflow_id AS uuid)",
    "after": "w.workflow_id < CAST(:after AS uuid)",
    "before": "w.workflow_id > CAST(:before AS uuid)",
}


def page(
    connection: Connection,
    wanted: RunFilter,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> RunPage:
    """Return a page of runs, newest first: the newest, or those next to a cursor of another page.

    A page is found by its place in the order of ids, so the last costs what the first does.
    """
    given = asdict(wanted) | {"after": after, "before": before}
    given = {name: value for name, value in given.items() if value is not None}
    backwards = before is not None
    statement = _page_statement(wanted.status, given.keys(), "ASC" if backwards else "DESC")
    rows = connection.rows(statement, limit=limit + 1, **given)
    found = [_summary(row) for row in rows[:limit]]
    more = len(rows) > limit
    if backwards:
        found.reverse()
    return RunPage(
        tuple(found),
        older=found[-1].workflow_id if found and (more or backwards) else None,
        newer=found[0].workflow_id if found and (more if backwards else after) else None,
    )


def hides_ended(connection: Connection, wanted: RunFilter) -> bool:
    """Tell whether ended runs match the other filters too, as the newest thousand runs tell."""
    given = {name: value for name, value in asdict(wanted).items() if value is not None}
    conditions = [condition for name, condition in _CONDITIONS.items() if name in given]
    statement = " AND ".join([_ENDED_LATELY, *conditions])
    return bool(connection.rows(f"{statement} LIMIT 1", **given))


def detail(connection: Connection, workflow_id: str, *, limit: int) -> RunDetail:
    """Return the run with its newest attempts, signals and events, `limit` of each.

    Raise `RunNotFound`.
    """
    run = summary(connection, workflow_id)
    row = storage.find(connection, workflow_id)
    if row is None:
        raise RunNotFound(f"There is no run {workflow_id} any more.")
    tries = attempts.newest(connection, workflow_id, limit + 1)
    received = signals.newest(connection, workflow_id, limit + 1)
    trail = events.newest(connection, workflow_id, limit + 1)
    loaded = registry.find(run.workflow_class) is not None
    return RunDetail(
        run=run,
        encoded_arguments=row.encoded_arguments,
        idempotency_key=row.idempotency_key,
        definition_digest=row.definition_digest,
        rerun_of=row.rerun_of,
        reruns=tuple(storage.reruns(connection, workflow_id)),
        class_loaded=loaded,
        available_actions=available_actions(run.status, run.attempt_status, class_loaded=loaded),
        attempts=tuple(reversed(tries[:limit])),
        signals=tuple(reversed(received[:limit])),
        events=tuple(reversed(trail[:limit])),
        truncated=max(len(tries), len(received), len(trail)) > limit,
    )


def summary(connection: Connection, workflow_id: str) -> RunSummary:
    """Return the run as the list shows it; raise `RunNotFound`."""
    row = connection.row(_ONE, workflow_id=workflow_id)
    if row is None:
        raise RunNotFound(f"There is no run {workflow_id}.")
    return _summary(row)


def _page_statement(status: str, given: Collection[str], order: str) -> str:
    """Give it only the conditions asked for: an index is not found behind `OR :x IS NULL`."""
    conditions = [condition for name, condition in _CONDITIONS.items() if name in given]
    if status == "ongoing":
        conditions.append("w.ended_at IS NULL")
    elif status != "all":
        conditions.append("w.status = :status")
        conditions.append(f"w.ended_at IS {'NULL' if status in ONGOING else 'NOT NULL'}")
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{_RUNS} {where} ORDER BY w.workflow_id {order} LIMIT CAST(:limit AS integer)"


def _summary(row: Sequence[Any]) -> RunSummary:
    values = [*row, None]
    values[2] = RunStatus(values[2])
    values[7] = AttemptStatus(values[7])
    summary = RunSummary(*values)
    return summary if summary.overdue_seconds is None else _with_on_timeout(summary)


def _with_on_timeout(summary: RunSummary) -> RunSummary:
    definition = registry.find(summary.workflow_class)
    steps = definition.steps if definition else ()
    declared = (step.on_timeout for step in steps if step.name == summary.current_step)
    return replace(summary, on_timeout=next(declared, None))
