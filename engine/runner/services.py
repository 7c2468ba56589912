"""What the runner works with: the bus's parts, gathered once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.queues import physical_name
from pgbus.engine.runner.decide import Decider
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.storage import reattempts

if TYPE_CHECKING:
    from pgbus.engine.bus import Pgbus
    from pgbus.engine.decision import ErrorEntry
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.observe.emission import Emitter
    from pgbus.engine.observe.reports import Reporters
    from pgbus.engine.observe.tracing import Tracer
    from pgbus.engine.runner.event_loop import EventLoop
    from pgbus.engine.runner.host import Host
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.database import Connection, Database
    from pgbus.engine.storage.reattempts import Reattempts


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a bus that the runner and the jobs need."""

    bus: Pgbus
    settings: Settings
    database: Database
    host: Host
    event_loop: EventLoop
    events: Emitter
    reporters: Reporters
    tracer: Tracer | None

    def trace_here(self, *, after: str | None = None) -> str | None:
        """Return where the span of what the calling code causes belongs; see `Tracer.here`."""
        return None if self.tracer is None else self.tracer.here(after=after)

    def queue_of(self, step: Step) -> str:
        """Return the physical queue on which a step's messages travel."""
        return physical_name(
            self.settings.queue_prefix, step.queue or self.settings.workflow_queue, step.priority
        )

    def connection(self, session: Any) -> AbstractContextManager[Connection]:
        """Lend the connection for one statement: the host's, else one that commits by itself."""
        if session is None:
            return self.database.autocommit()
        return nullcontext(self.database.joined(session))

    def transaction(self, session: Any) -> AbstractContextManager[Connection]:
        """Lend the connection for several statements, all or nothing.

        In a transaction of its own, else in a savepoint of the host's, which an error leaves
        as it was before.
        """
        if session is None:
            return self.database.transaction()
        return self.database.joined(session).savepoint()

    def decider(self, definition: Definition, step: Step) -> Decider:
        """Return the decider about an attempt of this step."""
        return Decider(definition, step, self.queue_of)

    def reattempts(self, delivery: Delivery) -> Reattempts:
        """Return how often in a row the step was reattempted just before this attempt."""
        return self.database.persistently(
            lambda connection: reattempts.count(
                connection, delivery.workflow_id, delivery.step_name, delivery.attempt
            )
        )

    def recorded(self, error: BaseException) -> ErrorEntry:
        """Return a host's error as it is stored, its backtrace as long as the settings say."""
        return record_error(error, backtrace_lines=self.settings.workflow_error_backtrace_lines)
