"""Tools that act on one run: the verbs of the console's buttons, each refused where its state does not allow it."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar
from uuid import UUID

import mcp_types
from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from pgbus.engine.definition import registry
from pgbus.engine.definition.signal import Signal
from pgbus.engine.errors import (
    DatabaseAway,
    InvalidTransition,
    NotOngoing,
    NotPaused,
    PayloadError,
    PayloadTooLarge,
    PgbusError,
    ReadTimeout,
    RunLocked,
    RunMoved,
    RunNotFound,
    SignalKeyReused,
    StepNotDefined,
)
from pgbus.engine.insights import reading, signals
from pgbus.engine.insights.detail import RunDetail
from pgbus.engine.runner.run import Run
from pgbus.engine.states import RunStatus, Verb
from pgbus.mcp_server.tool import Answer, Caller, Text, Tool, told
from pgbus.mcp_server.workflows import run_detail

#: Every float of so many digits is written as it was typed; one that has more may have been rounded by a reader.
_EXACT_DIGITS = 15


def _visible(text: str) -> str:
    if not any(letter.isprintable() and not letter.isspace() for letter in text):
        raise PydanticCustomError("invisible", "String should have a visible character")
    return text


def _unrounded(payload: dict[str, Any]) -> dict[str, Any]:
    for number in _floats(payload):
        digits = Decimal(repr(number)).normalize().as_tuple().digits
        if len(digits) > _EXACT_DIGITS:
            message = (
                "The number {number} has more than {most} digits, and may not be as it was typed: "
                "send it as a string"
            )
            raise PydanticCustomError("inexact", message, {"number": number, "most": _EXACT_DIGITS})
    return payload


def _floats(value: object) -> Iterable[float]:
    match value:
        case float():
            yield value
        case dict():
            for part in value.values():
                yield from _floats(part)
        case list():
            for part in value:
                yield from _floats(part)


Reason = Annotated[
    str,
    # No control characters but tabs and the ends of lines.
    StringConstraints(
        strip_whitespace=True,
        min_length=1,
        max_length=500,
        pattern=r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$",
    ),
    AfterValidator(_visible),
    Field(description="Why, for the audit trail."),
]
#: As long as the engine lets a signal's name and key be.
Name = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]

#: Of each history, so many of the newest come with the answer.
_FEW = 5

#: Refusals of the engine, by what the answer calls them.
_CODES: dict[type[PgbusError], str] = {
    InvalidTransition: "invalid_transition",
    NotOngoing: "not_ongoing",
    NotPaused: "not_paused",
    PayloadError: "payload_refused",
    PayloadTooLarge: "payload_too_large",
    RunLocked: "run_locked",
    RunMoved: "run_moved",
    RunNotFound: "run_not_found",
    SignalKeyReused: "signal_key_reused",
    StepNotDefined: "step_not_defined",
}


class WriteTool(Tool):
    """A tool that asks a verb of a run; `ok` tells whether it was done."""

    annotations = mcp_types.ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False
    )
    outage = (
        "PostgreSQL cannot be reached just now. If the call was under way, nobody knows whether it took effect: "
        "read the run before you try again."
    )
    verb: ClassVar[Verb]

    workflow_id: UUID
    reason: Reason
    expected_status: Annotated[
        RunStatus | None,
        Field(description="The status you saw: once the run has moved on, nothing is done."),
    ] = None

    @property
    def arguments(self) -> Mapping[str, object]:
        """What the verb takes besides."""
        return {}

    def answer(self, caller: Caller) -> Answer:
        """Ask the verb of the run; return what came of it, and the run as it is then."""
        with reading.answered():
            caller.bus.check_schema()
            run = caller.bus.find(str(self.workflow_id))
            if run is None:
                return _answer(None, ok=False, reason=f"There is no run {self.workflow_id}.")
            try:
                return self._act(caller, run)
            except tuple(_CODES) as error:
                now = self._read(caller)
                status = {"status": now.run.status.value} if now else {}
                return _answer(now, ok=False, reason=str(error), code=_CODES[type(error)], **status)

    def note(self, run: Run, done: Any) -> str | None:  # noqa: ARG002 (the verbs differ in what they give)
        """Return what is to be said of what was done."""
        return None

    def _act(self, caller: Caller, run: Run) -> Answer:
        if self.expected_status not in (None, run.status):
            reason = f"Nothing was done: the run is {run.status}, not {self.expected_status}."
            return _answer(self._read(caller), ok=False, reason=reason)
        allowed = run.available_actions
        if self.verb not in allowed:
            reason = f"Nothing was done: {self.verb} cannot be asked of the run now."
            told_allowed = [verb.value for verb in allowed]
            return _answer(
                self._read(caller), ok=False, reason=reason, available_actions=told_allowed
            )
        done = getattr(run, self.verb)(
            **self.arguments,
            actor=caller.actor,
            reason=self.reason,
            if_unmoved=self.expected_status is not None,
        )
        return _answer(self._read(caller), ok=True, reason=self.note(run, done))

    def _read(self, caller: Caller) -> RunDetail | None:
        """Return the run as it is now; None when it is gone, or cannot be read: what was done stays known."""
        try:
            with reading.reading(caller.bus.services) as connection:
                return run_detail(
                    connection, caller.bus.settings, str(self.workflow_id), limit=_FEW
                )
        except (DatabaseAway, ReadTimeout, RunNotFound):
            return None


class Resume(WriteTool):
    """Let a paused run go on: pgbus_workflow says under `resume` what that will do."""

    name = "pgbus_workflow_resume"
    verb = Verb.RESUME


class Cancel(WriteTool):
    """End a run. What still runs of it is let to its end, and its outcome ignored."""

    name = "pgbus_workflow_cancel"
    verb = Verb.CANCEL
    annotations = mcp_types.ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=True
    )


class SkipStep(WriteTool):
    """Leave out the step that a waiting or paused run is on, and go on with the next."""

    name = "pgbus_workflow_skip_step"
    verb = Verb.SKIP


class ResumeAt(WriteTool):
    """Let a paused run go on with a new attempt of this step, also of one that completed before."""

    name = "pgbus_workflow_resume_at"
    verb = Verb.RESUME_AT

    step: Text

    @property
    def arguments(self) -> Mapping[str, object]:
        """The step."""
        return {"step": self.step}


class RunNow(WriteTool):
    """Run the scheduled step of a run at once; one that is due already is sent again."""

    name = "pgbus_workflow_run_now"
    verb = Verb.RUN_NOW


class SendSignal(WriteTool):
    """Send a signal to a run: a step that waits for it goes on, a later one finds it stored.

    With an idempotency_key that was used before, nothing is stored.
    """

    name = "pgbus_workflow_signal"
    verb = Verb.SIGNAL

    signal_name: Annotated[Name, Field(alias="name")]
    payload: Annotated[dict[str, Any], AfterValidator(_unrounded)] = Field(default_factory=dict)
    idempotency_key: Name | None = None

    @property
    def arguments(self) -> Mapping[str, object]:
        """The signal."""
        return {
            "name": self.signal_name,
            "payload": self.payload,
            "idempotency_key": self.idempotency_key,
        }

    def note(self, run: Run, done: Signal) -> str | None:
        """Return that it came before, or that no step waits for such a one."""
        if done.duplicate_delivery:
            return "Nothing was stored: a signal with this idempotency_key was received before."
        definition = registry.find(run.workflow_class)
        unexpected = definition and signals.unexpected(definition, done.name)
        return f"Stored, but {unexpected}." if unexpected else None


WRITE_TOOLS: tuple[type[WriteTool], ...] = (Resume, Cancel, SkipStep, ResumeAt, RunNow, SendSignal)


def _answer(now: RunDetail | None, *, ok: bool, reason: str | None, **more: object) -> Answer:
    workflow = None if now is None else told(now, shown=False)
    return {"ok": ok, "reason": reason, **more, "workflow": workflow}
