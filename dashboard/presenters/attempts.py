"""Attempts as lines of a table: what became of each, where its time went, and why it failed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import pgettext
from pgbus.engine.insights.attempts import LONGEST_SUMMARY
from pgbus.engine.runner.error_record import MESSAGE_LENGTH
from pgbus.engine.states import AttemptStatus, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.documents import DocumentView, Shelf
    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.detail import StepOfRun

#: Of the newest error's message the page of a run shows this many characters, of another's these.
_LONG_MESSAGE = 2000
_SUMMARY = 120
#: Errors and outputs stand in the table for the newest; for the others on the page of each.
_IN_FULL = 20
_NOTHING = 0.05


@dataclass(frozen=True, slots=True)
class Cause:
    """An error behind an error."""

    error_class: str
    message: str
    backtrace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ErrorView:
    """An attempt's error; `whole` is where all of it is shown, None when this is all."""

    error_class: str
    message: str
    backtrace: tuple[str, ...]
    causes: tuple[Cause, ...]
    whole: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    """One attempt; `ended` is None while it is open.

    `error_summary` is the first line of its error, `error` all of it where it is the newest; of one far
    back in a table both, and the output, are left to the page at `href`.
    """

    key: int
    href: str
    step: str
    attempt: str
    badge: Badge
    waited: str
    queued: str
    waiting: str
    ran: str
    ended: Markup | None
    worker: str | None
    revision: str | None
    batch_href: str | None
    error: ErrorView | None
    error_summary: str | None
    output: DocumentView | None


@dataclass(frozen=True, slots=True)
class AttemptTable:
    """Attempts as lines; a column of times that none of them has is left out."""

    lines: tuple[AttemptLine, ...]
    waited: bool
    queued: bool
    waiting: bool


_BADGES = {
    AttemptStatus.SCHEDULED: Badge(pgettext("attempt status", "Scheduled"), "idle", "scheduled"),
    AttemptStatus.WAITING: Badge(pgettext("attempt status", "Waiting"), "waits", "waiting"),
    AttemptStatus.IN_PROGRESS: Badge(
        pgettext("attempt status", "Performing"), "runs", "performing"
    ),
    AttemptStatus.COMPLETED: Badge(pgettext("attempt status", "Completed"), "good", "finished"),
    AttemptStatus.FAILED: Badge(pgettext("attempt status", "Failed"), "bad", "failed"),
    AttemptStatus.CANCELLED: Badge(pgettext("attempt status", "Cancelled"), "idle", "cancelled"),
    AttemptStatus.SKIPPED: Badge(pgettext("attempt status", "Skipped"), "idle", "skipped"),
}
#: What became of a step by its newest attempt: the word where the run is past it, and where it is there.
_BECAME = {
    AttemptStatus.SCHEDULED: (
        pgettext("step", "scheduled"),
        pgettext("step", "scheduled, here now"),
    ),
    AttemptStatus.WAITING: (
        pgettext("step", "waiting"),
        pgettext("step", "waiting, here now"),
    ),
    AttemptStatus.IN_PROGRESS: (
        pgettext("step", "performing"),
        pgettext("step", "performing, here now"),
    ),
    AttemptStatus.COMPLETED: (
        pgettext("step", "completed"),
        pgettext("step", "completed, here now"),
    ),
    AttemptStatus.FAILED: (
        pgettext("step", "failed"),
        pgettext("step", "failed, here now"),
    ),
    AttemptStatus.CANCELLED: (
        pgettext("step", "cancelled"),
        pgettext("step", "cancelled, here now"),
    ),
    AttemptStatus.SKIPPED: (
        pgettext("step", "skipped"),
        pgettext("step", "skipped, here now"),
    ),
}
_FAILED_AND_REATTEMPTED = Badge(pgettext("attempt status", "Failed, reattempted"), "bad", "redo")
_REATTEMPTED = Badge(pgettext("attempt status", "Reattempted"), "idle", "redo")
_FAILED_AND_CANCELLED = Badge(
    pgettext("attempt status", "Failed, run cancelled"), "bad", "cancelled"
)
_FAILED_AND_SKIPPED = Badge(pgettext("attempt status", "Failed, skipped"), "bad", "skipped")


def became(step: StepOfRun) -> Badge | None:
    """Return what became of a step, its word told as a part of a line; None for one not tried yet."""
    if step.status is None:
        return None
    passed, here = _BECAME[step.status]
    return replace(_BADGES[step.status], word=here if step.here else passed)


def badge_of(attempt: Attempt) -> Badge:
    """Return what became of an attempt."""
    failed = attempt.error_class is not None
    match attempt.status, attempt.outcome:
        case AttemptStatus.FAILED, Outcome.REATTEMPTED:
            return _FAILED_AND_REATTEMPTED if failed else _REATTEMPTED
        case AttemptStatus.FAILED, Outcome.CANCELLED:
            return _FAILED_AND_CANCELLED
        case AttemptStatus.SKIPPED, _ if failed:
            return _FAILED_AND_SKIPPED
    return _BADGES[attempt.status]


def table(
    attempts: Sequence[Attempt], workflow_id: str, viewer: Viewer, shelf: Shelf
) -> AttemptTable:
    """Return the attempts, newest first, as a table; the newest error is shown open."""
    found: list[AttemptLine] = []
    for attempt in attempts:
        href = viewer.url("attempt", workflow_id=workflow_id, number=attempt.step_id)
        newest = not any(line.error for line in found)
        in_full = len(found) < _IN_FULL
        found.append(_line(attempt, href, viewer, shelf, newest=newest, in_full=in_full))
    return AttemptTable(
        tuple(found),
        waited=any(_shown(one.waited_seconds) for one in attempts),
        queued=any(_shown(one.queued_seconds) for one in attempts),
        waiting=any(_shown(one.waiting_seconds) for one in attempts),
    )


def _shown(seconds: float) -> float | None:
    """Return a length that is worth a word."""
    return seconds if seconds >= _NOTHING else None


def error_of(
    attempt: Attempt,
    href: str,
    shown: Callable[..., object],
    *,
    longest: int | None = None,
) -> ErrorView | None:
    """Return an attempt's error, its messages cut to so many characters; None when it has none."""
    if attempt.error_class is None:
        return None
    record = json.loads(attempt.encoded_error or "{}")
    told = [attempt.error_message or ""]
    told += [str(cause.get("message", "")) for cause in record.get("causes", ())]
    longest_kept = LONGEST_SUMMARY if attempt.error_cut else MESSAGE_LENGTH
    visible = [str(shown("error", text, whole=len(text) < longest_kept)) for text in told]
    cut = [text if longest is None else text[:longest] for text in visible]
    causes = (
        Cause(str(cause.get("class")), message, tuple(cause.get("backtrace", ())))
        for cause, message in zip(record.get("causes", ()), cut[1:], strict=True)
    )
    whole = attempt.error_cut or cut != visible
    return ErrorView(
        attempt.error_class,
        cut[0],
        tuple(record.get("backtrace", ())),
        tuple(causes),
        href if whole else None,
    )


def _line(
    attempt: Attempt, href: str, viewer: Viewer, shelf: Shelf, *, newest: bool, in_full: bool
) -> AttemptLine:
    words, summary = viewer.words, None
    output = attempt.output if in_full else None
    error = error_of(attempt, href, viewer.shown, longest=_LONG_MESSAGE)
    if error is not None:
        first = error.message.strip().partition("\n")[0][:_SUMMARY]
        name = short(error.error_class)
        summary = words.gettext("%(error)s: %(text)s", error=name, text=first) if first else name
    return AttemptLine(
        key=attempt.step_id,
        href=href,
        step=attempt.step_name,
        attempt=words.number(attempt.attempt),
        badge=badge_of(attempt),
        waited=words.duration(_shown(attempt.waited_seconds)),
        queued=words.duration(_shown(attempt.queued_seconds)),
        waiting=words.duration(_shown(attempt.waiting_seconds)),
        ran=words.duration(attempt.ran_seconds),
        ended=words.ago(attempt.finished_at) if attempt.finished_at else None,
        worker=attempt.worker,
        revision=attempt.revision,
        batch_href=viewer.url("batch", batch_id=attempt.batch_id) if attempt.batch_id else None,
        error=error if newest else None,
        error_summary=summary if in_full or newest else None,
        output=shelf.view(output, "output", href) if output else None,
    )
