"""The attempts of one run, and where the time of each went."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import EntryNotFound
from pgbus.engine.insights.documents import Document, Slice
from pgbus.engine.insights.phases import Mark, Moments, Phase, PhaseKind, marks, phases, totals
from pgbus.engine.states import AttemptStatus, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from pgbus.engine.insights.events import TrailEntry
    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of a step; of an open one the seconds go on rising.

    `phases` tell where its time went, the seconds their sums; `ran_seconds` is None when no body ran.
    `encoded_error` has the backtrace and the causes; when `error_cut`, it was left out and the message
    is a part of the whole. `waiting_for` describes the signal that it waits or waited for, `batch_id`
    names the batch; `waiting_since`, `timeout_at` and the missed deadline `late_since` are those of a
    wait that lasts, `seconds_left` what its clock shows while its run is paused. `marks` are the
    deadlines of its waits.
    """

    step_id: int
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
    waiting_seconds: float
    ran_seconds: float | None
    phases: tuple[Phase, ...]
    marks: tuple[Mark, ...]
    worker: str | None
    revision: str | None
    error_class: str | None
    error_message: str | None
    encoded_error: str | None
    error_cut: bool
    output: Document | None
    waiting_for: str | None
    waiting_since: datetime | None
    timeout_at: datetime | None
    seconds_left: float | None
    late_since: datetime | None
    timed_out: bool
    batch_id: str | None


#: When the first attempt of a step was due, by the version of the class on which its run began. The
#: due of a later one is lost with its first wake.
_FIRST_DUE = """
CASE WHEN s.attempt = 1 THEN
    (SELECT greatest(s.created_at,
                     s.created_at + make_interval(secs => CAST(d.step ->> 'wait' AS double precision)),
                     CAST(d.step ->> 'wait_until' AS timestamptz))
       FROM {schema}.workflows w
       JOIN {schema}.workflow_definitions v
         ON v.workflow_class = w.workflow_class AND v.digest = w.definition_digest
      CROSS JOIN LATERAL jsonb_array_elements(v.steps) d (step)
      WHERE w.workflow_id = s.workflow_id AND d.step ->> 'name' = s.step_name) END
"""

#: Of an error that is not the newest as much of the message comes along.
LONGEST_SUMMARY = 300

#: A document larger than asked for stays where it is; so do errors, but for the newest.
_COLUMNS = f"""
s.step_id, s.step_name, s.attempt, s.status, s.outcome, s.created_at, s.scheduled_at, s.started_at, s.finished_at,
s.worker, s.revision, s.error_class,
CASE WHEN s.whole THEN s.error_message ELSE left(s.error_message, {LONGEST_SUMMARY}) END,
CASE WHEN s.whole THEN s.error::text END, s.error_class IS NOT NULL AND NOT s.whole,
CASE WHEN coalesce(octet_length(d.output) <= CAST(:inline AS integer), true) THEN d.output END,
octet_length(d.output),
s.waiting_for, s.waiting_since, s.timeout_at, extract(epoch FROM s.timeout_left)::double precision,
s.late_since, s.timed_out, s.batch_id::text, {_FIRST_DUE}
"""

_SELECT = f"""
SELECT {_COLUMNS}
  FROM (SELECT t.*, CAST(:inline AS integer) IS NULL
                    OR t.step_id IS NOT DISTINCT FROM max(t.step_id) FILTER (WHERE t.error_class IS NOT NULL) OVER ()
                    AS whole
          FROM ({{attempts}}) t) s
 CROSS JOIN LATERAL (SELECT s.output::text AS output OFFSET 0) d
 ORDER BY s.step_id DESC
"""

#: The newest attempts of a run, or those before one.
_NEWEST = _SELECT.replace(
    "{attempts}",
    """
SELECT * FROM {schema}.workflow_steps
 WHERE workflow_id = CAST(:workflow_id AS uuid)
   AND step_id < coalesce(CAST(:older_than AS bigint), 9223372036854775807)
 ORDER BY step_id DESC
 LIMIT CAST(:limit AS integer)
""",
)

_ONE = _SELECT.replace(
    "{attempts}",
    """
SELECT * FROM {schema}.workflow_steps
 WHERE step_id = CAST(:step_id AS bigint) AND workflow_id = CAST(:workflow_id AS uuid)
""",
)


def newest(
    connection: Connection,
    workflow_id: str,
    trail: Iterable[TrailEntry],
    now: datetime,
    *,
    limit: int,
    older_than: int | None = None,
    inline: int | None = None,
) -> Slice[Attempt]:
    """Return the run's newest attempts, or those older than the attempt of a step_id.

    `trail` has the entries that tell of times, oldest first. Outputs of more than `inline` bytes are
    left out, and of errors all but the newest are cut; None: nothing is.
    """
    rows = connection.rows(
        _NEWEST, workflow_id=workflow_id, limit=limit + 1, older_than=older_than, inline=inline
    )
    return Slice.cut(_attempts(rows, trail, now), limit)


def one(
    connection: Connection,
    workflow_id: str,
    step_id: int,
    trail: Iterable[TrailEntry],
    now: datetime,
) -> Attempt:
    """Return an attempt of the run with its whole output and error; raise `EntryNotFound`."""
    rows = connection.rows(_ONE, workflow_id=workflow_id, step_id=step_id, inline=None)
    if not rows:
        raise EntryNotFound(f"Run {workflow_id} has no attempt {step_id}.")
    return _attempts(rows, trail, now)[0]


def _attempts(
    rows: Iterable[Sequence[Any]], trail: Iterable[TrailEntry], now: datetime
) -> list[Attempt]:
    told: dict[tuple[str | None, int | None], list[TrailEntry]] = defaultdict(list)
    for entry in trail:
        told[entry.step_name, entry.attempt].append(entry)
    return [_attempt(row, told[row[1], row[2]], now) for row in rows]


def _attempt(row: Sequence[Any], entries: list[TrailEntry], now: datetime) -> Attempt:
    (
        step_id, step_name, attempt, status, outcome, created_at, scheduled_at, started_at, finished_at,
        worker, revision, error_class, error_message, encoded_error, error_cut, output, output_size,
        waiting_for, waiting_since, timeout_at, seconds_left, late_since, timed_out, batch_id, first_due,
    ) = row  # fmt: skip
    moments = Moments(
        created_at=created_at,
        first_due=first_due,
        scheduled_at=scheduled_at,
        started_at=started_at,
        waiting_since=waiting_since,
        timeout_at=timeout_at,
        finished_at=finished_at,
        on_batch=batch_id is not None,
    )
    spent = phases(moments, entries, now)
    seconds = totals(spent, now)
    return Attempt(
        step_id=step_id,
        step_name=step_name,
        attempt=attempt,
        status=AttemptStatus(status),
        outcome=Outcome(outcome) if outcome else None,
        created_at=created_at,
        scheduled_at=scheduled_at,
        started_at=started_at,
        finished_at=finished_at,
        waited_seconds=seconds.get(PhaseKind.WAITED, 0.0),
        queued_seconds=seconds.get(PhaseKind.QUEUED, 0.0),
        waiting_seconds=seconds.get(PhaseKind.WAITING, 0.0),
        ran_seconds=seconds.get(PhaseKind.RAN),
        phases=spent,
        marks=marks(moments, entries),
        worker=worker,
        revision=revision,
        error_class=error_class,
        error_message=error_message,
        encoded_error=encoded_error,
        error_cut=error_cut,
        output=Document.read(output, output_size),
        waiting_for=waiting_for,
        waiting_since=waiting_since,
        timeout_at=timeout_at,
        seconds_left=seconds_left,
        late_since=late_since,
        timed_out=timed_out,
        batch_id=batch_id,
    )
