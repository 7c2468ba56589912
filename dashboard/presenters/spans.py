"""A window of time in words, and the ways to the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.words import _
from pgbus.engine.insights.windows import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.windows import Span

_NAMES = {
    Window.HOUR: _("1 h"),
    Window.DAY: _("24 h"),
    Window.WEEK: _("7 d"),
    Window.MONTH: _("30 d"),
}

_WITHIN = {
    Window.HOUR: _("in the last hour"),
    Window.DAY: _("in the last 24 h"),
    Window.WEEK: _("in the last 7 d"),
    Window.MONTH: _("in the last 30 d"),
}

#: In seconds: the longer the window, the less a moment changes of it, and the more it asks of PostgreSQL.
_REFRESHED = {Window.HOUR: 15, Window.DAY: 30, Window.WEEK: 60, Window.MONTH: 120}


@dataclass(frozen=True, slots=True)
class WindowLink:
    """A window to look through."""

    name: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class SpanView:
    """What a page says of its window; `capped` is None where it is as long as was asked for."""

    within: str
    capped: str | None
    windows: tuple[WindowLink, ...]
    refreshed: int


def view(span: Span, href: Callable[[Window], str], words: Words) -> SpanView:
    """Return the window in words; `href` gives the same page through another."""
    return SpanView(
        within(span, words),
        words.gettext(
            "Runs are deleted %(time)s after they ended: the window begins there.",
            time=_length(span, words),
        )
        if span.capped
        else None,
        tuple(
            WindowLink(words.gettext(name), href(window), window is span.window)
            for window, name in _NAMES.items()
        ),
        _REFRESHED[span.window],
    )


def within(span: Span, words: Words) -> str:
    """Return when, as the end of a sentence."""
    if span.capped:
        return words.gettext("in the last %(time)s", time=_length(span, words))
    return words.gettext(_WITHIN[span.window])


def _length(span: Span, words: Words) -> str:
    return words.duration((span.until - span.since).total_seconds())
