"""How every workflow class is doing, one row each."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.insights import counts, stuck
from pgbus.engine.insights.deployment import RunsOnStep
from pgbus.engine.states import RunStatus
from pgbus.engine.storage.runs import IS_ONGOING, ONGOING_LANES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.insights.windows import Span
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """How a class is doing: its runs now, and those that ended in the span.

    `p50` and `p95` are of the seconds from created to finished of the finished runs, None without any.
    `on_removed` are the ongoing runs on steps that the loaded class has removed, the steps without any left out.
    `ever_started`: some run of it is known to have been.
    """

    workflow_class: str
    loaded: bool
    ever_started: bool
    ongoing: int
    paused: int
    attention: int
    finished: int
    cancelled: int
    p50: float | None
    p95: float | None
    on_removed: tuple[RunsOnStep, ...]


#: Those that have one, of a lane: each is a stretch of an index, and the runs that have ended are none of it.
_ONGOING = """
SELECT c.workflow_class, l.lane, n.runs
  FROM unnest(CAST(:classes AS text[])) c (workflow_class)
 CROSS JOIN unnest(CAST(:lanes AS text[])) l (lane)
 CROSS JOIN LATERAL (SELECT count(*) AS runs FROM {schema}.workflows w
                      WHERE w.workflow_class = c.workflow_class AND w.lane = l.lane) n
 WHERE n.runs > 0
"""

#: An index of the ends has all that is asked.
_ENDED = """
SELECT workflow_class, count(*) FILTER (WHERE lane = 'finished'), count(*) FILTER (WHERE lane = 'cancelled'),
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP
           (ORDER BY extract(epoch FROM ended_at - created_at)::double precision) FILTER (WHERE lane = 'finished')
  FROM {schema}.workflows
 WHERE ended_at >= CAST(:since AS timestamptz) AND ended_at < CAST(:until AS timestamptz)
 GROUP BY workflow_class
"""

_ON_STEPS = f"""
SELECT w.workflow_class, w.current_step, count(*)
  FROM unnest(CAST(:classes AS text[]), CAST(:steps AS text[])) r (workflow_class, step)
  JOIN {{schema}}.workflows w ON w.workflow_class = r.workflow_class AND w.current_step = r.step
       AND w.{IS_ONGOING}
 GROUP BY w.workflow_class, w.current_step
 ORDER BY w.workflow_class, w.current_step
"""


def summaries(connection: Connection, settings: Settings, span: Span) -> tuple[ClassSummary, ...]:
    """Return every class that declares steps or ever had a run here, by name."""
    started = counts.started_classes(connection)
    names = sorted(started | {one.name for one in registry.definitions() if one.steps})
    ongoing = _ongoing(connection, names)
    ended = {
        name: row for name, *row in connection.rows(_ENDED, since=span.since, until=span.until)
    }
    attention: Counter[str] = Counter()
    for (name, _reason), runs in stuck.by_reason(connection, settings, ()).items():
        attention[name] += runs
    removed = on_removed(connection, names)
    found = []
    for name in names:
        finished, cancelled, percentiles = ended.get(name, (0, 0, None))
        p50, p95 = percentiles or (None, None)
        found.append(
            ClassSummary(
                workflow_class=name,
                loaded=registry.find(name) is not None,
                ever_started=name in started,
                ongoing=sum(ongoing[name].values()),
                paused=ongoing[name].get(RunStatus.PAUSED, 0),
                attention=attention[name],
                finished=finished,
                cancelled=cancelled,
                p50=p50,
                p95=p95,
                on_removed=tuple(one for one in removed if one.workflow_class == name),
            )
        )
    return tuple(found)


def on_removed(connection: Connection, names: Sequence[str]) -> tuple[RunsOnStep, ...]:
    """Return the ongoing runs of these classes that are on steps the loaded class has removed."""
    definitions = (registry.find(name) for name in names)
    places = [(one.name, step) for one in definitions if one for step in one.removed]
    if not places:
        return ()
    classes, steps = ([*column] for column in zip(*places, strict=True))
    rows = connection.rows(_ON_STEPS, classes=classes, steps=steps)
    return tuple(RunsOnStep(*row) for row in rows)


def _ongoing(connection: Connection, names: Sequence[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for name, lane, runs in connection.rows(_ONGOING, classes=names, lanes=list(ONGOING_LANES)):
        found[name][lane] = runs
    return found
