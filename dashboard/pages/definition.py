"""One workflow class: what changed for the worse, its steps, its revisions, how far its runs come."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.pages.listed import Listed, class_href
from pgbus.dashboard.presenters import (
    distribution,
    figures,
    pipeline,
    revisions,
    shares,
    spans,
)
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.presenters.verdict import verdict
from pgbus.dashboard.words import _
from pgbus.engine.insights import performance, windows
from pgbus.engine.insights.windows import HOUR
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.distribution import BinRow, Line
    from pgbus.dashboard.presenters.pipeline import StepRow
    from pgbus.dashboard.presenters.revisions import RevisionRow
    from pgbus.dashboard.presenters.shares import Share
    from pgbus.dashboard.presenters.spans import SpanView
    from pgbus.engine.insights.performance import Performance, Reached
    from pgbus.engine.insights.throughput import Bucket
    from pgbus.engine.insights.windows import Window
    from pgbus.engine.storage.database import Connection


#: How runs end: as a badge, and as a part of a bar.
_ENDS = {
    RunStatus.FINISHED: (Badge(_("Finished"), "good", "finished"), "c-good"),
    RunStatus.CANCELLED: (Badge(_("Cancelled"), "idle", "cancelled"), "c-skip"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The figures that the page begins with; `few` says of how few runs the durations are."""

    ongoing: Markup
    paused: str | None
    paused_href: str
    attention: str | None
    attention_href: str
    started: Markup
    finished: Markup
    cancelled: str | None
    cancelled_href: str
    p50: str
    p95: str
    few: str | None


@dataclass(frozen=True, slots=True)
class FunnelRow:
    """How many of the started runs reached a step, and how many of those are there now."""

    name: str
    bar: tuple[Share, ...]
    runs: str
    share: str
    here: Markup
    paused: Markup


@dataclass(frozen=True, slots=True)
class EndRow:
    """How many of the started runs have ended so."""

    badge: Badge
    bar: tuple[Share, ...]
    runs: Markup
    share: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelView:
    """How far the runs came that started in the window."""

    started: Markup
    few: str | None
    steps: tuple[FunnelRow, ...]
    ends: tuple[EndRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRow:
    """What became of runs in a stretch of time; `begins` is what stands at the left end of its bars."""

    when: Markup
    begins: str
    bucket: Bucket
    started: Markup
    finished: Markup
    cancelled: Markup


@dataclass(frozen=True, slots=True)
class ThroughputView:
    """How many runs started and ended in each bucket; `caption` says in which the most started."""

    bucket: str
    caption: Markup
    rows: tuple[BucketRow, ...]


@dataclass(frozen=True, slots=True)
class DurationsView:
    """How long runs took; `caption` says it in words."""

    caption: Markup
    rows: tuple[BinRow, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionPage:
    """What the page of one class shows; `idle` is how to start a run where none was in the window."""

    template: ClassVar[str] = "definition.html"

    workflow_class: str
    title: str
    loaded: bool
    runs_href: str
    span: SpanView
    verdict: tuple[Markup, ...]
    idle: str | None
    totals: Totals
    heads: tuple[str, ...]
    pipeline: tuple[StepRow, ...]
    counted: tuple[tuple[str, str], ...]
    revisions: tuple[RevisionRow, ...]
    funnel: FunnelView
    throughput: ThroughputView
    durations: DurationsView


def load(
    connection: Connection, viewer: Viewer, workflow_class: str, window: Window
) -> DefinitionPage:
    """Return the page of a class; raise `ClassNotFound` for a name that no class and no run has."""
    words = viewer.words
    span = windows.span(viewer.settings, window, viewer.words.now)
    found = performance.performance(connection, viewer.settings, workflow_class, span, words.zone)
    here = _Here(viewer, found)
    view = spans.view(span, functools.partial(class_href, viewer, workflow_class), words)
    listed = here.listed
    return DefinitionPage(
        workflow_class=workflow_class,
        title=short(workflow_class),
        loaded=found.loaded,
        runs_href=listed.href(status="all"),
        span=view,
        verdict=verdict(
            found.headline,
            words,
            within=view.within,
            started_href=listed.href(status="all", **here.started),
            ended_href=listed.href(status="all", **here.ended),
        ),
        idle=None if here.busy or not found.loaded else f"{short(workflow_class)}.start(...)",
        totals=here.totals(),
        heads=figures.heads(words),
        pipeline=pipeline.rows(found, here.at_step, words),
        counted=tuple(
            (words.gettext(term), words.gettext(told)) for term, told in figures.DEFINITIONS
        ),
        revisions=revisions.rows(found.revisions, words),
        funnel=here.funnel(),
        throughput=here.throughput(),
        durations=here.durations(),
    )


class _Here:
    """The figures of a class as one viewer sees them, each with the way to its runs."""

    def __init__(self, viewer: Viewer, found: Performance) -> None:
        self.listed = Listed(viewer, found.workflow_class)
        self.started = {"created_from": found.span.since, "created_to": found.span.until}
        self.ended = {"ended_from": found.span.since, "ended_to": found.span.until}
        self._words = viewer.words
        self._found = found

    @property
    def busy(self) -> bool:
        """Whether a run is ongoing, or one started or ended in the window."""
        found = self._found
        return bool(
            sum(found.ongoing.values()) or found.started or found.finished or found.cancelled
        )

    def at_step(self, step: str, status: RunStatus | None) -> str:
        """Return the ongoing runs at a step."""
        return self.listed.href(current_step=step, status=status or "ongoing")

    def totals(self) -> Totals:
        found, words, listed = self._found, self._words, self.listed
        paused = found.ongoing[RunStatus.PAUSED]
        percentiles = found.durations.percentiles
        return Totals(
            ongoing=listed.count(sum(found.ongoing.values())),
            paused=words.ngettext("%(num)s paused", "%(num)s paused", paused) if paused else None,
            paused_href=listed.href(status=RunStatus.PAUSED),
            attention=words.ngettext(
                "%(num)s needs attention", "%(num)s need attention", found.attention
            )
            if found.attention
            else None,
            attention_href=listed.attention(),
            started=listed.count(found.started, status="all", **self.started),
            finished=listed.count(found.finished, status=RunStatus.FINISHED, **self.ended),
            cancelled=words.ngettext("%(num)s cancelled", "%(num)s cancelled", found.cancelled)
            if found.cancelled
            else None,
            cancelled_href=listed.href(status=RunStatus.CANCELLED, **self.ended),
            p50=words.duration(percentiles.p50),
            p95=words.duration(percentiles.p95),
            few=figures.few_runs(percentiles.samples, words),
        )

    def funnel(self) -> FunnelView:
        found = self._found.funnel
        return FunnelView(
            started=self.listed.count(found.started, status="all", **self.started),
            few=figures.few_runs(found.started, self._words),
            steps=tuple(map(self._reached, found.steps)),
            ends=(
                self._end(RunStatus.FINISHED, found.finished),
                self._end(RunStatus.CANCELLED, found.cancelled),
            ),
        )

    def _reached(self, step: Reached) -> FunnelRow:
        started = self._found.funnel.started
        here, paused = sum(step.here.values()), step.here.get(RunStatus.PAUSED, 0)
        parts = (
            ("c-run", step.runs - here),
            ("c-waiting", here - paused),
            ("c-paused", paused),
        )
        at = {"current_step": step.step_name, **self.started}
        return FunnelRow(
            step.step_name,
            shares.bar(started, parts),
            self._words.number(step.runs),
            self._words.percent(step.runs / started) if started else "—",
            self.listed.count(here, **at),
            self.listed.count(paused, status=RunStatus.PAUSED, **at),
        )

    def _end(self, status: RunStatus, runs: int) -> EndRow:
        started = self._found.funnel.started
        badge, colour = _ENDS[status]
        return EndRow(
            badge,
            shares.bar(started, [(colour, runs)]),
            self.listed.count(runs, status=status, **self.started),
            self._words.percent(runs / started) if started else "—",
        )

    def throughput(self) -> ThroughputView:
        words, bucket = self._words, self._found.span.bucket
        rows = tuple(self._buckets())
        most = max(rows, key=lambda row: row.bucket.started)
        caption = words.rich("No run was started.")
        if most.bucket.started:
            caption = words.rich(
                "The most from %(time)s on: %(runs)s started.", time=most.when, runs=most.started
            )
        told = words.gettext("per %(time)s", time=words.duration(bucket.total_seconds()))
        return ThroughputView(told, caption, rows)

    def _buckets(self) -> Iterator[BucketRow]:
        """Yield each bucket; of the first only what is in the window counts."""
        span, buckets = self._found.span, self._found.throughput
        begins = [bucket.begin for bucket in buckets]
        for bucket, before, until in zip(
            buckets, [None, *begins], [*begins[1:], span.until], strict=False
        ):
            since = max(bucket.begin, span.since)
            ended = {"ended_from": since, "ended_to": until}
            yield BucketRow(
                when=self._words.clock(bucket.begin),
                begins=self._begins(bucket.begin, before),
                bucket=bucket,
                started=self.listed.count(
                    bucket.started, status="all", created_from=since, created_to=until
                ),
                finished=self.listed.count(bucket.finished, status=RunStatus.FINISHED, **ended),
                cancelled=self.listed.count(bucket.cancelled, status=RunStatus.CANCELLED, **ended),
            )

    def _begins(self, begin: datetime, before: datetime | None) -> str:
        """Return the time of day; of long buckets the day where it begins."""
        if self._found.span.bucket <= HOUR:
            return begin.strftime("%H:%M")
        return self._words.day(begin) if before is None or begin.date() != before.date() else ""

    def durations(self) -> DurationsView:
        found, words = self._found.durations, self._words
        caption = words.rich("No run finished.")
        if found.percentiles.samples:
            caption = words.rich(
                "%(runs)s finished: half within %(half)s, all but one in twenty within %(most)s.",
                runs=self.listed.count(
                    found.percentiles.samples, status=RunStatus.FINISHED, **self.ended
                ),
                half=words.duration(found.percentiles.p50),
                most=words.duration(found.percentiles.p95),
            )
        return DurationsView(
            caption,
            distribution.rows(found, words),
            tuple(distribution.lines(found, words)),
        )
