"""What a run does and what happened to it, in words."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import FanOutFailed, StepStalled, WaitTimedOut
from pgbus.engine.states import AttemptStatus, Event, OnTimeout, RunStatus

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.events import TrailEntry
    from pgbus.engine.insights.runs import RunSummary
    from pgbus.engine.states import Verb

_SYSTEM = "system"
_AT_ONCE = timedelta(seconds=1)
_MINUTE = 60

#: Of these the step says nothing that the entries around them do not.
_OF_THE_RUN = frozenset(
    {
        Event.STARTED,
        Event.PAUSED,
        Event.RESUMED,
        Event.CANCELLED,
        Event.FINISHED,
        Event.RUN_NOW,
        Event.RESCHEDULED,
        Event.RERUN,
        Event.SIGNAL_RECEIVED,
    }
)

#: Why a step's failure paused its run, where the error's class is one of pgbus's own.
_CAUSES = {
    qualified_name(StepStalled): "the worker of {} died or hung",
    qualified_name(WaitTimedOut): "{} waited in vain",
    qualified_name(FanOutFailed): "jobs of {} failed",
}

#: What the sweep makes of a wait past its deadline.
_AT_DEADLINE = {
    OnTimeout.PAUSE: "pauses the run",
    OnTimeout.CANCEL: "cancels the run",
    OnTimeout.SKIP: "skips the step",
    OnTimeout.RUN: "lets the step run without a signal",
    OnTimeout.NOTIFY: "tells of it",
    None: "does what its on_timeout says",
}

#: What an event's details say; any other by its name.
_PHRASES = {
    "wait_for": "for the signal {}",
    "timeout_at": "deadline {}",
    "batch_id": "batch {}",
    "size": "{} jobs",
    "total_jobs": "{} jobs",
    "failed_jobs": "{} failed",
    "open_jobs": "{} jobs open",
}


def state_sentence(run: RunSummary, zone: ZoneInfo) -> str:
    """Tell what the run is doing, or how it ended."""
    step = run.current_step
    match run.status, run.attempt_status:
        case RunStatus.READY, _:
            due = "is due" if run.due else f"runs at {at(run.scheduled_at, zone)}"
            where = " on a paused queue" if run.queue_paused else ""
            return f"{step} {due}{where}{_woken(run)}"
        case RunStatus.PERFORMING, _:
            return f"performing {step}, attempt {run.attempt}"
        case RunStatus.WAITING, _:
            return f"{_awaited(run)}{_clock(run, zone)}"
        case RunStatus.PAUSED, AttemptStatus.SCHEDULED:
            return f"paused before {step}{_woken(run)}"
        case RunStatus.PAUSED, AttemptStatus.WAITING if run.waiting_since is None:
            return f"paused before {step} sends its jobs"
        case RunStatus.PAUSED, AttemptStatus.WAITING:
            return f"paused while {_awaited(run)}"
        case RunStatus.PAUSED, AttemptStatus.IN_PROGRESS:
            return f"paused while {step} runs"
        case RunStatus.PAUSED, AttemptStatus.FAILED if run.error_class:
            return f"paused on {step}: {run.error_class}"
        case RunStatus.PAUSED, _:
            return f"paused after {step}"
    ended = f" at {at(run.ended_at, zone)}" if run.ended_at else ""
    return f"{run.status} on {step}{ended}"


def _awaited(run: RunSummary) -> str:
    step = run.current_step
    if run.batch_id is None:
        return f"{step} waits for the signal {run.waiting_for}"
    if run.open_jobs is None:
        return f"{step} waits for a batch that is gone"
    if run.open_jobs == 0:
        return f"{step} goes on soon: all {run.total_jobs} jobs have ended"
    return f"{step} waits for {run.open_jobs} of {run.total_jobs} jobs"


def _clock(run: RunSummary, zone: ZoneInfo) -> str:
    """Tell since when a signal is awaited and until when, or that it is late."""
    if run.batch_id is not None or run.waiting_since is None:
        return ""
    told = f" since {at(run.waiting_since, zone)}"
    if run.late_since is not None:
        told += f", late since {at(run.late_since, zone)}"
    if run.overdue_seconds is not None:
        passed = f"its deadline passed {about(run.overdue_seconds)} ago"
        return f"{told}; {passed}, and the next sweep {_AT_DEADLINE[run.on_timeout]}"
    until = at(run.timeout_at, zone) if run.timeout_at else None
    if run.late_since is None:
        return f"{told}, until {until}" if until else told
    return f"{told}, next notice at {until}" if until else f"{told}; no further notice is due"


def _woken(run: RunSummary) -> str:
    if run.waiting_for is None:
        return ""
    came = "did not come in time" if run.timed_out else "came"
    return f": the signal {run.waiting_for} {came}"


def event_sentence(entry: TrailEntry, attempt: Attempt | None, zone: ZoneInfo) -> str:
    """Tell who did what to which attempt, and why: "Resumed by cli:alice: SMTP fixed".

    `attempt` is the one that the entry is about, as it stands now.
    """
    details = json.loads(entry.encoded_details or "{}")
    sentence = f"{_happened(entry.event, details)} by {entry.actor}"
    facts = []
    if entry.event not in _OF_THE_RUN and entry.step_name is not None:
        facts = [entry.step_name, f"attempt {entry.attempt}"]
    facts += [_fact(name, value, zone) for name, value in details.items() if value is not None]
    if attempt is not None:
        facts += _facts_of(attempt, entry, zone)
    if facts:
        sentence += f" ({', '.join(facts)})"
    return f"{sentence}: {entry.reason}" if entry.reason else sentence


def _happened(event: str, details: dict[str, object]) -> str:
    """Tell what happened; what that says already is taken out of the details."""
    if event not in (Event.SIGNAL_RECEIVED, Event.SIGNAL_CLAIMED) or "name" not in details:
        return _words(event).capitalize()
    again = " again" if details.pop("duplicate", False) else ""
    return f"Signal {details.pop('name')} {event.removeprefix('signal_')}{again}"


def _fact(name: str, value: object, zone: ZoneInfo) -> str:
    if name.endswith("_at") and isinstance(value, str):
        value = at(datetime.fromisoformat(value), zone)
    return _PHRASES.get(name, "{1} {0}").format(value, _words(name))


def _facts_of(attempt: Attempt, entry: TrailEntry, zone: ZoneInfo) -> list[str]:
    match entry.event:
        case Event.STEP_SCHEDULED if attempt.status is AttemptStatus.SCHEDULED:
            if attempt.scheduled_at - entry.created_at > _AT_ONCE:
                return [f"due {at(attempt.scheduled_at, zone)}"]
        case Event.PAUSED if entry.actor == _SYSTEM and attempt.error_class is not None:
            cause = _CAUSES.get(attempt.error_class, "{} failed with {}")
            return [cause.format(attempt.step_name, attempt.error_class)]
    return []


def typed(verb: Verb) -> str:
    """Return the verb as an operator types it."""
    return verb.replace("_", "-")


def at(moment: datetime, zone: ZoneInfo) -> str:
    """Return the moment to the second, with its offset."""
    return moment.astimezone(zone).isoformat(sep=" ", timespec="seconds")


def duration(seconds: float | None) -> str:
    """Return seconds to the millisecond, a minute and more as clock time; "" for None."""
    if seconds is None:
        return ""
    return f"{seconds:.3f} s" if seconds < _MINUTE else str(timedelta(seconds=round(seconds)))


def about(seconds: float) -> str:
    """Return seconds without fractions, a minute and more as clock time."""
    return f"{seconds:.0f} s" if seconds < _MINUTE else duration(seconds)


def _words(name: str) -> str:
    return name.replace("_", " ")
