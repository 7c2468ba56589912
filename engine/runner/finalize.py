"""The end of an attempt: its decision applied, the next attempt claimed or sent, the host told."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.decision import Held
from pgbus.engine.observe import emission
from pgbus.engine.states import Move, Outcome, RunStatus
from pgbus.engine.storage import batches, endings, messages, waits
from pgbus.engine.storage.claims import ClaimVerdict
from pgbus.engine.storage.endings import EndVerdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.decision import Finalization, Wait
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.observe.emission import Payload
    from pgbus.engine.observe.tracing import Span
    from pgbus.engine.runner.services import Services
    from pgbus.engine.states import Detection
    from pgbus.engine.storage.claims import Delivery, Idle, Taking, Worker
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.endings import Finalized

#: A run goes on at once for this many steps and seconds; then it queues behind the others.
MAX_STEPS = 8
MAX_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt is to end; `seconds` is how long its body ran, None when none did.

    `definition` is None for a step that is not declared; `detection` tells of a stall; an error
    goes to the host's reporters where `reported`.
    """

    delivery: Delivery
    definition: Definition | None
    final: Finalization
    seconds: float | None = None
    detection: Detection | None = None
    reported: bool = True


@dataclass(frozen=True, slots=True)
class Applied:
    """An ending whose transaction is the caller's to commit, or is committed.

    `trace` is where the span of the attempt that follows belongs.
    """

    ending: Ending
    finalized: Finalized
    trace: str | None = None


class Finalizer:
    """Applies the endings of one stretch of a run."""

    def __init__(
        self,
        services: Services,
        worker: Worker,
        stopping: Callable[[], bool],
        taking: Callable[[], Taking | None] = lambda: None,
    ) -> None:
        self.due_in: float | None = None
        self.taken: list[Delivery] | Idle | None = None
        self._services = services
        self.worker = worker
        self._stopping = stopping
        self._taking = taking
        self._steps = 0
        self._span: Span | None = None
        self._spanned = 0
        self._began = time.monotonic()

    def apply(
        self,
        connection: Connection,
        ending: Ending,
        *,
        taking: Callable[[], Taking | None] = lambda: None,
    ) -> Applied:
        """Write the ending in the connection's transaction.

        `taking` is asked what to take along, when the run does not go on at once.
        """
        final, trace = ending.final, self._trace_after(ending)
        if self._may_continue(ending):
            finalized = endings.finalize(
                connection,
                self.worker,
                ending.delivery,
                final,
                may_continue=True,
                takes_signals=_takes_signals(ending),
                trace=trace,
            )
            if finalized.verdict is not EndVerdict.DECLINED:
                return Applied(ending, finalized, trace)
        finalized = endings.finalize(
            connection,
            self.worker,
            ending.delivery,
            final,
            may_continue=False,
            takes_signals=_takes_signals(ending),
            trace=trace,
            taking=taking(),
        )
        if final.wait is not None:
            _keep_wait(connection, ending.delivery.step_id, final.wait, finalized.verdict)
        return Applied(ending, finalized, trace)

    def apply_for_others(self, connection: Connection, ending: Ending) -> Applied:
        """Write the ending where no worker is at hand that would take what follows: wake one."""
        applied = self.apply(connection, ending)
        if ending.final.next is not None:
            queue = ending.final.next.queue
            messages.notify(connection, self._services.database.schema, queue)
        return applied

    def commit(self, ending: Ending) -> Applied:
        """Write the ending in a transaction of its own, however long PostgreSQL is away."""

        def write(connection: Connection) -> Applied:
            if ending.final.wait is None:
                return self.apply(connection, ending, taking=self._taking)
            with connection.transaction():
                return self.apply(connection, ending)

        applied = self._services.database.persistently(write)
        self.taken = applied.finalized.taken
        return applied

    def follow(self, applied: Applied) -> Delivery | None:
        """Tell the host of a committed ending; return the attempt that was claimed with it."""
        self._steps += 1
        ending, finalized = applied.ending, applied.finalized
        self._end_span(ending, finalized.verdict)
        if finalized.verdict is not EndVerdict.LATE:
            self._services.events.emit(
                *_payloads(ending, held=finalized.verdict is EndVerdict.HELD)
            )
            self._report(ending)
        following = ending.final.next
        if (
            finalized.step_id
            and finalized.attempt
            and finalized.verdict is EndVerdict.CONTINUED
            and following
        ):
            return dataclasses.replace(
                ending.delivery,
                verdict=ClaimVerdict.CLAIMED,
                step_id=finalized.step_id,
                step_name=following.step_name,
                attempt=finalized.attempt,
                trace=applied.trace,
            )
        self.due_in = finalized.due_in
        return None

    def abandon(self) -> None:
        """End the span of an attempt that is left to redelivery."""
        span, self._span = self._span, None
        if span is not None:
            span.end("lost")

    def span_of(self, delivery: Delivery) -> Span | None:
        """Return the attempt's span, begun when it is first asked for; None where none is wanted."""
        tracer = self._services.tracer
        if tracer is not None and self._spanned != delivery.step_id:
            self._spanned = delivery.step_id
            attributes: dict[str, str | int] = {
                "workflow_id": delivery.workflow_id,
                "workflow_class": delivery.workflow_class,
                "step": delivery.step_name,
                "attempt": delivery.attempt,
            }
            name = f"{delivery.workflow_class}.{delivery.step_name}"
            self._span = tracer.begin(name, delivery.trace, attributes)
        return self._span

    def _trace_after(self, ending: Ending) -> str | None:
        span = self.span_of(ending.delivery)
        if span is None:
            return None
        following = ending.final.next
        at_once = following is not None and not (following.wait or following.not_before)
        return span.within if at_once else span.after

    def _end_span(self, ending: Ending, verdict: EndVerdict) -> None:
        span, self._span = self._span, None
        if span is not None:
            final = ending.final
            outcome = "lost" if verdict is EndVerdict.LATE else final.outcome or final.target
            span.end(outcome, final.error.raised if final.error else None)

    def _report(self, ending: Ending) -> None:
        """Hand the attempt's error, if it has one, to the host's reporters."""
        delivery, final = ending.delivery, ending.final
        if not ending.reported or final.error is None or final.error.raised is None:
            return
        context = {
            "action": "step",
            "workflow_class": delivery.workflow_class,
            "workflow_id": delivery.workflow_id,
            "step": delivery.step_name,
            "attempt": delivery.attempt,
            "outcome": str(final.outcome),
        }
        self._services.reporters.report(final.error.raised, context)

    def _may_continue(self, ending: Ending) -> bool:
        following = ending.final.next
        if (
            ending.final.move is not Move.ADVANCE
            or following is None
            or ending.definition is None
            or following.wait > 0
            or following.not_before is not None
            or following.queue != ending.delivery.queue
        ):
            return False
        return (
            not ending.definition.guarded(ending.definition.step(following.step_name))
            and self._steps + 1 < MAX_STEPS
            and time.monotonic() - self._began < MAX_SECONDS
            and not self._stopping()
        )


def _takes_signals(ending: Ending) -> bool:
    """Return whether the attempt may hold a signal; one of a gravestone may from before."""
    if ending.definition is None:
        return False
    step = ending.definition.step(ending.delivery.step_name)
    return step.wait_for is not None or step.removed


def _keep_wait(connection: Connection, step_id: int, wait: Wait, verdict: EndVerdict) -> None:
    """Write what a parked attempt waits for and open its batch; once, however often it is told.

    Of a run that was paused meanwhile the batch is kept for resume to open.
    """
    if verdict is EndVerdict.HELD and wait.batch is not None:
        waits.hold(connection, step_id, Held(Move.PARK, batch=wait.batch.encode()))
    elif verdict is EndVerdict.APPLIED:
        begun = waits.begin(
            connection,
            step_id,
            waiting_for=wait.waiting_for,
            timeout_at=wait.timeout_at,
            batch_id=wait.batch.new.batch_id if wait.batch else None,
        )
        if begun and wait.batch is not None:
            batches.open_batch(connection, wait.batch)


def _payloads(ending: Ending, *, held: bool) -> list[Payload]:
    delivery, final = ending.delivery, ending.final
    if final.outcome is None:
        return []
    of = (delivery.workflow_class, delivery.workflow_id)
    error_class = final.error.error_class if final.error else None
    payloads: list[Payload] = [
        emission.StepEnded(
            *of, delivery.step_name, delivery.attempt, final.outcome, ending.seconds, error_class
        )
    ]
    if ending.detection:
        payloads.append(emission.StallDetected(*of, delivery.step_name, ending.detection))
    if final.target is RunStatus.CANCELLED and (not held or final.outcome is not Outcome.CANCELLED):
        payloads.append(emission.WorkflowCancelled(*of))
    elif final.target is RunStatus.FINISHED and not held:
        payloads.append(emission.WorkflowFinished(*of))
    elif final.target is RunStatus.PAUSED and not held:
        payloads.append(emission.WorkflowPaused(*of, error_class))
    return payloads
