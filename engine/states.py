"""The states of runs and attempts, and the one table of moves between them.

`Run.available_actions`, the CLI and the guide read this table. What the verbs write, and
how an attempt's end moves its run, is checked against it (`check_transition`); the database
functions `start_run` and `claim` make one move each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunStatus(StrEnum):
    """What a run is doing; the first four are ongoing."""

    READY = "ready"
    PERFORMING = "performing"
    WAITING = "waiting"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class AttemptStatus(StrEnum):
    """What became of one try of a step; the first three are open."""

    SCHEDULED = "scheduled"
    WAITING = "waiting"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Outcome(StrEnum):
    """How an attempt ended, as its run saw it; absent until it ended."""

    COMPLETED = "completed"
    PAUSED = "paused"
    FINISHED = "finished"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    REATTEMPTED = "reattempted"


class Event(StrEnum):
    """The kinds of entries on a run's audit trail."""

    STARTED = "started"
    STEP_SCHEDULED = "step_scheduled"
    STEP_STARTED = "step_started"
    STEP_COMPLETED = "step_completed"
    STEP_FAILED = "step_failed"
    STEP_SKIPPED = "step_skipped"
    STEP_REATTEMPTED = "step_reattempted"
    PAUSED = "paused"
    RESUMED = "resumed"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    RUN_NOW = "run_now"
    RESCHEDULED = "rescheduled"
    RERUN = "rerun"
    STALL_DETECTED = "stall_detected"
    LATE_COMPLETION_IGNORED = "late_completion_ignored"
    SIGNAL_RECEIVED = "signal_received"
    SIGNAL_CLAIMED = "signal_claimed"
    STEP_WAITING = "step_waiting"
    WAIT_TIMED_OUT = "wait_timed_out"
    FAN_OUT_OPENED = "fan_out_opened"
    FAN_OUT_FINISHED = "fan_out_finished"


class SignalStatus(StrEnum):
    """How far a signal has come: a step claims it, and it is consumed when that step ends."""

    PENDING = "pending"
    CLAIMED = "claimed"
    CONSUMED = "consumed"


class MemberStatus(StrEnum):
    """What became of one job of a batch; only the first is open, the last two count as failed."""

    OPEN = "open"
    COMPLETED = "completed"
    DISCARDED = "discarded"
    DEAD_LETTERED = "dead_lettered"


class JobOutcome(StrEnum):
    """How one delivery of a job ended, for reporters, metrics and traces."""

    COMPLETED = "completed"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    WITHDRAWN = "withdrawn"


class OnTimeout(StrEnum):
    """What becomes of a step that waits for a signal at its deadline."""

    PAUSE = "pause"
    CANCEL = "cancel"
    SKIP = "skip"
    RUN = "run"
    NOTIFY = "notify"


class OnBatchFailure(StrEnum):
    """What becomes of a run whose fan-out has failed members."""

    PAUSE = "pause"
    CANCEL = "cancel"
    SKIP = "skip"


class StallAction(StrEnum):
    """What becomes of a run whose worker died or hung in a step."""

    PAUSE = "pause"
    REATTEMPT = "reattempt"
    CANCEL = "cancel"


class Detection(StrEnum):
    """How it was noticed that a worker died or hung."""

    REDELIVERY = "redelivery"
    SWEEP = "sweep"


ONGOING = frozenset({RunStatus.READY, RunStatus.PERFORMING, RunStatus.WAITING, RunStatus.PAUSED})
OPEN = frozenset({AttemptStatus.SCHEDULED, AttemptStatus.WAITING, AttemptStatus.IN_PROGRESS})


class Verb(StrEnum):
    """What a caller may ask of a run from outside."""

    PAUSE = "pause"
    RESUME = "resume"
    RESUME_AT = "resume_at"
    CANCEL = "cancel"
    SKIP = "skip"
    RUN_NOW = "run_now"
    RESCHEDULE = "reschedule"
    SIGNAL = "signal"
    RERUN = "rerun"


class Move(StrEnum):
    """What the runner itself does to a run; never offered as an action."""

    START = "start"
    CLAIM = "claim"
    ADVANCE = "advance"
    REATTEMPT = "reattempt"
    FINISH = "finish"
    STEP_PAUSE = "step_pause"
    STEP_CANCEL = "step_cancel"
    PARK = "park"
    WAKE = "wake"
    RESOLVE = "resolve"
    HOLD = "hold"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Transition:
    """From which run states a move is allowed, and to which it may lead."""

    sources: frozenset[RunStatus]
    targets: frozenset[RunStatus]


def _transition(sources: set[RunStatus], *targets: RunStatus) -> Transition:
    return Transition(frozenset(sources), frozenset(targets))


_R = RunStatus

#: The whole of it. `RERUN` leaves its run as it is and starts another.
TRANSITIONS: dict[Verb | Move, Transition] = {
    Verb.PAUSE: _transition({_R.READY, _R.PERFORMING, _R.WAITING}, _R.PAUSED),
    Verb.RESUME: _transition(
        {_R.PAUSED}, _R.READY, _R.PERFORMING, _R.WAITING, _R.FINISHED, _R.CANCELLED
    ),
    Verb.RESUME_AT: _transition({_R.PAUSED}, _R.READY),
    Verb.CANCEL: _transition({_R.READY, _R.PERFORMING, _R.WAITING, _R.PAUSED}, _R.CANCELLED),
    Verb.SKIP: _transition({_R.WAITING, _R.PAUSED}, _R.READY, _R.FINISHED),
    Verb.RUN_NOW: _transition({_R.READY}, _R.READY),
    Verb.RESCHEDULE: _transition({_R.READY}, _R.READY),
    Verb.SIGNAL: _transition(
        {_R.READY, _R.PERFORMING, _R.WAITING, _R.PAUSED},
        _R.READY,
        _R.PERFORMING,
        _R.WAITING,
        _R.PAUSED,
    ),
    Verb.RERUN: _transition({_R.FINISHED, _R.CANCELLED}, _R.FINISHED, _R.CANCELLED),
    Move.START: _transition(set(), _R.READY),
    Move.CLAIM: _transition({_R.READY}, _R.PERFORMING),
    Move.ADVANCE: _transition({_R.PERFORMING}, _R.READY),
    Move.REATTEMPT: _transition({_R.PERFORMING}, _R.READY),
    Move.FINISH: _transition({_R.PERFORMING}, _R.FINISHED),
    Move.STEP_PAUSE: _transition({_R.PERFORMING}, _R.PAUSED),
    Move.STEP_CANCEL: _transition({_R.PERFORMING}, _R.CANCELLED),
    Move.PARK: _transition({_R.PERFORMING}, _R.WAITING),
    Move.WAKE: _transition({_R.WAITING}, _R.READY),
    Move.RESOLVE: _transition({_R.WAITING}, _R.PERFORMING),
    Move.HOLD: _transition({_R.PAUSED}, _R.PAUSED, _R.CANCELLED),
    Move.NOTICE: _transition({_R.WAITING}, _R.WAITING),
}


#: Verbs that must know what the run's class declares.
NEEDS_CLASS = frozenset({Verb.RESUME, Verb.RESUME_AT, Verb.SKIP, Verb.RERUN})

_SKIPPABLE = frozenset({AttemptStatus.FAILED, AttemptStatus.SCHEDULED, AttemptStatus.WAITING})


def check_transition(move: Verb | Move, source: RunStatus, target: RunStatus) -> None:
    """Raise `RuntimeError` for a move that the table does not know: a mistake of pgbus's own."""
    known = TRANSITIONS[move]
    if source not in known.sources or target not in known.targets:
        raise RuntimeError(f"A bug in pgbus: {move} would move a run from {source} to {target}.")


def allows(verb: Verb, run: RunStatus, attempt: AttemptStatus) -> bool:
    """Return whether the verb may be asked of a run in this state, its newest attempt in that."""
    if run not in TRANSITIONS[verb].sources:
        return False
    if verb is Verb.SKIP:
        return attempt in _SKIPPABLE
    if verb in (Verb.RUN_NOW, Verb.RESCHEDULE):
        return attempt is AttemptStatus.SCHEDULED
    return True


def available_actions(
    run: RunStatus, attempt: AttemptStatus, *, class_loaded: bool
) -> tuple[Verb, ...]:
    """Return the verbs that can be asked of the run now, in the order of `Verb`."""
    return tuple(
        verb
        for verb in Verb
        if allows(verb, run, attempt) and (class_loaded or verb not in NEEDS_CLASS)
    )
