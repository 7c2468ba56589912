"""Replaying the audit trail: what the events tell must be what the tables say."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from pgbus.engine.states import (
    ONGOING,
    OPEN,
    TRANSITIONS,
    AttemptStatus,
    Event,
    Move,
    RunStatus,
    Verb,
)

if TYPE_CHECKING:
    from support.database import Database

    from pgbus import Run

#: The moves of which an event may carry the change of the run's status.
_CARRIED_BY: dict[Event, tuple[Move | Verb, ...]] = {
    Event.STARTED: (Move.START,),
    # A wake alone: its matcher raised, and is asked again at the gate.
    Event.STEP_SCHEDULED: (Move.ADVANCE, Move.REATTEMPT, Move.WAKE),
    Event.STEP_STARTED: (Move.CLAIM,),
    Event.STEP_SKIPPED: (Verb.SKIP,),
    Event.PAUSED: (Verb.PAUSE, Move.STEP_PAUSE),
    Event.RESUMED: (Verb.RESUME, Verb.RESUME_AT),
    Event.CANCELLED: (Verb.CANCEL, Verb.RESUME, Move.STEP_CANCEL, Move.HOLD),
    Event.FINISHED: (Verb.RESUME, Verb.SKIP, Move.FINISH),
    Event.STEP_WAITING: (Move.PARK,),
    Event.SIGNAL_CLAIMED: (Move.WAKE,),
    Event.WAIT_TIMED_OUT: (Move.WAKE, Move.RESOLVE),
    Event.FAN_OUT_FINISHED: (Move.RESOLVE,),
}

_BODY_RUNS = frozenset({RunStatus.PERFORMING, RunStatus.PAUSED})

#: Where an event may stand without a change: the next event, or none, carries it.
_WITHOUT_CHANGE: dict[Event, frozenset[RunStatus]] = {
    # Of a paused run whose waiting step took a signal.
    Event.STEP_SCHEDULED: frozenset({RunStatus.READY, RunStatus.PAUSED}),
    Event.STEP_COMPLETED: _BODY_RUNS,
    Event.STEP_FAILED: _BODY_RUNS,
    Event.STEP_SKIPPED: _BODY_RUNS | {RunStatus.WAITING},
    Event.STEP_REATTEMPTED: _BODY_RUNS,
    Event.STALL_DETECTED: _BODY_RUNS,
    Event.RESUMED: frozenset({RunStatus.PAUSED}),
    Event.RUN_NOW: frozenset({RunStatus.READY}),
    Event.RESCHEDULED: frozenset({RunStatus.READY}),
    Event.RERUN: TRANSITIONS[Verb.RERUN].sources,
    Event.LATE_COMPLETION_IGNORED: frozenset(RunStatus),
    Event.SIGNAL_RECEIVED: ONGOING,
    Event.SIGNAL_CLAIMED: _BODY_RUNS,
    # Of a body that ended while its run was paused.
    Event.STEP_WAITING: frozenset({RunStatus.PAUSED}),
    Event.WAIT_TIMED_OUT: TRANSITIONS[Move.NOTICE].sources,
    Event.FAN_OUT_OPENED: frozenset({RunStatus.PERFORMING, RunStatus.WAITING}),
    # Of an empty batch; of one that ended while its run was paused.
    Event.FAN_OUT_FINISHED: _BODY_RUNS,
}

#: From which state of its attempt an event may come, and what it leaves the attempt in.
_OF_ATTEMPT: dict[Event, tuple[set[AttemptStatus | None], AttemptStatus]] = {
    Event.STEP_SCHEDULED: ({None, AttemptStatus.WAITING}, AttemptStatus.SCHEDULED),
    Event.STEP_STARTED: ({AttemptStatus.SCHEDULED}, AttemptStatus.IN_PROGRESS),
    Event.STEP_COMPLETED: ({AttemptStatus.IN_PROGRESS}, AttemptStatus.COMPLETED),
    Event.STEP_FAILED: ({AttemptStatus.IN_PROGRESS}, AttemptStatus.FAILED),
    Event.STEP_REATTEMPTED: ({AttemptStatus.IN_PROGRESS}, AttemptStatus.FAILED),
    Event.STEP_WAITING: ({AttemptStatus.IN_PROGRESS}, AttemptStatus.WAITING),
    Event.FAN_OUT_FINISHED: (
        {AttemptStatus.WAITING, AttemptStatus.IN_PROGRESS},
        AttemptStatus.IN_PROGRESS,
    ),
}

_NEWEST = {
    RunStatus.READY: AttemptStatus.SCHEDULED,
    RunStatus.PERFORMING: AttemptStatus.IN_PROGRESS,
    RunStatus.WAITING: AttemptStatus.WAITING,
}

#: Runs whose error is not that of their newest attempt.
_WRONG_ERRORS = """
SELECT w.workflow_id, w.status, w.settled_error, s.error_class
  FROM {schema}.workflows w JOIN {schema}.workflow_steps s USING (step_id)
 WHERE w.settled_error IS DISTINCT FROM
       CASE WHEN w.status IN ('paused', 'finished', 'cancelled') THEN coalesce(s.error_class, '') END
"""

#: Runs that sleep until another moment than that of their newest attempt, or wait for the timer without sleeping.
_WRONG_SLEEPS = """
SELECT w.workflow_id, w.status, w.sleeps_until, s.scheduled_at, s.send_at
  FROM {schema}.workflows w JOIN {schema}.workflow_steps s USING (step_id)
 WHERE w.sleeps_until IS DISTINCT FROM
       CASE WHEN w.status = 'ready' AND (w.sleeps_until IS NOT NULL OR s.send_at IS NOT NULL) THEN s.scheduled_at END
"""

Attempts = dict[tuple[str, int], AttemptStatus]


class _Entry(NamedTuple):
    event: Event
    step: tuple[str, int]
    source: RunStatus | None
    target: RunStatus


def told(run: Run) -> list[Event]:
    """The events of the run's trail, in order."""
    return [event.event for event in run.events]


def assert_trail_replays(database: Database, schema: str = "pgbus") -> None:
    """Every run's events lead, by the transition table, to its row and its attempts' rows."""
    trails: dict[str, list[_Entry]] = defaultdict(list)
    for run, event, *step, source, target in database.rows(
        f"SELECT workflow_id::text, event, step_name, attempt, from_status, to_status"
        f" FROM {schema}.workflow_events ORDER BY event_id"
    ):
        came_from = RunStatus(source) if source else None
        trails[run].append(_Entry(Event(event), tuple(step), came_from, RunStatus(target)))
    rows: dict[str, Attempts] = defaultdict(dict)
    for run, name, attempt, status in database.rows(
        f"SELECT workflow_id::text, step_name, attempt, status FROM {schema}.workflow_steps"
        " ORDER BY step_id"
    ):
        rows[run][name, attempt] = AttemptStatus(status)
    for wrong in (_WRONG_ERRORS, _WRONG_SLEEPS):
        assert not database.rows(wrong.format(schema=schema))
    runs = database.rows(f"SELECT workflow_id::text, status, current_step FROM {schema}.workflows")
    for run, status, current_step in runs:
        trail = trails[run]
        _assert_leads_to(trail, RunStatus(status))
        attempts = _replayed_attempts(trail)
        assert attempts == rows[run], f"attempts by the trail, and as stored, of {trail}"
        _assert_fits(RunStatus(status), current_step, rows[run])


def _assert_leads_to(trail: list[_Entry], status: RunStatus) -> None:
    reached = None
    for at, entry in enumerate(trail):
        assert entry.source == reached, f"event {at} begins elsewhere: {trail}"
        assert _is_allowed(entry), f"event {at} is no move of the table: {trail}"
        reached = entry.target
    assert reached is status, f"the row is {status} after {trail}"


def _is_allowed(entry: _Entry) -> bool:
    event, _, source, target = entry
    if source is target:
        return source in _WITHOUT_CHANGE.get(event, ())
    moves = [TRANSITIONS[move] for move in _CARRIED_BY.get(event, ())]
    return any(
        (source in move.sources if source else not move.sources) and target in move.targets
        for move in moves
    )


def _replayed_attempts(trail: list[_Entry]) -> Attempts:
    attempts: Attempts = {}
    for entry in trail:
        if entry.event in (Event.STEP_SCHEDULED, Event.CANCELLED):
            # Scheduling another attempt (resume_at) or cancelling the run closes what is open.
            attempts |= {
                step: AttemptStatus.CANCELLED
                for step, status in attempts.items()
                if status in OPEN
                and not (entry.event is Event.STEP_SCHEDULED and step == entry.step)
            }
        if entry.event is Event.STEP_SKIPPED:
            assert attempts[entry.step] is not AttemptStatus.COMPLETED, trail
            attempts[entry.step] = AttemptStatus.SKIPPED
        elif entry.event is Event.WAIT_TIMED_OUT and entry.target is RunStatus.PERFORMING:
            attempts[entry.step] = AttemptStatus.IN_PROGRESS
        elif entry.event in _OF_ATTEMPT:
            before, after = _OF_ATTEMPT[entry.event]
            assert attempts.get(entry.step) in before, f"{entry} in {trail}"
            attempts[entry.step] = after
    return attempts


def _assert_fits(status: RunStatus, current_step: str, attempts: Attempts) -> None:
    (name, _), newest = list(attempts.items())[-1]
    assert name == current_step
    assert newest is _NEWEST.get(status, newest), f"a {status} run's newest attempt is {newest}"
    still_open = [step for step, one in attempts.items() if one in OPEN]
    assert len(still_open) <= (status in ONGOING), f"open in a {status} run: {still_open}"
