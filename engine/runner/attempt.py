"""One claimed attempt: the host's view of it, and its body run to a result."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from pgbus.engine import active, codec, subjects
from pgbus.engine.definition.deadline import deadline_of
from pgbus.engine.definition.members import FanOut
from pgbus.engine.definition.scope import (
    AttemptScope,
    GateReaders,
    Phase,
    StepContext,
    guarded_run,
    step_context,
)
from pgbus.engine.definition.verbs import (
    CancelRun,
    FinishRun,
    PauseRun,
    ReattemptStep,
    SkipStep,
    StepVerb,
    find_verb,
)
from pgbus.engine.errors import CommitRefused, InvalidSetting, PayloadError
from pgbus.engine.runner.decide import Result
from pgbus.engine.runner.gate import Gate
from pgbus.engine.states import Outcome
from pgbus.engine.storage import runs
from pgbus.engine.storage.database import session_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgbus.engine.definition.deadline import Deadline
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.members import JobCall
    from pgbus.engine.definition.signal import Signal
    from pgbus.engine.definition.step import Step
    from pgbus.engine.observe.tracing import Span
    from pgbus.engine.runner.host import PhaseSession
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.database import Connection

_OUTCOMES: dict[type[StepVerb], Outcome] = {
    PauseRun: Outcome.PAUSED,
    FinishRun: Outcome.FINISHED,
    SkipStep: Outcome.SKIPPED,
    CancelRun: Outcome.CANCELLED,
    ReattemptStep: Outcome.REATTEMPTED,
}

#: The results after which what the body wrote is committed.
COMMITTING = frozenset({Outcome.COMPLETED, Outcome.PAUSED, Outcome.FINISHED})


class Attempt:
    """An attempt in the hands of this worker; makes the instance its guards and body see."""

    def __init__(
        self,
        services: Services,
        delivery: Delivery,
        definition: Definition,
        step: Step,
        span: Span | None = None,
    ) -> None:
        self.delivery = delivery
        self.context = StepContext(
            delivery.workflow_id, delivery.workflow_class, delivery.step_name, delivery.attempt
        )
        self.definition = definition
        self.step = step
        #: What it found at its gate; None in a step that waits for no signal.
        self.gate: Gate | None = None
        #: What a fan_out's body added to its batch.
        self.calls: tuple[JobCall, ...] = ()
        self._services = services
        self._span = span
        self._instance: Any = None
        self._body_scope: AttemptScope | None = None

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[tuple[Any, PhaseSession]]:
        """Enter the host's surroundings for one phase; yield the instance and the phase's session.

        Roll the session back at the end, unless it was committed before.
        """
        session = self._services.host.phase_session()
        with (
            active.running_on(self._services.bus),
            nullcontext() if self._span is None else self._span.current(),
            self._services.host.surroundings(),
        ):
            token = step_context.set(self.context)
            try:
                if self._instance is None:
                    self._instance = self.definition.workflow_class()
                scope = self._scope(phase, session)
                if phase is Phase.BODY:
                    self._body_scope = scope
                self._instance._scope = scope  # noqa: SLF001 (the slot made for this)
                yield self._instance, session
            finally:
                self._leave(session)
                step_context.reset(token)

    def open_gate(self, connection: Connection) -> None:
        """Look what there is for the attempt at its gate, if its step waits for a signal."""
        if self.step.wait_for is not None:
            self.gate = Gate(connection, self.delivery.step_id, self.step.wait_for)

    def deadline(self) -> Deadline | None:
        """Return until when the attempt waits, its host asked; None: without end.

        Raise what the host's callable raises, and `ValueError` for what is no deadline.
        """
        timeout = self.step.wait_timeout
        if callable(timeout):
            with self.phase(Phase.GUARD) as (workflow, _session):
                timeout = timeout(workflow)
        return deadline_of(timeout)

    def _leave(self, session: PhaseSession) -> None:
        if self._instance is not None:
            self._instance._scope = None  # noqa: SLF001 (the slot made for this)
        session.close()

    def ask_guards(self) -> Result | None:
        """Return what a guard decided; None lets the body run."""
        with self.phase(Phase.GUARD) as (workflow, _session):
            for guard in self.definition.cancel_guards:
                if guard(workflow):
                    return Result(Outcome.CANCELLED, reason=f"cancel_if {_name(guard)}")
            if self.step.skip_if is not None and self.step.skip_if(workflow):
                return Result(Outcome.SKIPPED, reason="skip_if")
        return None

    def run_body(self, workflow: Any) -> Result:
        """Run the body and return how it ended; what it raises passes through.

        `KeyboardInterrupt` and `SystemExit` are among that: they say nothing about the step.
        """
        body = self.step.body
        assert body is not None  # noqa: S101 (a removed step never gets here)
        batch = FanOut()
        try:
            returned = body(workflow, batch) if self.step.fan_out else body(workflow)
            if inspect.iscoroutine(returned):
                returned = self._services.event_loop.run(returned)
            if isinstance(returned, Mapping):
                workflow._record(returned)  # noqa: SLF001 (as `output` does, whatever its keys are)
        except BaseException as error:
            verb = find_verb(error)
            if verb is None:
                raise
            return _result_of(verb, self._output())
        finally:
            batch.close()
        self.calls = tuple(batch.calls)
        return Result(Outcome.COMPLETED, self._output())

    def storable_output(self) -> str | None:
        """Return the body's output so far as a document; None when nothing, or nothing storable."""
        try:
            return self._output()
        except PayloadError:
            return None

    def _output(self) -> str | None:
        scope = self._body_scope
        if scope is None or not scope.output:
            return None
        # A value may have changed since it was output.
        return codec.encode(scope.output, name="output", limit=scope.max_payload_size)

    def _scope(self, phase: Phase, session: PhaseSession) -> AttemptScope:
        delivery = self.delivery
        services = self._services

        load = session.load

        def subject() -> object:
            if delivery.subject_type is None or delivery.subject_id is None:
                return None
            return load(subjects.SubjectReference(delivery.subject_type, delivery.subject_id))

        def outputs() -> Mapping[str, Mapping[str, Any]]:
            encoded = services.database.persistently(
                lambda connection: runs.outputs(connection, delivery.workflow_id)
            )
            return {name: codec.decode(text, load=load) for name, text in encoded.items()}

        def is_lost() -> bool:
            return not services.database.persistently(
                lambda connection: runs.in_progress(connection, delivery.step_id)
            )

        return AttemptScope(
            phase=phase,
            workflow_id=delivery.workflow_id,
            workflow_class=delivery.workflow_class,
            step_name=delivery.step_name,
            attempt=delivery.attempt,
            arguments=lambda: codec.decode(delivery.arguments, load=load),
            session=session,
            subject=subject,
            outputs=outputs,
            is_lost=is_lost,
            max_payload_size=services.settings.workflow_max_payload_size,
            gate=self._gate_readers(load),
        )

    def _gate_readers(
        self, load: Callable[[subjects.SubjectReference], object]
    ) -> GateReaders | None:
        gate = self.gate
        if gate is None:
            return None

        def received_signal() -> Signal | None:
            # Not before the body; nor for a policy that is asked about what a guard raised.
            return None if self._body_scope is None else gate.received(load)

        return GateReaders(
            signal_ready=lambda: gate.row is not None,
            woken=lambda: gate.woken,
            received_signal=received_signal,
            timed_out=gate.timed_out,
        )


def _name(guard: Callable[[Any], object]) -> str:
    return getattr(guard, "__name__", repr(guard))


def _result_of(verb: StepVerb, output: str | None) -> Result:
    return Result(_OUTCOMES[type(verb)], output, verb.reason, verb.wait.total_seconds())


@contextmanager
def verbs_refused(workflow_id: str) -> Iterator[None]:
    """Let the host's code in the block ask no verb of this run: it is locked, and would wait for itself."""
    token = guarded_run.set(workflow_id)
    try:
        yield
    finally:
        guarded_run.reset(token)


@contextmanager
def commits_refused(session: Any) -> Iterator[Callable[[], None]]:
    """Let no one but the engine commit a transactional step's session; yield the permission.

    Savepoints may come and go.
    """
    target = session_behind(session)
    if not isinstance(target, Session):
        raise InvalidSetting(
            "session_factory",
            f"gave a {type(target).__qualname__}; a transactional step needs a SQLAlchemy Session.",
        )

    def refuse(committing: Session) -> None:
        if not committing.in_nested_transaction():
            raise CommitRefused(
                "This step is transactional: the engine commits self.session together with the "
                "step's completion. Take the commit out of the body."
            )

    def permit() -> None:
        if event.contains(target, "before_commit", refuse):
            event.remove(target, "before_commit", refuse)

    event.listen(target, "before_commit", refuse)
    try:
        yield permit
    finally:
        permit()
