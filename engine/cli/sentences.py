"""What a run does and what happened to it, in words."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import StepStalled
from pgbus.engine.states import AttemptStatus, Event, RunStatus

if TYPE_CHECKING:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.events import TrailEntry
    from pgbus.engine.insights.runs import RunSummary
    from pgbus.engine.states import Verb

_SYSTEM = "system"
_STALLED = qualified_name(StepStalled)
_AT_ONCE = timedelta(seconds=1)

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
    }
)


def state_sentence(run: RunSummary, zone: ZoneInfo) -> str:
    """Tell what the run is doing, or how it ended."""
    step = run.current_step
    match run.status, run.attempt_status:
        case RunStatus.READY, _:
            return f"{step} is due" if run.due else f"{step} runs at {at(run.scheduled_at, zone)}"
        case RunStatus.PERFORMING, _:
            return f"performing {step}, attempt {run.attempt}"
        case RunStatus.PAUSED, AttemptStatus.SCHEDULED:
            return f"paused before {step}"
        case RunStatus.PAUSED, AttemptStatus.IN_PROGRESS:
            return f"paused while {step} runs"
        case RunStatus.PAUSED, AttemptStatus.FAILED if run.error_class:
            return f"paused on {step}: {run.error_class}"
        case RunStatus.PAUSED, _:
            return f"paused after {step}"
    ended = f" at {at(run.ended_at, zone)}" if run.ended_at else ""
    return f"{run.status} on {step}{ended}"


def event_sentence(entry: TrailEntry, attempt: Attempt | None, zone: ZoneInfo) -> str:
    """Tell who did what to which attempt, and why: "Resumed by cli:alice: SMTP fixed".

    `attempt` is the one that the entry is about, as it stands now.
    """
    facts = []
    if entry.event not in _OF_THE_RUN and entry.step_name is not None:
        facts = [entry.step_name, f"attempt {entry.attempt}"]
    if entry.encoded_details is not None:
        details = json.loads(entry.encoded_details)
        facts += [f"{_words(name)} {value}" for name, value in details.items()]
    if attempt is not None:
        facts += _facts_of(attempt, entry, zone)
    sentence = f"{_words(entry.event).capitalize()} by {entry.actor}"
    if facts:
        sentence += f" ({', '.join(facts)})"
    return f"{sentence}: {entry.reason}" if entry.reason else sentence


def _facts_of(attempt: Attempt, entry: TrailEntry, zone: ZoneInfo) -> list[str]:
    match entry.event:
        case Event.STEP_SCHEDULED if attempt.status is AttemptStatus.SCHEDULED:
            if attempt.scheduled_at - entry.created_at > _AT_ONCE:
                return [f"due {at(attempt.scheduled_at, zone)}"]
        case Event.PAUSED if entry.actor == _SYSTEM and attempt.error_class is not None:
            if attempt.error_class == _STALLED:
                return [f"the worker of {attempt.step_name} died"]
            return [f"{attempt.step_name} failed with {attempt.error_class}"]
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
    return f"{seconds:.3f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))  # noqa: PLR2004 (a minute)


def _words(name: str) -> str:
    return name.replace("_", " ")
