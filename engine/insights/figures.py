"""How the attempts of a class went that ended in a span: by step, by app revision, by both.

An attempt failed when an error was recorded, whatever followed; was reattempted when another attempt
of its step was asked for, by a policy, its body or a stall; was skipped when its step was. Each rate is
a share of all that ended.

Run time is from the claim to the end of the body; that of a fan-out has its jobs in it. It is left out where
no body need have ended: skipped or cancelled, stalled, a wait that timed out, a step that its class does not
declare.
Pickup latency is from when the attempt was due to the claim; after a wait from the wake, after a pause at the
earliest from the resume. One that was woken and never claimed has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import StepNotDefined, StepStalled, WaitTimedOut
from pgbus.engine.storage.processes import STALE_AFTER
from pgbus.engine.storage.runs import IS_ONGOING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pgbus.engine.insights.windows import Span
    from pgbus.engine.storage.database import Connection

#: With fewer attempts a percentile or a rate says little.
FEW = 20

#: So many revisions are told apart.
REVISIONS = 5

#: A failure rate that rose by more than so much, over the revision before, is worse.
RISE = 0.05

#: A p95 of run time is worse that became so many times as long, and longer by so many seconds. With fewer samples
#: it stands on five or less, and doubles by chance.
_SLOWER = 2.0
_SLOWER_BY = 1.0
_SLOWER_SAMPLES = 100


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Durations in seconds, interpolated, of so many samples; None without any."""

    samples: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """How attempts went: how many ended, how, and how long they took."""

    ended: int = 0
    failed: int = 0
    reattempted: int = 0
    skipped: int = 0
    run: Percentiles = field(default_factory=Percentiles)
    pickup: Percentiles = field(default_factory=Percentiles)

    @property
    def few(self) -> bool:
        """Whether they are too few to go by."""
        return self.ended < FEW

    @property
    def failure_rate(self) -> float:
        """The share that failed."""
        return self.failed / self.ended if self.ended else 0.0

    @property
    def reattempt_rate(self) -> float:
        """The share that was reattempted."""
        return self.reattempted / self.ended if self.ended else 0.0

    @property
    def skip_rate(self) -> float:
        """The share that was skipped."""
        return self.skipped / self.ended if self.ended else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """How the attempts went that one app revision ran; None is an unknown one.

    `running`: a worker runs it now. `first_at` is when a worker first did, whatever the span; of one that none was
    seen to run, and of the unknown, its first claim of those that ended in the span. The revision before it is
    `compared` where it ran a step of this one's too: `worse` has the steps whose failure rate rose since by more than
    five points, and by how much; `slower` those whose p95 of run time at least doubled and rose by a second or more,
    with 100 samples of both, and by how many seconds.
    """

    revision: str | None
    running: bool
    first_at: datetime
    total: Figures
    by_step: Mapping[str, Figures]
    compared: bool
    worse: Mapping[str, float]
    slower: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Attempts:
    """How the attempts went by step, and by app revision, the newest first.

    Those that a worker runs now are newer than others; of them the one first seen last, the unknown one behind them;
    of the others the one that claimed last. So two that run side by side, while a deployment goes on, keep their
    order.

    `reached` counts the runs that started in the span and have an attempt of a step, ended or not.
    """

    by_step: Mapping[str, Figures]
    reached: Mapping[str, int]
    revisions: tuple[Revision, ...]


#: What an attempt fails with whose body did not end.
_WITHOUT_BODY = ", ".join(
    f"'{qualified_name(error)}'" for error in (StepStalled, WaitTimedOut, StepNotDefined)
)

_BEGAN = "created_at >= CAST(:since AS timestamptz) AND created_at < CAST(:until AS timestamptz)"

#: An attempt that ended in the span is of a run that is ongoing and has moved since, or ended in it or later: those
#: are found by indexes that name no attempt. So is every run that was started in it. A step that was reached has
#: a first attempt.
_ATTEMPTS = f"""
WITH run AS MATERIALIZED (
    SELECT workflow_id, {_BEGAN} AS began FROM {{schema}}.workflows
     WHERE workflow_class = :workflow_class AND ended_at >= CAST(:since AS timestamptz)
    UNION ALL
    SELECT workflow_id, {_BEGAN} FROM {{schema}}.workflows
     WHERE workflow_class = :workflow_class AND {IS_ONGOING}
       AND updated_at >= CAST(:since AS timestamptz)),
attempt AS (
    SELECT s.step_name, s.revision, e.ended, e.ended AND s.started_at IS NOT NULL AS claimed,
           s.started_at, s.finished_at, s.error_class IS NOT NULL AS failed,
           s.outcome = 'reattempted' AS reattempted, s.status = 'skipped' AS skipped,
           s.attempt = 1 AND run.began AS reached,
           CASE WHEN e.ended
                 AND (s.status = 'completed'
                      OR s.status = 'failed' AND coalesce(s.error_class, '') NOT IN ({_WITHOUT_BODY}))
                THEN extract(epoch FROM s.finished_at - s.started_at)::double precision END AS run,
           CASE WHEN e.ended AND s.started_at >= s.scheduled_at
                THEN extract(epoch FROM s.started_at - s.scheduled_at)::double precision END AS pickup
      FROM run JOIN {{schema}}.workflow_steps s USING (workflow_id)
     CROSS JOIN LATERAL (SELECT coalesce(s.finished_at >= CAST(:since AS timestamptz)
                                         AND s.finished_at < CAST(:until AS timestamptz), false)) e (ended))
SELECT grouping(step_name) = 0, grouping(revision) = 0, step_name, revision,
       count(*) FILTER (WHERE reached), count(*) FILTER (WHERE ended), count(*) FILTER (WHERE ended AND failed),
       count(*) FILTER (WHERE ended AND reattempted), count(*) FILTER (WHERE ended AND skipped),
       count(run), percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY run),
       count(pickup), percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY pickup),
       min(started_at), max(started_at)
  FROM attempt
 GROUP BY GROUPING SETS ((step_name), (claimed, revision), (claimed, revision, step_name))
HAVING grouping(claimed) = 1 OR claimed
"""

#: Which of them a worker runs now, and since when any did.
_SEEN = """
SELECT r.revision, a.first_seen_at,
       EXISTS (SELECT FROM {schema}.processes p
                WHERE p.kind = 'worker' AND p.revision IS NOT DISTINCT FROM r.revision
                  AND p.heartbeat_at >= statement_timestamp()
                                        - make_interval(secs => CAST(:dead_after AS double precision)))
  FROM unnest(CAST(:revisions AS text[])) r (revision)
  LEFT JOIN {schema}.app_revisions a USING (revision)
"""


def attempts(connection: Connection, span: Span, workflow_class: str) -> Attempts:
    """Tell how the attempts of a class went that ended in the span."""
    rows = connection.rows(
        _ATTEMPTS, workflow_class=workflow_class, since=span.since, until=span.until
    )
    by_step: dict[str, Figures] = {}
    reached_by: dict[str, int] = {}
    claimed: dict[str | None, tuple[Any, ...]] = {}
    of_revisions: dict[str | None, dict[str, Figures]] = {}
    for of_step, of_revision, step_name, revision, reached, *row in rows:
        if not of_revision:
            by_step[step_name] = _figures(row)
            reached_by[step_name] = reached
        elif of_step:
            of_revisions.setdefault(revision, {})[step_name] = _figures(row)
        else:
            claimed[revision] = (_figures(row), *row[-2:])
    return Attempts(by_step, reached_by, _revisions(connection, claimed, of_revisions))


def _figures(row: Sequence[Any]) -> Figures:
    ended, failed, reattempted, skipped, ran, run, picked_up, pickup, *_ = row
    return Figures(
        ended,
        failed,
        reattempted,
        skipped,
        Percentiles(ran, *(run or ())),
        Percentiles(picked_up, *(pickup or ())),
    )


def _revisions(
    connection: Connection,
    claimed: Mapping[str | None, tuple[Figures, datetime, datetime]],
    by_step: Mapping[str | None, Mapping[str, Figures]],
) -> tuple[Revision, ...]:
    """Return the newest, each compared with the one before, which may be left out itself.

    Those that were `claimed` come with their figures and their first and last claim.
    """
    seen = {
        revision: (alive, first_seen_at or claimed[revision][1])
        for revision, first_seen_at, alive in connection.rows(
            _SEEN, revisions=[*claimed], dead_after=STALE_AFTER.total_seconds()
        )
    }

    def newness(revision: str | None) -> tuple[bool, bool, datetime, datetime, str]:
        _, first, last = claimed[revision]
        running, first_at = seen[revision]
        known = running and revision is not None
        return running, known, first_at if running else last, first, revision or ""

    order = sorted(claimed, key=newness, reverse=True)
    found = []
    for place, revision in enumerate(order[:REVISIONS]):
        running, first_at = seen[revision]
        now = by_step[revision]
        before = by_step[order[place + 1]] if place + 1 < len(order) else {}
        found.append(
            Revision(
                revision=revision,
                running=running,
                first_at=first_at,
                total=claimed[revision][0],
                by_step=now,
                compared=not now.keys().isdisjoint(before),
                worse=_worse(now, before),
                slower=_slower(now, before),
            )
        )
    return tuple(found)


def _worse(now: Mapping[str, Figures], before: Mapping[str, Figures]) -> dict[str, float]:
    rises = {
        step: figures.failure_rate - before[step].failure_rate
        for step, figures in now.items()
        if step in before
    }
    return {step: rise for step, rise in rises.items() if round(rise, 9) > RISE}


def _slower(now: Mapping[str, Figures], before: Mapping[str, Figures]) -> dict[str, float]:
    found = {}
    for step, figures in now.items():
        run, was = figures.run, before[step].run if step in before else Percentiles()
        if run.p95 is None or was.p95 is None or min(run.samples, was.samples) < _SLOWER_SAMPLES:
            continue
        if run.p95 >= max(_SLOWER * was.p95, was.p95 + _SLOWER_BY):
            found[step] = run.p95 - was.p95
    return found
