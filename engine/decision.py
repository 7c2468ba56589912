"""What is decided about an attempt, on its way from `decide` to the database and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pgbus.engine.states import Move

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus


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
class Held:
    """What resume applies to a run that was paused while a body ran: how that body's end moves it.

    `reason` goes on the trail then; `wait` is the seconds before a reattempt.
    """

    move: Move
    reason: str | None = None
    wait: float = 0.0

    def encode(self) -> str:
        """Return the JSON document that the attempt's row keeps."""
        told = {"move": self.move, "reason": self.reason, "wait": self.wait}
        return json.dumps({name: value for name, value in told.items() if value})

    @classmethod
    def decode(cls, document: str) -> Self:
        """Return what `encode` made a document of."""
        told = json.loads(document)
        return cls(**told | {"move": Move(told["move"])})


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
    held: Held | None = None
    next: NextAttempt | None = None
