"""Where an attempt's time went, as intervals; when its run was paused; which deadlines it had.

The row of an attempt knows its latest claim, schedule and wait only; what came before is told by
the run's trail. Both together give intervals without gaps, also where old entries are missing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pgbus.engine.states import AttemptStatus, Event, OnTimeout, RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pgbus.engine.insights.events import TrailEntry


class PhaseKind(StrEnum):
    """What an attempt did for a while.

    It `waited` until it was due, or its run was resumed; was `queued` until a worker took it; stood
    `waiting` for a signal or a batch; `ran` its body.
    """

    WAITED = "waited"
    QUEUED = "queued"
    WAITING = AttemptStatus.WAITING.value
    RAN = "ran"


@dataclass(frozen=True, slots=True)
class Phase:
    """An interval of an attempt's time; `end` is None while it lasts."""

    kind: PhaseKind
    begin: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True)
class Pause:
    """An interval in which a run was paused, by whom and why; `end` is None while it lasts."""

    begin: datetime
    end: datetime | None
    actor: str
    reason: str | None


class MarkKind(StrEnum):
    """What happens at a moment of a wait."""

    DEADLINE = "deadline"
    LATE_NOTICE = "late_notice"


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a wait."""

    kind: MarkKind
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What an attempt's row tells of its time.

    `first_due` is when it was due at first, `scheduled_at` when after its latest wake or reschedule.
    `timeout_at` is the deadline of a wait that lasts.
    """

    created_at: datetime
    first_due: datetime | None
    scheduled_at: datetime
    started_at: datetime | None
    waiting_since: datetime | None
    timeout_at: datetime | None
    finished_at: datetime | None
    on_batch: bool


#: The entries that `phases`, `pauses` and `marks` read.
TELLING = frozenset(
    {
        Event.STEP_SCHEDULED,
        Event.STEP_STARTED,
        Event.STEP_WAITING,
        Event.WAIT_TIMED_OUT,
        Event.RUN_NOW,
        Event.RESCHEDULED,
        Event.PAUSED,
        Event.RESUMED,
        Event.STEP_SKIPPED,
        Event.CANCELLED,
        Event.FINISHED,
    }
)


@dataclass(frozen=True, slots=True)
class _Change:
    """An entry of the trail, or what the row says in its stead."""

    at: datetime
    event: str
    paused: bool = False
    due: datetime | None = None
    on_batch: bool = False


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What the attempt did from one change to the next.

    A `QUEUED` one waits until it is due first; `schedule` counts the dues so far.
    """

    kind: PhaseKind
    begin: datetime
    due: datetime | None
    schedule: int


def phases(moments: Moments, entries: Iterable[TrailEntry], now: datetime) -> tuple[Phase, ...]:
    """Return where the attempt's time went until `now`, in order and without gaps.

    `entries` are those of the trail about the attempt, oldest first; what is missing is made up from
    the row. A body that goes on while its run is paused runs; an attempt that is due is not queued
    while its run is paused.
    """
    stretches = _with_last_due(_stretches(moments, entries), moments.scheduled_at)
    ends: list[datetime | None] = [stretch.begin for stretch in stretches[1:]]
    ends.append(moments.finished_at)
    found: list[Phase] = []
    for stretch, end in zip(stretches, ends, strict=True):
        for phase in _split(stretch, end, now):
            goes_on = found and found[-1].kind is phase.kind
            begin = found.pop().begin if goes_on else phase.begin
            if phase.end is None or begin < phase.end:
                found.append(Phase(phase.kind, begin, phase.end))
    return tuple(found)


def totals(phases: Iterable[Phase], now: datetime) -> dict[PhaseKind, float]:
    """Return the seconds of each kind that there is; those of one that lasts until `now`."""
    seconds: dict[PhaseKind, float] = {}
    for phase in phases:
        length = ((phase.end or now) - phase.begin).total_seconds()
        seconds[phase.kind] = seconds.get(phase.kind, 0.0) + max(length, 0.0)
    return seconds


def pauses(entries: Iterable[TrailEntry]) -> tuple[Pause, ...]:
    """Return when the run was paused, given the entries of its trail, oldest first."""
    found: list[Pause] = []
    paused = False
    for entry in entries:
        becomes = entry.to_status == RunStatus.PAUSED
        if becomes and not paused:
            found.append(Pause(entry.created_at, None, entry.actor, entry.reason))
        elif paused and not becomes:
            found[-1] = replace(found[-1], end=entry.created_at)
        paused = becomes
    return tuple(found)


def marks(moments: Moments, entries: Iterable[TrailEntry]) -> tuple[Mark, ...]:
    """Return the deadlines that the attempt's waits had, and the notices of being late.

    The deadline of a wait whose run is paused stands still: it is none until resume, and later by the
    pause then.
    """
    found: list[Mark] = []
    ahead: datetime | None = None
    left: timedelta | None = None
    lasts = False
    for entry in entries:
        match entry.event:
            case Event.STEP_WAITING:
                ahead, left, lasts = _moment(entry, "timeout_at"), None, True
            case Event.WAIT_TIMED_OUT:
                ahead, missed = None, _moment(entry, "timeout_at")
                if missed is not None:
                    found.append(Mark(MarkKind.DEADLINE, missed))
                if _details(entry).get("action") == OnTimeout.NOTIFY:
                    found.append(Mark(MarkKind.LATE_NOTICE, entry.created_at))
            case Event.PAUSED if lasts and ahead is not None:
                left, ahead = ahead - entry.created_at, None
            case Event.RESUMED if left is not None:
                ahead, left = entry.created_at + left, None
            case Event.STEP_SCHEDULED:
                left, lasts = None, False
    if moments.waiting_since is not None:
        ahead = moments.timeout_at
    if ahead is not None:
        found.append(Mark(MarkKind.DEADLINE, ahead))
    return tuple(found)


def _stretches(moments: Moments, entries: Iterable[TrailEntry]) -> list[_Stretch]:
    found = [_Stretch(PhaseKind.QUEUED, moments.created_at, moments.first_due, 0)]
    for change in _changes(moments, entries):
        last = found[-1]
        begin = max(change.at, last.begin)
        if change.event == Event.STEP_WAITING:
            if last.kind is PhaseKind.RAN and not change.on_batch:
                found.pop()  # a gate's look: no body ran
            found.append(_Stretch(PhaseKind.WAITING, begin, None, last.schedule))
        elif change.event == Event.STEP_STARTED:
            found.append(_Stretch(PhaseKind.RAN, begin, None, last.schedule))
        elif last.kind is PhaseKind.RAN:
            continue
        elif change.event == Event.STEP_SCHEDULED and last.kind is PhaseKind.WAITING:
            found.append(_Stretch(_unclaimed(change), begin, change.at, last.schedule + 1))
        elif change.due is not None:
            found.append(_Stretch(_unclaimed(change), begin, change.due, last.schedule + 1))
        elif last.kind is not PhaseKind.WAITING:
            found.append(_Stretch(_unclaimed(change), begin, last.due, last.schedule))
    return found


def _unclaimed(change: _Change) -> PhaseKind:
    return PhaseKind.WAITED if change.paused else PhaseKind.QUEUED


def _with_last_due(stretches: Sequence[_Stretch], scheduled_at: datetime) -> list[_Stretch]:
    """Return the stretches, the latest due as the row has it: the one moment that is never lost."""
    last = stretches[-1].schedule
    return [
        replace(stretch, due=scheduled_at) if stretch.schedule == last else stretch
        for stretch in stretches
    ]


def _split(stretch: _Stretch, end: datetime | None, now: datetime) -> Iterator[Phase]:
    """Yield the phases of a stretch: of one without a known due it was the due that passed last."""
    begin = stretch.begin
    if end is not None:
        end = max(end, begin)
    if stretch.kind is not PhaseKind.QUEUED:
        yield Phase(stretch.kind, begin, end)
    elif stretch.due is None or stretch.due >= (end or now):
        yield Phase(PhaseKind.WAITED, begin, end)
    else:
        due = max(stretch.due, begin)
        yield Phase(PhaseKind.WAITED, begin, due)
        yield Phase(PhaseKind.QUEUED, due, end)


def _changes(moments: Moments, entries: Iterable[TrailEntry]) -> list[_Change]:
    """Return what happened before the attempt ended, in order; the row fills what the trail lacks."""
    found = [_change(entry) for entry in entries]
    claim, wait, end = moments.started_at, moments.waiting_since, moments.finished_at
    if claim and not any(one.at == claim and one.event == Event.STEP_STARTED for one in found):
        found.append(_Change(claim, Event.STEP_STARTED))
    parked = (one.at for one in found if one.event == Event.STEP_WAITING)
    if wait and not any(claim is None or at >= claim for at in parked):
        found.append(_Change(wait, Event.STEP_WAITING, on_batch=moments.on_batch))
    before = [change for change in found if end is None or change.at < end]
    return sorted(before, key=lambda change: change.at)


def _change(entry: TrailEntry) -> _Change:
    return _Change(
        entry.created_at,
        entry.event,
        paused=entry.to_status == RunStatus.PAUSED,
        due=_moment(entry, "scheduled_at"),
        on_batch="batch_id" in _details(entry),
    )


def _moment(entry: TrailEntry, name: str) -> datetime | None:
    value = _details(entry).get(name)
    return datetime.fromisoformat(value) if isinstance(value, str) else None


def _details(entry: TrailEntry) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(entry.encoded_details or "{}")
    return found
