"""What an attempt knows while its guards, body or policy method run; the runner makes it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pgbus.engine.definition.signal import Signal


class Phase(StrEnum):
    """Whose code runs: a guard's under the run's lock, the step's body or a policy's method."""

    GUARD = "guard"
    BODY = "body"
    POLICY = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReaders:
    """What a step that waits for a signal may ask of its gate; guards run before it.

    The callables look it up on demand.
    """

    signal_ready: Callable[[], bool]
    woken: Callable[[], bool]
    received_signal: Callable[[], Signal | None]
    timed_out: bool


@dataclass(slots=True, kw_only=True)
class AttemptScope:
    """One attempt, as the readers and verbs of its workflow's instance see it.

    The callables load on demand; `outputs` gives completed outputs by step. A step without
    `wait_for` has no `gate`.
    """

    phase: Phase
    workflow_id: str
    workflow_class: str
    step_name: str
    attempt: int
    arguments: Callable[[], Mapping[str, Any]]
    session: Callable[[], Any]
    subject: Callable[[], Any]
    outputs: Callable[[], Mapping[str, Mapping[str, Any]]]
    is_lost: Callable[[], bool]
    max_payload_size: int
    gate: GateReaders | None = None
    output: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepContext:
    """Which attempt the calling code runs in, for logs and clients far from the workflow."""

    workflow_id: str
    workflow_class: str
    step: str
    attempt: int

    @classmethod
    def current(cls) -> StepContext | None:
        """Return the attempt that runs here, `None` outside of one."""
        return step_context.get()


#: Set by the runner around each attempt.
step_context: ContextVar[StepContext | None] = ContextVar("pgbus_step", default=None)

#: The run whose lock a guard of this context is asked under; its verbs would wait for themselves.
guarded_run: ContextVar[str | None] = ContextVar("pgbus_guarded_run", default=None)
