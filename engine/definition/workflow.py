"""`Workflow`, the class that users derive from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn

from pgbus.engine.active import current_bus
from pgbus.engine.codec import encode
from pgbus.engine.definition.declare import WorkflowMeta
from pgbus.engine.definition.options import Duration, OptionError, duration
from pgbus.engine.definition.scope import AttemptScope, Phase
from pgbus.engine.definition.signal import Sending
from pgbus.engine.definition.start import S, StartOptions
from pgbus.engine.definition.verbs import (
    CancelRun,
    FinishRun,
    PauseRun,
    ReattemptStep,
    SkipStep,
)
from pgbus.engine.errors import AttemptLost, NoSignal, NotInStep, SubjectGone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.orm import Session

    from pgbus.engine.definition.policy import Policy
    from pgbus.engine.definition.signal import Signal
    from pgbus.engine.definition.start import HostSession
    from pgbus.engine.errors import AlreadyRunning
    from pgbus.engine.runner.run import Run


class Workflow(Generic[S], metaclass=WorkflowMeta):
    """Ordered, durable steps about a subject; `Workflow[Order]` types `self.subject`.

    Every attempt gets a fresh instance. The keywords `queue=`, `priority=` and `wait=` of a
    class set message options of all its steps; a step's own win. A subclass has its base's
    steps, guards and policies. One without any step only serves as a base.
    """

    #: Exception policies of every step; a subclass's come before these, not instead of them.
    policies: ClassVar[Sequence[Policy]] = ()

    _scope: AttemptScope | None = None

    @classmethod
    def start(cls, subject: S | None = None, /, **arguments: Any) -> Run:
        """Start a run about `subject`, in a transaction of its own; keywords are its arguments.

        Raise `AlreadyRunning` when the subject has an ongoing run of this class.
        """
        return cls.options().start(subject, **arguments)

    @classmethod
    def start_many(
        cls, items: Iterable[tuple[S | None, Mapping[str, Any]]]
    ) -> list[Run | AlreadyRunning]:
        """Start a run for each (subject, arguments), in a few statements for thousands.

        A subject that has an ongoing run gives the `AlreadyRunning` in its place.
        """
        return cls.options().start_many(items)

    @classmethod
    def options(
        cls,
        *,
        session: HostSession | None = None,
        idempotency_key: str | None = None,
        actor: str = "app",
        reason: str | None = None,
    ) -> StartOptions[S]:
        """Return start options: `OrderWorkflow.options(session=db.session).start(order)`.

        With `session` nothing exists or is sent before the host commits. A key used before
        gives the run it started. `actor` and `reason` go on the audit trail.
        """
        return StartOptions(
            workflow_class=cls,
            session=session,
            idempotency_key=idempotency_key,
            actor=actor,
            reason=reason,
        )

    @classmethod
    def find(cls, workflow_id: str) -> Run | None:
        """Return the run of this class or a subclass, else `None`; `Workflow.find` finds any."""
        return current_bus().find_run(cls, workflow_id)

    @classmethod
    def signal(
        cls,
        subject: S,
        name: str,
        *,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        missing: Literal["raise", "ignore"] = "raise",
    ) -> Signal | None:
        """Send a signal to the ongoing run of this very class about `subject`.

        When there is none raise `NotOngoing`, or return `None` with `missing="ignore"`. A key
        used before gives the stored signal, with `duplicate_delivery` true.
        """
        if subject is None:
            raise ValueError(
                "signal(None, ...) is about nothing; give the record, or use Run.signal"
            )
        if missing not in ("raise", "ignore"):
            raise ValueError(f"missing={missing!r} is unknown; choose 'raise' or 'ignore'")
        sending = Sending(name, payload, idempotency_key, actor, reason, session)
        return current_bus().signal_subject(cls, subject, sending, missing=missing)

    @classmethod
    def removed_steps_in_flight(cls) -> dict[str, int]:
        """Return how many ongoing runs are on each gravestone; at 0 its line can go."""
        return current_bus().removed_steps_in_flight(cls._definition)

    @property
    def subject(self) -> S | None:
        """The run's record, loaded for this attempt; `None` when it is gone or there is none."""
        found: S | None = self._in_step("subject").subject()
        return found

    def require_subject(self) -> S:
        """Return the run's record; `SubjectGone`, for the policies, when there is none."""
        subject = self.subject
        if subject is None:
            raise SubjectGone(
                f"{type(self).__qualname__} {self.workflow_id} has no subject (any more); "
                "ask self.subject, or cancel such runs in a cancel_if"
            )
        return subject

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The keywords of the start."""
        return self._in_step("arguments").arguments()

    @property
    def session(self) -> Session:
        """A session of the host for this phase; closed after it."""
        session: Session = self._in_step("session").session()
        return session

    @property
    def workflow_id(self) -> str:
        """The run's id."""
        return self._in_step("workflow_id").workflow_id

    @property
    def step_name(self) -> str:
        """The name of the step that runs."""
        return self._in_step("step_name").step_name

    @property
    def attempt(self) -> int:
        """The number of this try of the step, from 1; it goes on rising after a re-run."""
        return self._in_step("attempt").attempt

    @property
    def received_signal(self) -> Signal | None:
        """The signal that the step runs with; `None` before its gate, as in a guard."""
        gate = self._in_step("received_signal").gate
        return gate.received_signal() if gate else None

    def require_signal(self) -> Signal:
        """Return the signal that the step runs with; `NoSignal`, for the policies, without one."""
        signal = self.received_signal
        if signal is None:
            raise NoSignal(
                f"step {self.step_name!r} of {type(self).__qualname__} {self.workflow_id} runs "
                "without a signal: it has no wait_for, its wait timed out, or a guard asks; "
                "look at self.received_signal where there may be none"
            )
        return signal

    @property
    def timed_out(self) -> bool:
        """Whether the deadline of the wait let the body run (`on_timeout="run"`)."""
        gate = self._in_step("timed_out").gate
        return gate is not None and gate.timed_out

    @property
    def signal_ready(self) -> bool:
        """Whether this attempt will run, or runs, with a signal; a guard looks ahead with it."""
        gate = self._in_step("signal_ready").gate
        return gate is not None and gate.signal_ready()

    @property
    def woken(self) -> bool:
        """Whether this attempt came to its gate with a signal, taken by a wake or an earlier try."""
        gate = self._in_step("woken").gate
        return gate is not None and gate.woken()

    @property
    def step_idempotency_key(self) -> str:
        """A key for external calls, the same on every attempt of this step in this run."""
        scope = self._in_step("step_idempotency_key")
        return f"pgbus-wf:{scope.workflow_id}:{scope.step_name}"

    @property
    def attempt_idempotency_key(self) -> str:
        """A key for external calls that each attempt may repeat."""
        return f"{self.step_idempotency_key}:{self.attempt}"

    @property
    def outputs(self) -> Mapping[str, Mapping[str, Any]]:
        """The outputs of the completed steps, by step."""
        return self._in_step("outputs").outputs()

    def output_of(self, name: str) -> Mapping[str, Any] | None:
        """Return what the latest completed attempt of a step recorded, `None` without one."""
        return self.outputs.get(name)

    def output(self, /, **values: Any) -> None:
        """Record values on this attempt; they exist exactly when the step's completion does.

        Raise `PayloadError` here when they cannot be stored; then none of them is recorded.
        """
        self._record(values)

    def _record(self, values: Mapping[str, Any]) -> None:
        scope = self._in_body("output")
        merged = scope.output | dict(values)
        encode(merged, name="output", limit=scope.max_payload_size)
        scope.output = merged

    def checkpoint(self) -> None:
        """Raise `AttemptLost` when the attempt was stalled or cancelled: stop a long body early."""
        scope = self._in_body("checkpoint")
        if scope.is_lost():
            raise AttemptLost(
                f"attempt {scope.attempt} of {scope.step_name!r} in {scope.workflow_id} was taken "
                "from this body; nothing it does is recorded any more, so let it end"
            )

    def pause(self, *, reason: str | None = None) -> NoReturn:
        """Complete the step and pause the run; resume goes on with the next step."""
        self._decide("pause")
        raise PauseRun(reason)

    def cancel(self, *, reason: str | None = None) -> NoReturn:
        """Cancel the run."""
        self._decide("cancel")
        raise CancelRun(reason)

    def reattempt(self, *, wait: Duration = 0, reason: str | None = None) -> NoReturn:
        """End this attempt without an error; the next one is due after `wait`."""
        self._decide("reattempt")
        try:
            length = duration(wait)
        except OptionError as error:
            raise ValueError(f"reattempt(wait=...): {error}") from None
        raise ReattemptStep(length, reason)

    def skip(self, *, reason: str | None = None) -> NoReturn:
        """Skip the step; the run moves on."""
        self._decide("skip")
        raise SkipStep(reason)

    def finish(self, *, reason: str | None = None) -> NoReturn:
        """Complete the step and finish the run now."""
        self._decide("finish")
        raise FinishRun(reason)

    def _in_step(self, asked: str) -> AttemptScope:
        if self._scope is None:
            raise NotInStep(
                f"{type(self).__qualname__}.{asked} is only there while a step runs; "
                "outside, ask the Run that start() and find() return"
            )
        return self._scope

    def _in_body(self, asked: str) -> AttemptScope:
        scope = self._in_step(asked)
        if scope.phase is not Phase.BODY:
            raise NotInStep(
                f"{asked}() in a {scope.phase} of {scope.workflow_class}: "
                f"it belongs in the body of step {scope.step_name!r}"
            )
        return scope

    def _decide(self, verb: str) -> None:
        scope = self._in_step(verb)
        if scope.phase is Phase.GUARD:
            raise NotInStep(
                f"{verb}() in a guard of {scope.workflow_class}, step {scope.step_name!r}: a guard "
                "decides by what it returns; return True from cancel_if or skip_if, or use the "
                "verb in the body"
            )
