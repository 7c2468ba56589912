"""The one change for the worse that a class's insights open with, by a written rule.

The first of these that holds, and of several steps the one where it is worst:

1. A step's failure rate rose by more than five points from the revision before the newest to the newest
   (`figures.Attempts` says which those are).
2. A step's p95 of run time did at least double between the two, and rose by a second or more.
3. At least 20 runs need attention at a step.
4. Fewer than four in five runs ended as were started, of at least 20 that were.

The first looks at steps of which both revisions ended at least 20 attempts, and where the rise is more than three
times its standard error: of forty steps one or another rises by five points in every deployment, by chance. The
second looks at steps with 100 run times of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.engine.insights.figures import FEW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from pgbus.engine.insights.figures import Figures, Revision
    from pgbus.engine.insights.stuck import StuckAtStep
    from pgbus.engine.insights.throughput import Bucket
    from pgbus.engine.insights.windows import Span

_ENDED_OF_STARTED = 0.8
#: So many times its standard error a rise of a rate is no chance.
_STANDARD_ERRORS = 3


class Worse(StrEnum):
    """What changed for the worse."""

    FAILURE_RATE = "failure_rate"
    RUN_TIME = "run_time"
    PILE_UP = "pile_up"
    FALLING_BEHIND = "falling_behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What changed for the worse, and since when.

    `now` and `before` are failure rates, or p95s in seconds; of a pile-up `now` are the runs at the step; of
    falling behind `now` ended and `before` were started. Only the first two are of a step and a revision, of which
    None is an unknown one; a pile-up is of a step. A revision that `came_back` was first seen before the one that
    it is compared with.
    """

    kind: Worse
    since: datetime
    now: float
    before: float
    step_name: str | None = None
    revision: str | None = None
    came_back: bool = False


def headline(
    revisions: Sequence[Revision],
    stuck: Iterable[StuckAtStep],
    throughput: Iterable[Bucket],
    span: Span,
) -> Headline | None:
    """Return the worst change; None when nothing stands out."""
    found = [*_since_revision(*revisions[:2])] if len(revisions) > 1 else []
    found += [*_piled_up(stuck), *_fallen_behind(throughput, span)]
    order = list(Worse)
    return min(
        found,
        key=lambda one: (order.index(one.kind), -_weight(one), one.step_name or ""),
        default=None,
    )


def _weight(one: Headline) -> float:
    return one.now - one.before


def _since_revision(newest: Revision, before: Revision) -> Iterable[Headline]:
    for step, figures in newest.by_step.items():
        earlier = before.by_step.get(step)
        if earlier is None:
            continue
        for kind, now, then in _compared(step, newest, figures, earlier):
            yield Headline(
                kind=kind,
                since=newest.first_at,
                now=now,
                before=then,
                step_name=step,
                revision=newest.revision,
                came_back=newest.first_at <= before.first_at,
            )


def _compared(
    step: str, newest: Revision, now: Figures, before: Figures
) -> Iterable[tuple[Worse, float, float]]:
    if step in newest.worse and not (now.few or before.few) and _is_no_chance(now, before):
        yield Worse.FAILURE_RATE, now.failure_rate, before.failure_rate
    if step in newest.slower:
        yield Worse.RUN_TIME, now.run.p95 or 0.0, before.run.p95 or 0.0


def _is_no_chance(now: Figures, before: Figures) -> bool:
    variances = (one.failure_rate * (1 - one.failure_rate) / one.ended for one in (now, before))
    rise = now.failure_rate - before.failure_rate
    return rise > _STANDARD_ERRORS * math.sqrt(sum(variances))


def _piled_up(stuck: Iterable[StuckAtStep]) -> Iterable[Headline]:
    for at in stuck:
        if at.runs >= FEW:
            yield Headline(
                kind=Worse.PILE_UP,
                since=at.first_at,
                now=at.runs,
                before=0,
                step_name=at.step_name,
            )


def _fallen_behind(throughput: Iterable[Bucket], span: Span) -> Iterable[Headline]:
    buckets = [*throughput]
    started = sum(bucket.started for bucket in buckets)
    ended = sum(bucket.finished + bucket.cancelled for bucket in buckets)
    if started >= FEW and ended < _ENDED_OF_STARTED * started:
        yield Headline(kind=Worse.FALLING_BEHIND, since=span.since, now=ended, before=started)
