"""Runs as an operator looks for them: page by page, newest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

from pgbus.engine.definition import registry
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import RunNotFound, StepStalled
from pgbus.engine.insights import cursors, selection, stuck
from pgbus.engine.insights.stuck import HeldEnd, Member, StuckReason
from pgbus.engine.states import (
    ONGOING,
    AttemptStatus,
    Move,
    OnTimeout,
    RunStatus,
)
from pgbus.engine.storage.runs import MOVING, SLEEPING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: What a list is narrowed to before anything else: one status, or several.
Tab = RunStatus | Literal["ongoing", "all"]

#: As an error class: of runs whose newest attempt has none.
NO_ERROR = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list: those that match everything given.

    `current_step` and `error_class` (or `NO_ERROR`) are those of a run's newest attempt; `held` (or
    `stuck.NO_END`) is what it holds that ends its run at the resume. Moments are aware: `_from` includes
    its own, `_to` excludes it.
    """

    status: Tab = "ongoing"
    workflow_class: str | None = None
    current_step: str | None = None
    error_class: str | None = None
    stuck: StuckReason | None = None
    held: HeldEnd | Literal["none"] | None = None
    subject_type: str | None = None
    subject_id: str | None = None
    workflow_id: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    ended_from: datetime | None = None
    ended_to: datetime | None = None

    @property
    def failed_with(self) -> str | None:
        """The error class that the newest attempt must have; None when it may have any, or none."""
        if self.stuck is StuckReason.STALLED and self.error_class is None:
            return qualified_name(StepStalled)
        return None if self.error_class == NO_ERROR else self.error_class


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Where a step stands: the `number`th of `total` live steps; `following` is the next one's name."""

    number: int
    total: int
    following: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run and its newest attempt, without documents; `due` says its step could run now.

    `queue_paused`: no worker reads the queue of its attempt until somebody resumes that.
    `waiting_for` describes the signal that the attempt waits or waited for; `batch_id` names the batch.
    While the wait lasts: `waiting_since`, the deadline `timeout_at` (None: none, or its run is paused),
    the missed one `late_since`, and how many of the batch's jobs are open (None: it has no such row).
    `overdue_seconds` tells how long ago the deadline passed; the next sweep does what `on_timeout` says then.

    `held` is what resume applies first: how a body that ended while its run was paused moves it.
    `moved_by` paused, cancelled or finished it, `moved_because` of what was given as the reason.
    `step_declared`: the loaded class has the step, live; `step_removed`: it has a gravestone for it.
    `place` is None unless it is declared, `on_timeout` also when it has no deadline.
    """

    workflow_id: str
    workflow_class: str
    status: RunStatus
    subject_type: str | None
    subject_id: str | None
    current_step: str
    step_id: int
    attempt: int
    attempt_status: AttemptStatus
    scheduled_at: datetime
    due: bool
    queue_paused: bool
    error_class: str | None
    held: Move | None
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
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
    stuck: StuckReason | None
    stuck_since: datetime | None
    moved_by: str | None
    moved_because: str | None
    class_loaded: bool
    step_declared: bool
    step_removed: bool
    place: StepPlace | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, newest first; `older` and `newer` are cursors for `after=` and `before=`, None at an end."""

    runs: tuple[RunSummary, ...]
    older: str | None
    newer: str | None


#: What a summary has from the database, by its field.
_COLUMNS = {
    "workflow_id": "w.workflow_id::text",
    "workflow_class": "w.workflow_class",
    "status": "w.status",
    "subject_type": "w.subject_type",
    "subject_id": "w.subject_id",
    "current_step": "w.current_step",
    "step_id": "w.step_id",
    "attempt": "s.attempt",
    "attempt_status": "s.status",
    "scheduled_at": "s.scheduled_at",
    "due": "s.status = 'scheduled' AND s.scheduled_at <= clock_timestamp()",
    "queue_paused": "s.queue = ANY (ARRAY(SELECT q.queue FROM {schema}.queues q))",
    "error_class": "s.error_class",
    "held": "s.held ->> 'move'",
    "created_at": "w.created_at",
    "updated_at": "w.updated_at",
    "paused_at": "w.paused_at",
    "ended_at": "w.ended_at",
    "waiting_for": "s.waiting_for",
    "waiting_since": "s.waiting_since",
    "timeout_at": "s.timeout_at",
    "late_since": "s.late_since",
    "timed_out": "s.timed_out",
    "batch_id": "s.batch_id::text",
    "open_jobs": "b.open_jobs",
    "total_jobs": "b.total_jobs",
    "overdue_seconds": (
        "CASE WHEN s.timeout_at <= clock_timestamp()"
        " THEN extract(epoch FROM clock_timestamp() - s.timeout_at)::double precision END"
    ),
    "stuck": stuck.REASON,
    "stuck_since": f"CASE WHEN {stuck.REASON} IS NOT NULL THEN {stuck.SINCE} END",
    "moved_by": "e.actor",
    "moved_because": "e.reason",
}

#: Runs, given as `w`, as summaries. A finished batch has no counters left. Of the run's events those are
#: called as its status that brought it there.
_SUMMARIES = f"""
SELECT {", ".join(_COLUMNS.values())}
  FROM {{runs}} w JOIN {{schema}}.workflow_steps s ON s.step_id = w.step_id
  LEFT JOIN LATERAL (SELECT a.total_jobs,
                            coalesce((SELECT sum(c.open)::integer FROM {{schema}}.batch_counters c
                                       WHERE c.batch_id = a.batch_id), 0) AS open_jobs
                       FROM {{schema}}.batches a
                      WHERE a.batch_id = s.batch_id AND s.waiting_since IS NOT NULL) b ON true
  LEFT JOIN LATERAL (SELECT v.actor, v.reason FROM {{schema}}.workflow_events v
                      WHERE w.status IN ('paused', 'cancelled', 'finished')
                        AND v.workflow_id = w.workflow_id AND v.event = w.status
                      ORDER BY v.event_id DESC LIMIT 1) e ON true
"""

_ONE = (
    _SUMMARIES.replace("{runs}", "{schema}.workflows")
    + " WHERE w.workflow_id = CAST(:workflow_id AS uuid)"
)

#: Runs, given as `w`, so that something can be asked of each as it is now.
_MEMBERS = "SELECT w.workflow_id::text, w.updated_at FROM {runs} w"

#: Bounded, because no index finds every combination among the ended runs.
_LATELY = 1000


@dataclass(frozen=True, slots=True)
class _Cursor:
    """A place in the list: just after a run, by its moment and id."""

    created_at: datetime
    workflow_id: UUID

    @classmethod
    def of(cls, run: RunSummary) -> Self:
        return cls(run.created_at, UUID(run.workflow_id))

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            created_at, raw = cursors.decode(text)
            return cls(created_at, UUID(bytes=raw))
        except (ValueError, OverflowError):
            raise cursors.no_place(text) from None

    def __str__(self) -> str:
        return cursors.encode(self.created_at, self.workflow_id.bytes)


def page(
    connection: Connection,
    settings: Settings,
    wanted: RunFilter,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> RunPage:
    """Return a page of runs, newest first: the newest, or those next to a cursor of another page.

    A page is found by its place in the order, so the last costs what the first does. A text that is
    no cursor raises `BadCursor`.
    """
    backwards = before is not None
    given = before if backwards else after
    cursor = None if given is None else _Cursor.parse(given)
    rows = _rows(connection, settings, wanted, limit + 1, cursor, backwards=backwards)
    found = [_summary(row) for row in rows[:limit]]
    more = len(rows) > limit
    if backwards:
        found.reverse()
    return RunPage(
        tuple(found),
        older=str(_Cursor.of(found[-1])) if found and (more or backwards) else None,
        newer=str(_Cursor.of(found[0])) if found and (more if backwards else after) else None,
    )


def _rows(
    connection: Connection,
    settings: Settings,
    wanted: RunFilter,
    limit: int,
    cursor: _Cursor | None,
    *,
    backwards: bool,
) -> list[tuple[Any, ...]]:
    if not selection.lanes(wanted):
        return []
    found = selection.page(wanted, backwards=backwards, cursor=cursor is not None)
    return connection.rows(
        f"{_SUMMARIES.replace('{runs}', f'({found})')} {selection.in_order(backwards=backwards)}",
        limit=limit,
        cursor_at=cursor and cursor.created_at,
        cursor_id=cursor and str(cursor.workflow_id),
        **selection.parameters(settings, wanted),
    )


def oldest(
    connection: Connection, settings: Settings, wanted: RunFilter, *, limit: int
) -> list[Member]:
    """Return at most `limit` of the runs that match, those that were started first."""
    if not selection.lanes(wanted):
        return []
    found = selection.page(wanted, backwards=True, cursor=False)
    statement = f"{_MEMBERS.replace('{runs}', f'({found})')} {selection.in_order(backwards=True)}"
    rows = connection.rows(statement, limit=limit, **selection.parameters(settings, wanted))
    return [Member(*row) for row in rows]


def status_counts(
    connection: Connection, settings: Settings, wanted: RunFilter, *, cap: int = 10_000
) -> dict[Tab, int]:
    """Count the runs of each status, ongoing, and all that match the filter's other parts.

    More than `cap` are counted as one more than that.
    """
    of_all = replace(wanted, status="all")
    counted: dict[str, int] = {}
    if selection.lanes(of_all):
        parameters = selection.parameters(settings, of_all)
        counted.update(connection.rows(selection.counts(of_all), limit=cap + 1, **parameters))
    numbers: dict[Tab, int] = {status: counted.get(status, 0) for status in RunStatus}
    unclaimed = counted.get(MOVING, 0) - numbers[RunStatus.PERFORMING]
    numbers[RunStatus.READY] = unclaimed + counted.get(SLEEPING, 0)
    numbers["ongoing"] = sum(numbers[status] for status in ONGOING)
    numbers["all"] = numbers["ongoing"] + sum(numbers[status] for status in selection.ENDED)
    return {tab: min(number, cap + 1) for tab, number in numbers.items()}


def hides_ended(connection: Connection, settings: Settings, wanted: RunFilter) -> bool:
    """Tell whether ended runs match the other filters too, as the newest thousand runs tell."""
    statement = selection.among_newest(wanted, _LATELY)
    return bool(connection.rows(statement, **selection.parameters(settings, wanted)))


def summary(connection: Connection, settings: Settings, workflow_id: str) -> RunSummary:
    """Return the run as the list shows it; raise `RunNotFound`."""
    row = connection.row(_ONE, workflow_id=workflow_id, **stuck.parameters(settings))
    if row is None:
        raise RunNotFound(f"There is no run {workflow_id}.")
    return _summary(row)


def _summary(row: Sequence[Any]) -> RunSummary:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["status"] = RunStatus(values["status"])
    values["attempt_status"] = AttemptStatus(values["attempt_status"])
    values["held"] = Move(values["held"]) if values["held"] else None
    values["stuck"] = StuckReason(values["stuck"]) if values["stuck"] else None
    definition = registry.find(values["workflow_class"])
    return RunSummary(**values, **_declared(definition, values["current_step"]))


def _declared(definition: Definition | None, step_name: str) -> dict[str, Any]:
    """Return what the loaded class tells of the step."""
    steps = definition.steps if definition else ()
    live = [step for step in steps if not step.removed]
    number = next((number for number, step in enumerate(live, 1) if step.name == step_name), None)
    step = live[number - 1] if number else None
    following = live[number].name if number and number < len(live) else None
    return {
        "class_loaded": definition is not None,
        "step_declared": step is not None,
        "step_removed": definition is not None and step_name in definition.removed,
        "place": StepPlace(number, len(live), following) if number else None,
        "on_timeout": step.on_timeout if step and step.wait_timeout is not None else None,
    }
