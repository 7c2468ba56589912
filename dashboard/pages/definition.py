"""One workflow class: what changed for the worse, its steps, its revisions, how far its runs come."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pgbus.dashboard.pages import funnel
from pgbus.dashboard.pages.listed import Listed, class_href
from pgbus.dashboard.presenters import (
    distribution,
    figures,
    marks,
    pipeline,
    revisions,
    spans,
)
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.verdict import verdict
from pgbus.dashboard.words import pgettext
from pgbus.engine.insights import performance, windows
from pgbus.engine.insights.windows import HOUR
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.pages.funnel import FunnelView
    from pgbus.dashboard.presenters.distribution import BinRow, Line
    from pgbus.dashboard.presenters.pipeline import StepRow
    from pgbus.dashboard.presenters.revisions import RevisionRow
    from pgbus.dashboard.presenters.spans import SpanView
    from pgbus.engine.insights.performance import Performance
    from pgbus.engine.insights.throughput import Bucket
    from pgbus.engine.insights.windows import Window
    from pgbus.engine.storage.database import Connection


#: What numbers of runs stand under, also where they are heard alone.
_STARTED = pgettext("column: runs", "Started")
_FINISHED = pgettext("column: runs", "Finished")


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
    """How many runs started and ended in each bucket; `caption` says in which the most started.

    Without rows where none did either.
    """

    bucket: str
    caption: Markup
    rows: tuple[BucketRow, ...]


@dataclass(frozen=True, slots=True)
class DurationsView:
    """How long runs took; `caption` says it in words, `end` is what stands at the right end of the last bar."""

    caption: Markup
    rows: tuple[BinRow, ...]
    end: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Idle:
    """What can be done where nothing ran: look through the longest window, start a run of a loaded class."""

    longest: Markup | None
    start: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionPage:
    """What the page of one class shows; `idle` is None where something ran in the window, or is ongoing."""

    template: ClassVar[str] = "definition.html"

    workflow_class: str
    title: str
    loaded: bool
    runs_href: str
    span: SpanView
    verdict: tuple[Markup, ...]
    idle: Idle | None
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
            ran=here.busy,
            attention=found.attention,
            attention_href=listed.attention,
            started_href=listed.href(status="all", **here.started),
            ended_href=listed.href(status="all", **here.ended),
        ),
        idle=None if here.busy else here.idle(view),
        totals=here.totals(),
        heads=figures.heads(words),
        pipeline=pipeline.rows(found, here.at_step, listed.attention, words),
        counted=tuple(
            (words.gettext(term), words.gettext(told)) for term, told in figures.DEFINITIONS
        ),
        revisions=revisions.rows(found.revisions, words),
        funnel=funnel.view(found, listed, words),
        throughput=here.throughput(),
        durations=here.durations(),
    )


class _Here:
    """The figures of a class as one viewer sees them, each with the way to its runs."""

    def __init__(self, viewer: Viewer, found: Performance) -> None:
        self.listed = Listed(viewer, found.workflow_class)
        self.started: dict[str, Any] = {
            "created_from": found.span.since,
            "created_to": found.span.until,
        }
        self.ended: dict[str, Any] = {"ended_from": found.span.since, "ended_to": found.span.until}
        self._words = viewer.words
        self._found = found

    @property
    def busy(self) -> bool:
        """Whether a run is ongoing, or one started or ended in the window."""
        found = self._found
        return bool(
            sum(found.ongoing.values()) or found.started or found.finished or found.cancelled
        )

    def idle(self, view: SpanView) -> Idle:
        longest = view.windows[-1]
        return Idle(
            None if longest.current or view.capped else marks.link(longest.href, longest.name),
            f"{short(self._found.workflow_class)}.start(...)" if self._found.loaded else None,
        )

    def at_step(self, step: str, **narrowed: Any) -> str:
        """Return the ongoing runs at a step."""
        return self.listed.href(current_step=step, **narrowed)

    def totals(self) -> Totals:
        found, words, listed = self._found, self._words, self.listed
        paused = found.ongoing[RunStatus.PAUSED]
        percentiles = found.durations.percentiles
        return Totals(
            ongoing=listed.count(sum(found.ongoing.values()), words.gettext("Ongoing now")),
            paused=words.ngettext("%(num)s paused", "%(num)s paused", paused) if paused else None,
            paused_href=listed.href(status=RunStatus.PAUSED),
            attention=words.ngettext(
                "%(num)s needs attention", "%(num)s need attention", found.attention
            )
            if found.attention
            else None,
            attention_href=listed.attention(),
            started=self.listed.count(
                found.started, words.gettext(_STARTED), status="all", **self.started
            ),
            finished=self.listed.count(
                found.finished, words.gettext(_FINISHED), status=RunStatus.FINISHED, **self.ended
            ),
            cancelled=words.ngettext("%(num)s cancelled", "%(num)s cancelled", found.cancelled)
            if found.cancelled
            else None,
            cancelled_href=listed.href(status=RunStatus.CANCELLED, **self.ended),
            p50=words.duration(percentiles.p50),
            p95=words.duration(percentiles.p95),
            few=figures.few_runs(percentiles.samples, words),
        )

    def throughput(self) -> ThroughputView:
        words, bucket = self._words, self._found.span.bucket
        rows = tuple(self._buckets())
        most = max(rows, key=lambda row: row.bucket.started)
        told = words.gettext("bars of %(time)s", time=words.duration(bucket.total_seconds()))
        if not any(row.started or row.finished or row.cancelled for row in self._found.throughput):
            return ThroughputView(told, words.rich("No run started or ended."), ())
        caption = words.rich("No run was started.")
        if most.bucket.started:
            caption = words.rich(
                "Most runs started in the interval from %(time)s: %(runs)s.",
                time=most.when,
                runs=most.started,
            )
        return ThroughputView(told, caption, rows)

    def _buckets(self) -> Iterator[BucketRow]:
        """Yield each bucket; of the first only what is in the window counts."""
        span, buckets = self._found.span, self._found.throughput
        begins = [bucket.begin for bucket in buckets]
        for bucket, before, until in zip(
            buckets, [None, *begins], [*begins[1:], span.until], strict=False
        ):
            since = max(bucket.begin, span.since)
            ended: dict[str, Any] = {"ended_from": since, "ended_to": until}
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
                "Runs finished: %(runs)s. Half within %(half)s, all but one in twenty within %(most)s.",
                runs=self.listed.count(
                    found.percentiles.samples,
                    words.gettext(_FINISHED),
                    status=RunStatus.FINISHED,
                    **self.ended,
                ),
                half=words.duration(found.percentiles.p50),
                most=words.duration(found.percentiles.p95),
            )
        return DurationsView(
            caption,
            distribution.rows(found, words),
            distribution.end(found, words),
            tuple(distribution.lines(found, words)),
        )
