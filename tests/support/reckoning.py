"""The figures of a class as their definitions say, slowly, over the raw rows; in plain dictionaries."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.histories import PAUSED_QUEUE, STALLED, TIMED_OUT, UNDECLARED

from pgbus.engine.insights.performance import _EDGES
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import ONGOING, AttemptStatus, RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from support.histories import Attempt, History, Run

_WITHOUT_BODY = (STALLED, TIMED_OUT, UNDECLARED)


@dataclass
class Reckoning:
    """Of one class: `live` are its steps in order, `removed` its gravestones; `until` is now."""

    history: History
    workflow_class: str
    live: Sequence[str]
    removed: Sequence[str]
    since: datetime
    until: datetime
    overdue_after: timedelta
    waiting_after: timedelta

    def __post_init__(self) -> None:
        self.runs = [run for run in self.history.runs if run.workflow_class == self.workflow_class]
        of_class = {run.workflow_id: run for run in self.runs}
        self.attempts = [one for one in self.history.attempts if one.workflow_id in of_class]
        self.newest = {one.step_id: one for one in self.attempts}
        self.ongoing = [run for run in self.runs if run.ended_at is None]
        self.started = [run for run in self.runs if self._in_window(run.created_at)]
        self.over = [run for run in self.runs if self._in_window(run.ended_at)]
        self.seconds = [
            seconds(run.created_at, run.ended_at) for run in self._ended_as(RunStatus.FINISHED)
        ]

    def summary(self) -> dict[str, Any]:
        found = percentiles(self.seconds)
        return {
            "workflow_class": self.workflow_class,
            "ongoing": len(self.ongoing),
            "paused": len([run for run in self.ongoing if run.status is RunStatus.PAUSED]),
            "attention": len([*self._stuck()]),
            "finished": len(self._ended_as(RunStatus.FINISHED)),
            "cancelled": len(self._ended_as(RunStatus.CANCELLED)),
            "p50": found["p50"],
            "p95": found["p95"],
            "on_removed": [
                {"workflow_class": self.workflow_class, "step_name": name, "runs": runs}
                for name, runs in sorted(Counter(run.current_step for run in self.ongoing).items())
                if name in self.removed
            ],
        }

    def performance(self, begins: Sequence[datetime]) -> dict[str, Any]:
        ended = [one for one in self.attempts if self._in_window(one.finished_at)]
        return {
            "workflow_class": self.workflow_class,
            "ongoing": dict.fromkeys(ONGOING, 0) | Counter(run.status for run in self.ongoing),
            "attention": len([*self._stuck()]),
            "started": len(self.started),
            "finished": len(self._ended_as(RunStatus.FINISHED)),
            "cancelled": len(self._ended_as(RunStatus.CANCELLED)),
            "steps": self._steps(ended),
            "throughput": self._throughput(begins),
            "durations": {"percentiles": percentiles(self.seconds), "bins": bins(self.seconds)},
            "funnel": self._funnel(),
            "revisions": self._revisions(ended),
            "headline": self._headline(ended),
        }

    def _in_window(self, moment: datetime | None) -> bool:
        return moment is not None and self.since <= moment < self.until

    def _ended_as(self, status: RunStatus) -> list[Run]:
        return [run for run in self.over if run.status is status]

    def _stuck(self) -> Iterator[tuple[str, datetime]]:
        """Each stuck run's step, and since when it is."""
        for run in self.ongoing:
            attempt = self.newest[run.step_id]
            since = None
            if run.status is RunStatus.PAUSED:
                since = run.paused_at
            elif run.status is RunStatus.READY and attempt.queue != PAUSED_QUEUE:
                if self.until - attempt.scheduled_at > self.overdue_after:
                    since = attempt.scheduled_at
            elif run.status is RunStatus.WAITING and attempt.timeout_at is None:
                assert attempt.waiting_since is not None
                if self.until - attempt.waiting_since > self.waiting_after:
                    since = attempt.waiting_since
            if since is not None:
                yield run.current_step, since

    def _paused(self, runs: Iterable[Run]) -> Counter[StuckReason]:
        """Why those are paused that are: what did not fail was by hand."""
        return Counter(
            StuckReason.PAUSED_MANUAL
            if self.newest[run.step_id].status is not AttemptStatus.FAILED
            else StuckReason.STALLED
            if self.newest[run.step_id].error_class == STALLED
            else StuckReason.PAUSED_ERROR
            for run in runs
            if run.status is RunStatus.PAUSED
        )

    def _steps(self, ended: Sequence[Attempt]) -> list[dict[str, Any]]:
        return [
            {
                "step_name": name,
                "here": Counter(run.status for run in self.ongoing if run.current_step == name),
                "paused": self._paused(run for run in self.ongoing if run.current_step == name),
                "stuck": [step_name for step_name, _ in self._stuck()].count(name),
                "figures": figures(one for one in ended if one.step_name == name),
            }
            for name in self._in_order(
                {run.current_step for run in self.ongoing} | {one.step_name for one in ended}
            )
        ]

    def _in_order(self, told: set[str]) -> list[str]:
        return [*self.live, *sorted(told - {*self.live})]

    def _throughput(self, begins: Sequence[datetime]) -> list[dict[str, Any]]:
        def counted(moments: Iterable[datetime | None]) -> Counter[int]:
            return Counter(bisect_right(begins, moment) - 1 for moment in moments if moment)

        started = counted(run.created_at for run in self.started)
        ended = {
            status: counted(run.ended_at for run in self._ended_as(status))
            for status in (RunStatus.FINISHED, RunStatus.CANCELLED)
        }
        return [
            {"begin": begin, "started": started[place]}
            | {status.value: counts[place] for status, counts in ended.items()}
            for place, begin in enumerate(begins)
        ]

    def _funnel(self) -> dict[str, Any]:
        steps_of = defaultdict(set)
        for one in self.attempts:
            steps_of[one.workflow_id].add(one.step_name)
        reached = Counter(name for run in self.started for name in steps_of[run.workflow_id])
        under_way = [run for run in self.started if run.ended_at is None]
        cancelled = [run for run in self.started if run.status is RunStatus.CANCELLED]
        return {
            "started": len(self.started),
            "steps": [
                {
                    "step_name": name,
                    "runs": reached[name],
                    "here": Counter(run.status for run in under_way if run.current_step == name),
                    "paused": self._paused(run for run in under_way if run.current_step == name),
                    "cancelled": len([run for run in cancelled if run.current_step == name]),
                }
                for name in self._in_order({*reached})
            ],
            "finished": len([run for run in self.started if run.status is RunStatus.FINISHED]),
            "cancelled": len(cancelled),
        }

    def _by_revision(self, ended: Sequence[Attempt]) -> list[list[Attempt]]:
        """Those that each revision claimed, the newest first: those that run by when they were first seen."""
        by_revision = defaultdict(list)
        for one in ended:
            if one.started_at is not None:
                by_revision[one.revision].append(one)

        def order(of: list[Attempt]) -> tuple[Any, ...]:
            moment = self._first_at(of) if self._runs(of) else max(started(of))
            known = self._runs(of) and of[0].revision is not None
            return self._runs(of), known, moment, min(started(of)), of[0].revision or ""

        return sorted(by_revision.values(), key=order, reverse=True)

    def _runs(self, of: Sequence[Attempt]) -> bool:
        return any(one.revision == of[0].revision and one.beats for one in self.history.deployed)

    def _first_at(self, of: Sequence[Attempt]) -> datetime:
        seen = {one.revision: one.first_seen_at for one in self.history.deployed}
        return seen.get(of[0].revision) or min(started(of))

    def _revisions(self, ended: Sequence[Attempt]) -> list[dict[str, Any]]:
        told = self._by_revision(ended)
        return [
            {
                "revision": of[0].revision,
                "running": self._runs(of),
                "first_at": self._first_at(of),
                "total": figures(of),
                "by_step": {name: figures(ones) for name, ones in by_step(of).items()},
                "compared": bool(by_step(of).keys() & by_step(before).keys()),
                "worse": _risen(of, before),
                "slower": _slower(of, before),
            }
            for of, before in zip(told[:5], [*told[1:], []], strict=False)
        ]

    def _headline(self, ended: Sequence[Attempt]) -> dict[str, Any] | None:
        """The first kind that is there, at the step where it is worst."""
        found: list[tuple[str, Any, Any, str | None, datetime, str | None]] = []
        told = self._by_revision(ended)
        came_back = False
        if len(told) > 1:
            newest, before = map(by_step, told[:2])
            first_at, revision = self._first_at(told[0]), told[0][0].revision
            came_back = first_at <= self._first_at(told[1])
            slower = _slower(*told[:2])
            for name in newest.keys() & before.keys():
                now, then = newest[name], before[name]
                rates = failure_rate(now), failure_rate(then)
                rise = rates[0] - rates[1]
                variance = sum(
                    rate * (1 - rate) / len(of) for rate, of in zip(rates, (now, then), strict=True)
                )
                if (
                    min(len(now), len(then)) >= 20
                    and rise > 0.05 + 1e-9
                    and rise > 3 * variance**0.5
                ):
                    found.append(("failure_rate", *rates, name, first_at, revision))
                if name in slower:
                    p95s = [percentile(run_times(of), 0.95) for of in (now, then)]
                    found.append(("run_time", *p95s, name, first_at, revision))
        at_steps = defaultdict(list)
        for name, since in self._stuck():
            at_steps[name].append(since)
        found += [
            ("pile_up", len(those), 0, name, min(those), None)
            for name, those in at_steps.items()
            if len(those) >= 20
        ]
        if len(self.started) >= 20 and 5 * len(self.over) < 4 * len(self.started):
            found.append(
                ("falling_behind", len(self.over), len(self.started), None, self.since, None)
            )
        if not found:
            return None
        kinds = ["failure_rate", "run_time", "pile_up", "falling_behind"]
        first = min(found, key=lambda one: (kinds.index(one[0]), one[2] - one[1], one[3]))
        names = ("kind", "now", "before", "step_name", "since", "revision")
        return dict(zip(names, first, strict=True)) | {
            "now": pytest.approx(first[1]),
            "before": pytest.approx(first[2]),
            "came_back": came_back and first[0] in kinds[:2],
        }


def seconds(begin: datetime, end: datetime | None) -> float:
    assert end is not None
    return (end - begin).total_seconds()


def started(attempts: Iterable[Attempt]) -> list[datetime]:
    return [one.started_at for one in attempts if one.started_at]


def finished(attempts: Iterable[Attempt]) -> list[datetime]:
    return [one.finished_at for one in attempts if one.finished_at]


def by_step(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    found = defaultdict(list)
    for one in attempts:
        found[one.step_name].append(one)
    return dict(found)


def percentile(values: Sequence[float], share: float) -> float:
    """Interpolated between the two values that the place is between."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def percentiles(values: Sequence[float]) -> dict[str, Any]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {"samples": len(values)} | {
        name: pytest.approx(percentile(values, share), rel=1e-9, abs=1e-9) if values else None
        for name, share in shares.items()
    }


def bins(durations: Sequence[float]) -> list[dict[str, Any]]:
    """How many are from each edge on, below the next; from the first that has any to the last."""
    bounds = [*zip(_EDGES, (*_EDGES[1:], None), strict=True)]
    found = [
        {
            "low": low,
            "high": high,
            "runs": len([one for one in durations if low <= one and (high is None or one < high)]),
        }
        for low, high in bounds
    ]
    full = [place for place, one in enumerate(found) if one["runs"]]
    return found[full[0] : full[-1] + 1] if full else []


def failure_rate(attempts: Sequence[Attempt]) -> float:
    return len([one for one in attempts if one.error_class is not None]) / len(attempts)


def run_times(attempts: Iterable[Attempt]) -> list[float]:
    """Of those of which it is known that a body ended."""
    return [
        seconds(one.started_at, one.finished_at)
        for one in attempts
        if one.started_at is not None
        and one.status in (AttemptStatus.COMPLETED, AttemptStatus.FAILED)
        and one.error_class not in _WITHOUT_BODY
    ]


def figures(attempts: Iterable[Attempt]) -> dict[str, Any]:
    those = [*attempts]
    return {
        "ended": len(those),
        "failed": len([one for one in those if one.error_class is not None]),
        "reattempted": len([one for one in those if one.outcome == "reattempted"]),
        "skipped": len([one for one in those if one.status is AttemptStatus.SKIPPED]),
        "run": percentiles(run_times(those)),
        "pickup": percentiles(
            [
                seconds(one.scheduled_at, one.started_at)
                for one in those
                if one.started_at is not None and one.started_at >= one.scheduled_at
            ]
        ),
    }


def _risen(now: Sequence[Attempt], before: Sequence[Attempt]) -> dict[str, Any]:
    """By how much the failure rate rose of the steps where that is more than five points."""
    found = {}
    then = by_step(before)
    for name, those in by_step(now).items():
        if name in then:
            rise = failure_rate(those) - failure_rate(then[name])
            if rise > 0.05 + 1e-9:
                found[name] = pytest.approx(rise)
    return found


def _slower(now: Sequence[Attempt], before: Sequence[Attempt]) -> dict[str, Any]:
    """By how many seconds the p95 of run time rose of the steps where it doubled, and by a second."""
    found = {}
    then = by_step(before)
    for name, those in by_step(now).items():
        slow, was = run_times(those), run_times(then.get(name, []))
        if min(len(slow), len(was)) >= 100:
            now_p95, was_p95 = percentile(slow, 0.95), percentile(was, 0.95)
            if now_p95 >= 2 * was_p95 and now_p95 - was_p95 >= 1:
                found[name] = pytest.approx(now_p95 - was_p95)
    return found
