"""Insights by class: how every workflow class is doing, one row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pgbus.dashboard.pages.listed import Listed, class_href
from pgbus.dashboard.presenters import spans
from pgbus.dashboard.presenters.pipeline import Note
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.words import code, pgettext
from pgbus.engine.insights import classes, windows
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.spans import SpanView
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.classes import ClassSummary
    from pgbus.engine.insights.windows import Span, Window
    from pgbus.engine.storage.database import Connection

#: Fifty rows of long names stay well under what a page may weigh.
PAGE_SIZE = 50

#: What numbers of runs stand under, also where they are heard alone.
_ONGOING = pgettext("column: runs", "Ongoing")
_PAUSED = pgettext("column: runs", "Paused")
_NEEDY = pgettext("column: runs", "Need attention")
_FINISHED = pgettext("column: runs", "Finished")
_CANCELLED = pgettext("column: runs", "Cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """A class; `attention` is None where nothing of it needs anybody."""

    name: str
    href: str
    notes: tuple[Note, ...]
    ongoing: Markup
    paused: Markup
    attention: str | None
    attention_label: str
    attention_href: str
    finished: Markup
    cancelled: Markup
    p50: str
    p95: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsPage:
    """What the list of classes shows."""

    template: ClassVar[str] = "definitions.html"

    span: SpanView
    lede: str
    classes: tuple[ClassRow, ...]
    bounds: str | None
    earlier: str | None
    later: str | None


def load(connection: Connection, viewer: Viewer, window: Window, *, start: int) -> DefinitionsPage:
    """Return the classes from the `start`th on."""
    words = viewer.words
    span = windows.span(viewer.settings, window, viewer.words.now)
    # Those with runs that need attention come first, else by name.
    found = sorted(
        classes.summaries(connection, viewer.settings, span), key=lambda one: not one.attention
    )
    start = min(start, 1 + max(len(found) - 1, 0) // PAGE_SIZE * PAGE_SIZE)
    shown, following = found[start - 1 : start - 1 + PAGE_SIZE], start + PAGE_SIZE
    here = _here(viewer)
    return DefinitionsPage(
        span=spans.view(span, here, words),
        lede=_lede(found, words),
        classes=tuple(_row(one, span, viewer) for one in shown),
        bounds=words.gettext(
            "Classes %(first)s to %(last)s of %(all)s.",
            first=words.number(start),
            last=words.number(start + len(shown) - 1),
            all=words.number(len(found)),
        )
        if len(shown) < len(found)
        else None,
        earlier=here(window, max(1, start - PAGE_SIZE)) if start > 1 else None,
        later=here(window, following) if following <= len(found) else None,
    )


def _here(viewer: Viewer) -> Callable[..., str]:
    def here(window: Window, start: int = 1) -> str:
        shown = None if window is windows.Window.DAY else window
        return viewer.url("definitions", window=shown, start=start if start > 1 else None)

    return here


def _lede(found: Sequence[ClassSummary], words: Words) -> str:
    needy = sum(1 for one in found if one.attention)
    if needy:
        return words.ngettext(
            "Runs of %(num)s class need attention.",
            "Runs of %(num)s classes need attention.",
            needy,
        )
    return words.gettext("No class has runs that need attention.")


def _row(one: ClassSummary, span: Span, viewer: Viewer) -> ClassRow:
    words, listed = viewer.words, Listed(viewer, one.workflow_class)
    ended: dict[str, Any] = {"ended_from": span.since, "ended_to": span.until}
    name = short(one.workflow_class)

    def count(number: int, head: str, **narrowed: Any) -> Markup:
        return listed.count(number, f"{name}, {words.gettext(head)}", **narrowed)

    return ClassRow(
        name=one.workflow_class,
        href=class_href(viewer, one.workflow_class, span.window),
        notes=tuple(_notes(one, listed, span, words)),
        ongoing=count(one.ongoing, _ONGOING),
        paused=count(one.paused, _PAUSED, status=RunStatus.PAUSED),
        attention=words.number(one.attention) if one.attention else None,
        attention_label=f"{name}, {words.gettext(_NEEDY)}: {words.number(one.attention)}",
        attention_href=listed.attention(),
        finished=count(one.finished, _FINISHED, status=RunStatus.FINISHED, **ended),
        cancelled=count(one.cancelled, _CANCELLED, status=RunStatus.CANCELLED, **ended),
        p50=words.duration(one.p50),
        p95=words.duration(one.p95),
    )


def _notes(one: ClassSummary, listed: Listed, span: Span, words: Words) -> Iterator[Note]:
    """Yield what is odd about the class."""
    if not one.loaded:
        text = words.rich(
            "Does not load here: its runs can be looked at, paused and cancelled, not resumed"
        )
        yield Note("bad", "plug", text)
    for at in one.on_removed:
        text = words.nrich(
            "%(count)s ongoing run is on %(step)s, a removed step",
            "%(count)s ongoing runs are on %(step)s, a removed step",
            at.runs,
            count=listed.count(at.runs, current_step=at.step_name),
            step=code(at.step_name),
        )
        yield Note("warn", "attention", text)
    if not one.ever_started:
        yield Note("idle", "info", words.rich("Never started"))
    elif not one.finished:
        text = words.rich("No run finished %(within)s", within=spans.within(span, words))
        yield Note("idle", "info", text)
