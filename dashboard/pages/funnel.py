"""How far the runs of a class came that started in the window, and where each is now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.dashboard.presenters import figures, pipeline, shares
from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import pgettext
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.pages.listed import Listed
    from pgbus.dashboard.presenters.pipeline import Sitting
    from pgbus.dashboard.presenters.shares import Share
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.performance import Performance, Reached

#: What numbers of runs stand under, also where they are heard alone.
_STARTED = pgettext("column: runs", "Started")
_HERE = pgettext("column: runs", "Here now")

#: How runs end: as a badge, and as a part of a bar.
_ENDS = {
    RunStatus.FINISHED: (Badge(pgettext("tab: runs", "Finished"), "good", "finished"), "c-good"),
    RunStatus.CANCELLED: (
        Badge(pgettext("tab: runs", "Cancelled"), "idle", "cancelled"),
        "c-skip",
    ),
}


@dataclass(frozen=True, slots=True)
class FunnelRow:
    """How many of the started runs reached a step, and how many of those are there now; a `hot` step became worse.

    `paused` are those of them that are, `paused_runs` how many.
    """

    name: str
    hot: bool
    bar: tuple[Share, ...]
    runs: str
    share: str
    here: Markup
    paused: Sitting | None
    paused_runs: str


@dataclass(frozen=True, slots=True)
class EndRow:
    """How many of the started runs have ended so."""

    badge: Badge
    bar: tuple[Share, ...]
    runs: Markup
    share: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelView:
    """How far the runs came that started in the window; without steps where none did."""

    started: Markup
    few: str | None
    steps: tuple[FunnelRow, ...]
    ends: tuple[EndRow, ...]


def view(found: Performance, listed: Listed, words: Words) -> FunnelView:
    """Return the funnel, its numbers of runs as links to them."""
    started = {"created_from": found.span.since, "created_to": found.span.until}
    hot = pipeline.hot(found)
    came = found.funnel
    return FunnelView(
        started=listed.count(came.started, words.gettext(_STARTED), status="all", **started),
        few=figures.few_runs(came.started, words),
        steps=tuple(
            _reached(step, listed, words, of=came.started, hot=step.step_name in hot, **started)
            for step in (came.steps if came.started else ())
        ),
        ends=(
            _end(RunStatus.FINISHED, came.finished, listed, words, of=came.started, **started),
            _end(RunStatus.CANCELLED, came.cancelled, listed, words, of=came.started, **started),
        ),
    )


def _reached(
    step: Reached, listed: Listed, words: Words, *, of: int, hot: bool, **started: Any
) -> FunnelRow:
    at = {"current_step": step.step_name, **started}
    here, paused = sum(step.here.values()), step.here.get(RunStatus.PAUSED, 0)
    by_hand = step.paused.get(StuckReason.PAUSED_MANUAL, 0)
    parts = (
        ("c-run", step.runs - here - step.cancelled),
        ("c-waiting", here - paused),
        ("c-bad", paused - by_hand),
        ("c-paused", by_hand),
        ("c-skip", step.cancelled),
    )
    return FunnelRow(
        name=step.step_name,
        hot=hot,
        bar=shares.bar(of, parts),
        runs=words.number(step.runs),
        share=words.percent(step.runs / of),
        here=listed.count(here, words.gettext(_HERE), **at),
        paused=pipeline.paused(step.paused, listed.href(status=RunStatus.PAUSED, **at), words),
        paused_runs=words.number(paused),
    )


def _end(
    status: RunStatus, runs: int, listed: Listed, words: Words, *, of: int, **started: Any
) -> EndRow:
    badge, colour = _ENDS[status]
    return EndRow(
        badge,
        shares.bar(of, [(colour, runs)]),
        listed.count(runs, words.gettext(badge.word), status=status, **started),
        words.percent(runs / of) if of else "—",
    )
