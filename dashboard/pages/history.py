"""The parts of one run's history by themselves: older entries, one attempt, one whole document."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.pages.run import INLINE, LIMIT, TOGETHER, head, signal_line
from pgbus.dashboard.presenters import attempts, trail
from pgbus.dashboard.presenters.documents import Shelf, readable
from pgbus.engine.insights import detail as insights
from pgbus.engine.insights import events, runs, signals

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.pages.run import Head, SignalLine
    from pgbus.dashboard.presenters.attempts import AttemptTable, ErrorView
    from pgbus.dashboard.presenters.trail import TrailLine
    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """A part of a run's history, of one of the three kinds; `newest` is None on its first page."""

    template: ClassVar[str] = "run_history.html"

    head: Head
    title: str
    attempts: AttemptTable | None = None
    signals: tuple[SignalLine, ...] = ()
    events: tuple[TrailLine, ...] = ()
    newest: str | None
    older: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPage:
    """One attempt with all of its error and output."""

    template: ClassVar[str] = "run_attempt.html"

    head: Head
    title: str
    attempts: AttemptTable
    error: ErrorView | None
    output: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPage:
    """One whole document of a run."""

    template: ClassVar[str] = "run_document.html"

    head: Head
    title: str
    text: str


def load_attempts(
    connection: Connection, viewer: Viewer, workflow_id: str, older_than: int | None
) -> HistoryPage:
    """Return a page of the run's attempts."""
    run = runs.summary(connection, viewer.settings, workflow_id)
    found = insights.older_attempts(
        connection, workflow_id, limit=LIMIT, older_than=older_than, inline=INLINE
    )
    here = functools.partial(viewer.url, "attempts", workflow_id=workflow_id)
    return HistoryPage(
        head=head(run, viewer),
        title=viewer.words.gettext("Attempts"),
        attempts=attempts.table(found.entries, workflow_id, viewer, Shelf(viewer, TOGETHER)),
        newest=here() if older_than else None,
        older=here(older_than=found.entries[-1].step_id) if found.more else None,
    )


def load_signals(
    connection: Connection, viewer: Viewer, workflow_id: str, older_than: int | None
) -> HistoryPage:
    """Return a page of the run's signals."""
    run = runs.summary(connection, viewer.settings, workflow_id)
    found = signals.newest(
        connection, workflow_id, limit=LIMIT, older_than=older_than, inline=INLINE
    )
    shelf = Shelf(viewer, TOGETHER)
    here = functools.partial(viewer.url, "signals", workflow_id=workflow_id)
    return HistoryPage(
        head=head(run, viewer),
        title=viewer.words.gettext("Signals"),
        signals=tuple(signal_line(one, workflow_id, viewer, shelf) for one in found.entries),
        newest=here() if older_than else None,
        older=here(older_than=found.entries[-1].signal_id) if found.more else None,
    )


def load_events(
    connection: Connection, viewer: Viewer, workflow_id: str, older_than: int | None
) -> HistoryPage:
    """Return a page of the run's audit trail."""
    run = runs.summary(connection, viewer.settings, workflow_id)
    found = events.newest(connection, workflow_id, LIMIT, older_than=older_than)
    here = functools.partial(viewer.url, "events", workflow_id=workflow_id)
    return HistoryPage(
        head=head(run, viewer),
        title=viewer.words.gettext("Audit trail"),
        events=trail.trail(found.entries, words=viewer.words, url=viewer.url),
        newest=here() if older_than else None,
        older=here(older_than=found.entries[-1].event_id) if found.more else None,
    )


def load_attempt(
    connection: Connection, viewer: Viewer, workflow_id: str, step_id: int
) -> AttemptPage:
    """Return the page of one attempt; raise `EntryNotFound`."""
    run = runs.summary(connection, viewer.settings, workflow_id)
    found = insights.attempt(connection, workflow_id, step_id)
    shelf = Shelf(viewer, 0)
    table = attempts.table((found,), workflow_id, viewer, shelf)
    (line,) = table.lines
    bare = replace(line, error=None, error_summary=None, output=None)
    encoded = found.output.encoded if found.output else None
    return AttemptPage(
        head=head(run, viewer),
        title=viewer.words.gettext(
            "%(step)s, attempt %(attempt)s", step=found.step_name, attempt=line.attempt
        ),
        attempts=replace(table, lines=(bare,)),
        error=attempts.error_of(found, line.href, viewer.shown),
        output=None if encoded is None else _whole(encoded, "output", viewer),
    )


def load_signal(
    connection: Connection, viewer: Viewer, workflow_id: str, signal_id: int
) -> DocumentPage:
    """Return the page of one signal's payload; raise `EntryNotFound`."""
    run = runs.summary(connection, viewer.settings, workflow_id)
    found = signals.one(connection, workflow_id, signal_id)
    return DocumentPage(
        head=head(run, viewer),
        title=viewer.words.gettext("Payload of signal %(signal)s", signal=found.name),
        text=_whole(found.payload.encoded or "", "payload", viewer),
    )


def load_arguments(connection: Connection, viewer: Viewer, workflow_id: str) -> DocumentPage:
    """Return the page of what the run was started with."""
    run = runs.summary(connection, viewer.settings, workflow_id)
    encoded = insights.arguments(connection, workflow_id)
    return DocumentPage(
        head=head(run, viewer),
        title=viewer.words.gettext("Arguments"),
        text=_whole(encoded, "arguments", viewer),
    )


def _whole(encoded: str, kind: str, viewer: Viewer) -> Markup:
    return readable(encoded, functools.partial(viewer.shown, kind))
