"""How one workflow class is doing: its steps, its throughput, how far its runs come, its app revisions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.errors import ClassNotFound
from pgbus.engine.insights import figures, headline, stuck, throughput
from pgbus.engine.insights.figures import Figures, Percentiles
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import ONGOING, RunStatus
from pgbus.engine.storage.runs import IS_ONGOING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta, tzinfo

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.insights.figures import Attempts, Revision
    from pgbus.engine.insights.headline import Headline
    from pgbus.engine.insights.stuck import StuckAtStep
    from pgbus.engine.insights.throughput import Bucket
    from pgbus.engine.insights.windows import Span
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: Where the bins of durations begin, in seconds; the first has no length below.
_EDGES = (
    0, 1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600,
    *(days * 86400 for days in (1, 2, 4, 7, 14, 30, 90, 365)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInsight:
    """A step: who sits at it now, and how its attempts that ended in the span went.

    `here` counts the ongoing runs by status, `paused` those of them that are by why; `stuck` need attention, the
    paused ones too. `declared`: the loaded class has it, live; else it is a
    gravestone of that (`removed`), or only the runs know it. A step that waits has the signal's description
    in `waits_for`, and `wait_timeout` unless each run decides (`dynamic_timeout`) or none does. `wait` is how
    long after the step before it is due.
    """

    step_name: str
    declared: bool
    removed: bool
    fan_out: bool
    wait: timedelta | None
    waits_for: str | None
    wait_timeout: timedelta | None
    dynamic_timeout: bool
    here: Mapping[RunStatus, int]
    paused: Mapping[StuckReason, int]
    stuck: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class Reached:
    """How many of the runs that started in the span have an attempt of a step, and where they are now.

    `here` counts those that are at it now by status, ongoing ones only; `paused` those of them that are by why.
    `cancelled` were when they were at it.
    """

    step_name: str
    runs: int
    here: Mapping[RunStatus, int]
    paused: Mapping[StuckReason, int]
    cancelled: int


@dataclass(frozen=True, slots=True)
class Funnel:
    """How far the runs came that started in the span; how many of those have ended."""

    started: int
    steps: tuple[Reached, ...]
    finished: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class Bin:
    """How many runs took from `low` to `high` seconds; None has no bound."""

    low: float
    high: float | None
    runs: int


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the runs took, from created to finished, that finished in the span; the empty ends cut."""

    percentiles: Percentiles
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """How a class is doing: now, and in the span.

    `steps` are in the class's order, then those that only runs or gravestones know and that have something
    to tell. `attention` counts the stuck runs.
    """

    workflow_class: str
    loaded: bool
    span: Span
    ongoing: Mapping[RunStatus, int]
    attention: int
    started: int
    finished: int
    cancelled: int
    steps: tuple[StepInsight, ...]
    throughput: tuple[Bucket, ...]
    durations: Durations
    funnel: Funnel
    revisions: tuple[Revision, ...]
    headline: Headline | None


_KNOWN = """
SELECT 1 WHERE EXISTS (SELECT FROM {schema}.workflow_definitions WHERE workflow_class = :workflow_class)
            OR EXISTS (SELECT FROM {schema}.workflows WHERE workflow_class = :workflow_class)
"""

#: Of a class's ongoing runs.
_HERE = f"""
SELECT current_step, status, count(*) FROM {{schema}}.workflows
 WHERE workflow_class = :workflow_class AND {IS_ONGOING}
 GROUP BY current_step, status
"""

#: Where those are now that started in the span, the finished ones without a step, and why they are paused.
_NOW = f"""
SELECT CASE WHEN w.lane <> 'finished' THEN w.current_step END, w.status,
       CASE w.lane WHEN 'paused' THEN {stuck.WHY_PAUSED} END, count(*)
  FROM {stuck.WITH_HELD}
 WHERE w.workflow_class = :workflow_class
   AND w.lane IN ('moving', 'sleeping', 'waiting', 'paused', 'finished', 'cancelled')
   AND w.created_at >= CAST(:since AS timestamptz) AND w.created_at < CAST(:until AS timestamptz)
 GROUP BY 1, 2, 3
"""

#: The index of the ends has all that is asked. The whole comes without a bin. A clock that was put back makes no
#: length negative.
_DURATIONS = """
SELECT bin, count(*), percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY seconds)
  FROM (SELECT d.seconds, width_bucket(greatest(d.seconds, 0), CAST(:edges AS double precision[])) AS bin
          FROM {schema}.workflows w,
               LATERAL (SELECT extract(epoch FROM w.ended_at - w.created_at)::double precision) d (seconds)
         WHERE w.ended_at >= CAST(:since AS timestamptz) AND w.ended_at < CAST(:until AS timestamptz)
           AND w.lane = 'finished' AND w.workflow_class = :workflow_class) d
 GROUP BY GROUPING SETS ((), (bin))
"""

Here = dict[str, dict[RunStatus, int]]


def performance(
    connection: Connection, settings: Settings, workflow_class: str, span: Span, zone: tzinfo
) -> Performance:
    """Tell how the class is doing; raise `ClassNotFound` for a name that no class and no run has.

    The buckets of its throughput are those of the zone's wall clock. The name is looked up, never imported.
    """
    definition = registry.find(workflow_class)
    if definition is None and connection.row(_KNOWN, workflow_class=workflow_class) is None:
        raise ClassNotFound(f"No class and no run here is called {workflow_class!r}.")
    here = _here(connection, workflow_class)
    attempts = figures.attempts(connection, span, workflow_class)
    stuck_at = stuck.at_steps(connection, settings, workflow_class)
    buckets = throughput.of_class(connection, span, zone, workflow_class)
    return Performance(
        workflow_class=workflow_class,
        loaded=definition is not None,
        span=span,
        ongoing=_by_status(here.values()),
        attention=sum(at.runs for at in stuck_at),
        started=sum(bucket.started for bucket in buckets),
        finished=sum(bucket.finished for bucket in buckets),
        cancelled=sum(bucket.cancelled for bucket in buckets),
        steps=_steps(definition, here, stuck_at, attempts),
        throughput=buckets,
        durations=_durations(connection, span, workflow_class),
        funnel=_funnel(connection, span, workflow_class, definition, attempts.reached),
        revisions=attempts.revisions,
        headline=headline.headline(attempts.revisions, stuck_at, buckets, span),
    )


def _here(connection: Connection, workflow_class: str) -> Here:
    found: Here = defaultdict(dict)
    for step_name, status, runs in connection.rows(_HERE, workflow_class=workflow_class):
        found[step_name][RunStatus(status)] = runs
    return found


def _by_status(counts: Iterable[Mapping[RunStatus, int]]) -> dict[RunStatus, int]:
    total = {status: 0 for status in RunStatus if status in ONGOING}
    for count in counts:
        for status, runs in count.items():
            total[status] += runs
    return total


def _total(counts: Mapping[RunStatus, int]) -> int:
    return sum(counts.values())


def _steps(
    definition: Definition | None, here: Here, stuck_at: Iterable[StuckAtStep], attempts: Attempts
) -> tuple[StepInsight, ...]:
    at = {one.step_name: one for one in stuck_at}
    declared = {step.name: step for step in definition.steps} if definition else {}
    live = [name for name, step in declared.items() if not step.removed]
    told = {*here, *(name for name, found in attempts.by_step.items() if found.ended)}
    return tuple(
        _step(
            name,
            declared.get(name),
            here.get(name, {}),
            at.get(name),
            attempts.by_step.get(name, Figures()),
        )
        for name in _in_order(live, told)
    )


def _in_order(first: Sequence[str], others: Iterable[str]) -> list[str]:
    """Return the names in order, after them the others by name."""
    return [*first, *sorted({*others} - {*first})]


def _step(
    name: str,
    step: Step | None,
    here: Mapping[RunStatus, int],
    stuck_at: StuckAtStep | None,
    attempts: Figures,
) -> StepInsight:
    timeout = step.wait_timeout if step else None
    return StepInsight(
        step_name=name,
        declared=step is not None and not step.removed,
        removed=step is not None and step.removed,
        fan_out=step is not None and step.fan_out,
        wait=max(step.wait, step.message_wait) or None if step else None,
        waits_for=step.wait_for.description if step and step.wait_for else None,
        wait_timeout=None if callable(timeout) else timeout,
        dynamic_timeout=callable(timeout),
        here=here,
        paused=stuck_at.paused if stuck_at else {},
        stuck=stuck_at.runs if stuck_at else 0,
        figures=attempts,
    )


def _funnel(
    connection: Connection,
    span: Span,
    workflow_class: str,
    definition: Definition | None,
    reached: Mapping[str, int],
) -> Funnel:
    asked = {"workflow_class": workflow_class, "since": span.since, "until": span.until}
    now: Here = defaultdict(dict)
    paused: dict[str, dict[StuckReason, int]] = defaultdict(dict)
    cancelled: dict[str, int] = {}
    finished = 0
    for step_name, status, reason, runs in connection.rows(_NOW, **asked):
        if step_name is None:
            finished = runs
            continue
        if status == RunStatus.CANCELLED:
            cancelled[step_name] = runs
            continue
        now[step_name][RunStatus(status)] = now[step_name].get(status, 0) + runs
        if reason is not None:
            paused[step_name][StuckReason(reason)] = runs
    live = [step.name for step in definition.steps if not step.removed] if definition else []
    return Funnel(
        started=finished + sum(cancelled.values()) + sum(map(_total, now.values())),
        steps=tuple(
            Reached(
                step_name=name,
                runs=reached.get(name, 0),
                here=now.get(name, {}),
                paused=paused.get(name, {}),
                cancelled=cancelled.get(name, 0),
            )
            for name in _in_order(
                live, {*now, *cancelled, *(name for name, runs in reached.items() if runs)}
            )
        ),
        finished=finished,
        cancelled=sum(cancelled.values()),
    )


def _durations(connection: Connection, span: Span, workflow_class: str) -> Durations:
    percentiles, bins = Percentiles(), {}
    for place, runs, found in connection.rows(
        _DURATIONS,
        workflow_class=workflow_class,
        since=span.since,
        until=span.until,
        edges=[float(edge) for edge in _EDGES],
    ):
        if place is None:
            percentiles = Percentiles(runs, *(found or ()))
        else:
            bins[place] = runs
    return Durations(
        percentiles,
        tuple(
            Bin(
                _EDGES[place - 1],
                _EDGES[place] if place < len(_EDGES) else None,
                bins.get(place, 0),
            )
            for place in (range(min(bins), max(bins) + 1) if bins else ())
        ),
    )
