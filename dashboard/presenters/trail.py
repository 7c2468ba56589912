"""A run's audit trail as sentences: one message an event, and one for those only a newer pgbus knows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pgbus.dashboard.presenters import marks
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import SYSTEM
from pgbus.dashboard.words import _, code, foreign, pgettext, quoted
from pgbus.engine.states import Event, OnTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.events import TrailEntry

#: Of a reason a page of many entries shows this much.
SHORT_REASON = 300


@dataclass(frozen=True, slots=True)
class TrailLine:
    """An entry: when, and what happened as HTML."""

    key: int
    when: Markup
    tone: str
    icon: str
    text: Markup


#: How an event looks: its tone and its icon.
_LOOKS: dict[str, tuple[str, str]] = {
    Event.STARTED: ("", "ready"),
    Event.STEP_SCHEDULED: ("", "scheduled"),
    Event.STEP_STARTED: ("", "performing"),
    Event.STEP_COMPLETED: ("good", "finished"),
    Event.STEP_FAILED: ("bad", "failed"),
    Event.STEP_SKIPPED: ("", "skipped"),
    Event.STEP_REATTEMPTED: ("", "redo"),
    Event.PAUSED: ("warn", "paused"),
    Event.RESUMED: ("", "play1"),
    Event.CANCELLED: ("", "cancelled"),
    Event.FINISHED: ("good", "finished"),
    Event.RUN_NOW: ("", "play1"),
    Event.RESCHEDULED: ("", "scheduled"),
    Event.RERUN: ("", "redo"),
    Event.STALL_DETECTED: ("bad", "stalled"),
    Event.LATE_COMPLETION_IGNORED: ("warn", "late"),
    Event.SIGNAL_RECEIVED: ("", "signal"),
    Event.SIGNAL_CLAIMED: ("", "signal"),
    Event.STEP_WAITING: ("waits", "waiting"),
    Event.WAIT_TIMED_OUT: ("warn", "late"),
    Event.FAN_OUT_OPENED: ("waits", "fanout"),
    Event.FAN_OUT_FINISHED: ("", "fanout"),
}
_UNKNOWN_LOOK = ("", "info")

_TOLD: dict[str, str] = {
    Event.STARTED: _("Started by %(actor)s"),
    Event.STEP_SCHEDULED: _("%(step)s scheduled, attempt %(attempt)s"),
    Event.STEP_STARTED: _("%(step)s taken by a worker, attempt %(attempt)s"),
    Event.STEP_COMPLETED: _("%(step)s completed, attempt %(attempt)s"),
    Event.STEP_FAILED: _("%(step)s failed, attempt %(attempt)s: %(error)s"),
    Event.STEP_SKIPPED: _("%(step)s skipped by %(actor)s"),
    Event.STEP_REATTEMPTED: _("Attempt %(attempt)s of %(step)s is followed by another"),
    Event.PAUSED: _("Paused by %(actor)s"),
    Event.RESUMED: _("Resumed by %(actor)s"),
    Event.CANCELLED: _("Cancelled by %(actor)s"),
    Event.FINISHED: pgettext("trail", "Finished"),
    Event.RUN_NOW: _("%(step)s sent at once by %(actor)s"),
    Event.RESCHEDULED: _("%(step)s rescheduled to %(scheduled_at)s by %(actor)s"),
    Event.RERUN: _("Rerun by %(actor)s"),
    Event.STALL_DETECTED: _("The worker of %(step)s died or hung, attempt %(attempt)s"),
    Event.LATE_COMPLETION_IGNORED: _(
        "Attempt %(attempt)s of %(step)s ended after all; its outcome did not count any more"
    ),
    Event.SIGNAL_RECEIVED: _("Signal %(name)s received from %(actor)s"),
    Event.SIGNAL_CLAIMED: _("Signal %(name)s taken by %(step)s, attempt %(attempt)s"),
    Event.STEP_WAITING: _("%(step)s began to wait for signal %(wait_for)s"),
    Event.WAIT_TIMED_OUT: _("%(step)s waited for signal %(wait_for)s beyond its deadline"),
    Event.FAN_OUT_OPENED: _("%(step)s sent the jobs of batch %(batch)s"),
    Event.FAN_OUT_FINISHED: _("The jobs of %(step)s have ended"),
}
_UNKNOWN = _("%(event)s by %(actor)s")
_UNKNOWN_OF_STEP = _("%(event)s by %(actor)s (%(step)s, attempt %(attempt)s)")

_SKIPPED_ON = _("%(step)s skipped after %(error)s, attempt %(attempt)s")
_SKIPPED_BY_SYSTEM = _("%(step)s skipped, attempt %(attempt)s")
_REATTEMPTED_ON = _(
    "Attempt %(attempt)s of %(step)s failed with %(error)s and is followed by another"
)
_PAUSED_BY_SYSTEM = _("Paused after attempt %(attempt)s of %(step)s")
_CANCELLED_BY_SYSTEM = _("Cancelled after attempt %(attempt)s of %(step)s")
_RESUMED_AT = _("Resumed at %(target)s by %(actor)s")
_RECEIVED_AGAIN = _(
    "Signal %(name)s received again from %(actor)s; its key is known, nothing changed"
)
_WAITING_UNTIL = _("%(step)s began to wait for signal %(wait_for)s, until %(timeout_at)s")
_WAITING_FOR_BATCH = _("%(step)s began to wait for batch %(batch)s")
_AT_DEADLINE = {
    OnTimeout.PAUSE: _("Signal %(wait_for)s did not come in time: %(step)s failed"),
    OnTimeout.CANCEL: _("Signal %(wait_for)s did not come in time: the run is cancelled"),
    OnTimeout.SKIP: _("Signal %(wait_for)s did not come in time: %(step)s is skipped"),
    OnTimeout.RUN: _("Signal %(wait_for)s did not come in time: %(step)s runs without it"),
    OnTimeout.NOTIFY: _("Signal %(wait_for)s is late: %(step)s goes on waiting"),
}

#: In the place of what an entry should tell and does not.
_MISSING = "?"
_BECAUSE = _("%(told)s: %(reason)s")
_COUNTED = _("%(told)s (%(counted)s)")


def trail(
    entries: Iterable[TrailEntry],
    *,
    words: Words,
    url: Callable[..., str],
    longest_reason: int | None = None,
) -> tuple[TrailLine, ...]:
    """Return the entries as lines; reasons cut to so many characters, None: whole."""
    return tuple(_line(entry, words, url, longest_reason) for entry in entries)


def _line(
    entry: TrailEntry, words: Words, url: Callable[..., str], longest_reason: int | None
) -> TrailLine:
    tone, icon = _LOOKS.get(entry.event, _UNKNOWN_LOOK)
    told = _told(entry, words, url)
    if entry.reason:
        reason = entry.reason
        if longest_reason is not None and len(reason) > longest_reason:
            reason = f"{reason[:longest_reason]}…"
        told = words.rich(_BECAUSE, told=told, reason=quoted(reason))
    return TrailLine(entry.event_id, words.ago(entry.created_at), tone, icon, told)


def _told(entry: TrailEntry, words: Words, url: Callable[..., str]) -> Markup:
    details = _details(entry)
    told = words.rich(_key(entry, details), **_parts(entry, details, words, url))
    counted = _counted(details, words)
    return words.rich(_COUNTED, told=told, counted=counted) if counted else told


def _counted(details: dict[str, Any], words: Words) -> str | None:
    """Return what the details say of a batch's jobs."""
    jobs, failed = details.get("size", details.get("total_jobs")), details.get("failed_jobs")
    still_open = details.get("open_jobs")
    if isinstance(still_open, int):
        return words.ngettext(
            "%(num)s job was still open", "%(num)s jobs were still open", still_open
        )
    if not isinstance(jobs, int):
        return None
    if isinstance(failed, int) and failed:
        told = words.number(failed)
        return words.ngettext(
            "%(failed)s of %(num)s job failed",
            "%(failed)s of %(num)s jobs failed",
            jobs,
            failed=told,
        )
    return words.ngettext("%(num)s job", "%(num)s jobs", jobs)


def _key(entry: TrailEntry, details: dict[str, Any]) -> str:
    """Return the message for the entry, by what its details say."""
    by_itself = entry.actor == SYSTEM and entry.step_name is not None
    match entry.event:
        case Event.STEP_SKIPPED if "error_class" in details:
            return _SKIPPED_ON
        case Event.STEP_SKIPPED if by_itself:
            return _SKIPPED_BY_SYSTEM
        case Event.STEP_REATTEMPTED if "error_class" in details:
            return _REATTEMPTED_ON
        case Event.PAUSED if by_itself:
            return _PAUSED_BY_SYSTEM
        case Event.CANCELLED if by_itself:
            return _CANCELLED_BY_SYSTEM
        case Event.RESUMED if "step" in details:
            return _RESUMED_AT
        case Event.SIGNAL_RECEIVED if details.get("duplicate"):
            return _RECEIVED_AGAIN
        case Event.STEP_WAITING if details.get("timeout_at"):
            return _WAITING_UNTIL
        case Event.STEP_WAITING if "batch_id" in details:
            return _WAITING_FOR_BATCH
        case Event.WAIT_TIMED_OUT if str(details.get("action")) in _AT_DEADLINE:
            return _AT_DEADLINE[OnTimeout(details["action"])]
    if entry.event in _TOLD:
        return _TOLD[entry.event]
    return _UNKNOWN if entry.step_name is None else _UNKNOWN_OF_STEP


def _parts(
    entry: TrailEntry, details: dict[str, Any], words: Words, url: Callable[..., str]
) -> dict[str, object]:
    return {
        "actor": foreign(entry.actor),
        "step": code(entry.step_name or _MISSING),
        "attempt": _MISSING if entry.attempt is None else words.number(entry.attempt),
        "event": foreign(entry.event.replace("_", " ").capitalize()),
        "error": code(short(str(details.get("error_class", _MISSING)))),
        "name": _named(details, "name"),
        "wait_for": _named(details, "wait_for"),
        "target": _named(details, "step"),
        "timeout_at": _moment(details.get("timeout_at"), words),
        "scheduled_at": _moment(details.get("scheduled_at"), words),
        "batch": _batch(details.get("batch_id"), url),
    }


def _named(details: dict[str, Any], name: str) -> Markup:
    value = details.get(name)
    return code(_MISSING if value is None else str(value))


def _moment(value: object, words: Words) -> str | Markup:
    """Return a moment of the details; what is none as it stands there."""
    try:
        return words.clock(datetime.fromisoformat(str(value)))
    except ValueError:
        return str(value)


def _batch(batch_id: object, url: Callable[..., str]) -> Markup:
    if not isinstance(batch_id, str):
        return code(_MISSING)
    return marks.link(url("batch", batch_id=batch_id), marks.short_id(batch_id))


def _details(entry: TrailEntry) -> dict[str, Any]:
    found = json.loads(entry.encoded_details or "{}")
    return found if isinstance(found, dict) else {}
