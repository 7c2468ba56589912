"""What is decided about an attempt, on its way from `decide` to the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.states import AttemptStatus, Event, Move, Outcome, RunStatus


@dataclass(frozen=True, slots=True)
class EventEntry:
    """An event to record; `details` become its JSON details."""

    event: Event
    reason: str | None = None
    details: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """An error as recorded on an attempt or a job: class, message, and a JSON document."""

    error_class: str
    message: str
    document: str


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The attempt to schedule: at the later of `wait` seconds from now and `not_before`."""

    step_name: str
    queue: str
    wait: float = 0.0
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Finalization:
    """How an attempt ends and its run moves on.

    `held` is what resume applies when the run was paused meanwhile; None takes effect
    even then.
    """

    move: Move
    target: RunStatus
    attempt_status: AttemptStatus
    outcome: Outcome
    events: tuple[EventEntry, ...]
    output: str | None = None
    error: ErrorEntry | None = None
    reattempted_by: str | None = None
    held: str | None = None
    next: NextAttempt | None = None
