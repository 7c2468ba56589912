"""What is decided about an attempt, on its way from `decide` to the database and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from pgbus.engine.states import Move

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.states import AttemptStatus, Event, Outcome, RunStatus
    from pgbus.engine.storage.batches import BatchPlan


@dataclass(frozen=True, slots=True)
class EventEntry:
    """An event to record; `details` become its JSON details."""

    event: Event
    reason: str | None = None
    details: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """An error as recorded on an attempt or a job: class, message, and a JSON document.

    `raised` is the error itself, for the host's reporters.
    """

    error_class: str
    message: str
    document: str
    raised: BaseException | None = field(default=None, compare=False, repr=False)


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

    `reason` goes on the trail then; `wait` is the seconds before a reattempt, `batch` the encoded
    plan of the batch that a fan-out opens.
    """

    move: Move
    reason: str | None = None
    wait: float = 0.0
    batch: str | None = None

    def encode(self) -> str:
        """Return the JSON document that the attempt's row keeps."""
        told = {"move": self.move, "reason": self.reason, "wait": self.wait, "batch": self.batch}
        return json.dumps({name: value for name, value in told.items() if value})

    @classmethod
    def decode(cls, document: str) -> Self:
        """Return what `encode` made a document of."""
        told = json.loads(document)
        return cls(**told | {"move": Move(told["move"])})


@dataclass(frozen=True, slots=True)
class Wait:
    """What a parked attempt waits for: a signal as described, until a moment; or a batch to open."""

    waiting_for: str | None = None
    timeout_at: datetime | None = None
    batch: BatchPlan | None = None


@dataclass(frozen=True, slots=True)
class Finalization:
    """How an attempt ends and its run moves on; with a `wait` it is parked and has no outcome yet.

    `held` is what resume applies when the run was paused meanwhile; None takes effect
    even then.
    """

    move: Move
    target: RunStatus
    attempt_status: AttemptStatus
    outcome: Outcome | None
    events: tuple[EventEntry, ...]
    output: str | None = None
    error: ErrorEntry | None = None
    reattempted_by: str | None = None
    held: Held | None = None
    next: NextAttempt | None = None
    wait: Wait | None = None
