"""Typed events on blinker signals, sent after commit and never after a rollback.

A subscriber gets the payload as the signal's sender: `signal("pgbus.workflow.step")
.connect(receiver)` calls `receiver(payload)`. One that raises is logged; it changes
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blinker import signal
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session, SessionTransaction

from pgbus.engine.storage.database import session_behind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgbus.engine.insights.stuck import StuckReason
    from pgbus.engine.states import Detection, OnTimeout, RunStatus

_log = logging.getLogger("pgbus.observe")


@dataclass(frozen=True, slots=True)
class StepEnded:
    """An attempt ended; `seconds` is how long its body ran (None when none did)."""

    workflow_class: str
    workflow_id: str
    step: str
    attempt: int
    outcome: str
    seconds: float | None
    error_class: str | None = None


@dataclass(frozen=True, slots=True)
class WorkflowPaused:
    """A run was paused; `error_class` is absent when a person or the body paused it."""

    workflow_class: str
    workflow_id: str
    error_class: str | None = None


@dataclass(frozen=True, slots=True)
class WorkflowFinished:
    """A run finished."""

    workflow_class: str
    workflow_id: str


@dataclass(frozen=True, slots=True)
class WorkflowCancelled:
    """A run was cancelled."""

    workflow_class: str
    workflow_id: str


@dataclass(frozen=True, slots=True)
class StallDetected:
    """An attempt's worker died; `detection` is redelivery or sweep."""

    workflow_class: str
    workflow_id: str
    step: str
    detection: Detection


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A run was sent a signal; `duplicate` tells of a redelivery, which changed nothing."""

    workflow_class: str
    workflow_id: str
    name: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class WaitTimedOut:
    """No signal came before a step's deadline; `action` is what that led to."""

    workflow_class: str
    workflow_id: str
    step: str
    action: OnTimeout


@dataclass(frozen=True, slots=True)
class Gauges:
    """How much there is just now, with 0 for every known class, queue and kind that has none.

    Ongoing runs by (class, status), stuck ones by (class, reason); messages that are due, since
    how long the oldest is, and dead letters, by logical queue; processes that beat, by kind.
    Counts of messages end at 10,001.
    """

    by_status: Mapping[tuple[str, RunStatus], int]
    stuck: Mapping[tuple[str, StuckReason], int]
    queue_depth: Mapping[str, int]
    queue_oldest_seconds: Mapping[str, float]
    dead_letters: Mapping[str, int]
    processes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """A job ran to its end."""

    job: str
    queue: str
    message_id: int
    seconds: float


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job raised and will be tried again."""

    job: str
    queue: str
    message_id: int
    read_count: int
    error_class: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobDeadLettered:
    """A message was moved to the dead letters; `job` is None when it named none.

    `seconds` is how long its last execution took, None when there was none.
    """

    job: str | None
    queue: str
    message_id: int
    read_count: int
    error_class: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """All members of a batch have ended; the counts are of members."""

    batch_id: str
    description: str | None
    total_jobs: int
    completed_jobs: int
    discarded_jobs: int
    dead_lettered_jobs: int


@dataclass(frozen=True, slots=True)
class ProcessReplaced:
    """A worker or dispatcher of a supervisor ended after `seconds`; another takes its place."""

    kind: str
    pid: int
    reason: str
    seconds: float


Payload = (
    StepEnded
    | WorkflowPaused
    | WorkflowFinished
    | WorkflowCancelled
    | StallDetected
    | SignalReceived
    | WaitTimedOut
    | Gauges
    | JobCompleted
    | JobFailed
    | JobDeadLettered
    | BatchFinished
    | ProcessReplaced
)

_SIGNALS = {
    StepEnded: signal("pgbus.workflow.step"),
    WorkflowPaused: signal("pgbus.workflow_paused"),
    WorkflowFinished: signal("pgbus.workflow_finished"),
    WorkflowCancelled: signal("pgbus.workflow_cancelled"),
    StallDetected: signal("pgbus.workflow.stall_detected"),
    SignalReceived: signal("pgbus.workflow.signal"),
    WaitTimedOut: signal("pgbus.workflow.wait_timed_out"),
    Gauges: signal("pgbus.workflow.gauge"),
    JobCompleted: signal("pgbus.job_completed"),
    JobFailed: signal("pgbus.job_failed"),
    JobDeadLettered: signal("pgbus.job_dead_lettered"),
    BatchFinished: signal("pgbus.batch_finished"),
    ProcessReplaced: signal("pgbus.worker.recycle"),
}

Listener = Callable[[Payload], object]


class Emitter:
    """Sends the events of one bus: to its own listeners, then to the signals' subscribers."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = listeners

    def emit(self, *payloads: Payload) -> None:
        """Send events whose transaction has committed."""
        for payload in payloads:
            for listener in self._listeners:
                _tell(listener, payload)
            for receiver in _SIGNALS[type(payload)].receivers_for(payload):
                _tell(receiver, payload)

    def emit_after_commit(self, session: object, payloads: Sequence[Payload]) -> None:
        """Send events once the host's transaction commits; a rolled back savepoint drops its own.

        `session` is a Session or scoped_session. A bare Connection gives no word of its
        commit, so nothing is sent for one.
        """
        target = session_behind(session)
        if isinstance(target, Session) and payloads:
            _Pending.of(target).add(self, payloads)


def _tell(receiver: Listener, payload: Payload) -> None:
    try:
        receiver(payload)
    except BaseException:  # noqa: BLE001 (a subscriber is the host's: whatever it raises, what happened stands)
        _log.exception("A subscriber to %s raised; the event stands.", type(payload).__name__)


class _Pending:
    """The events of one session that wait for its commit, each with its (sub)transaction."""

    _KEY = "pgbus.pending_events"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[tuple[SessionTransaction | None, Emitter, Payload]] = []
        sqlalchemy_event.listen(session, "after_commit", self._committed)
        sqlalchemy_event.listen(session, "after_soft_rollback", self._rolled_back)
        sqlalchemy_event.listen(session, "after_transaction_end", self._ended)

    @classmethod
    def of(cls, session: Session) -> _Pending:
        pending: _Pending | None = session.info.get(cls._KEY)
        if pending is None:
            pending = session.info[cls._KEY] = cls(session)
        return pending

    def add(self, emitter: Emitter, payloads: Sequence[Payload]) -> None:
        owner = self._session.get_nested_transaction() or self._session.get_transaction()
        self._waiting.extend((owner, emitter, payload) for payload in payloads)

    def _committed(self, session: Session) -> None:
        if session.in_nested_transaction():
            return
        waiting, self._waiting = self._waiting, []
        for _, emitter, payload in waiting:
            emitter.emit(payload)

    def _rolled_back(self, _session: Session, ended: SessionTransaction) -> None:
        self._waiting = [one for one in self._waiting if not _within(one[0], ended)]

    def _ended(self, _session: Session, ended: SessionTransaction) -> None:
        # A session closed without commit or rollback tells of it only here.
        if ended.parent is None:
            self._waiting.clear()


def _within(owner: SessionTransaction | None, ended: SessionTransaction) -> bool:
    while owner is not None:
        if owner is ended:
            return True
        owner = owner.parent
    return False
