"""What the runner works with: the bus's parts, gathered once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.queues import physical_name
from pgbus.engine.runner.decide import Decider

if TYPE_CHECKING:
    from pgbus.engine.bus import Pgbus
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step
    from pgbus.engine.runner.event_loop import EventLoop
    from pgbus.engine.runner.host import Host
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection, Database
    from pgbus.engine.storage.transitions import Delivery


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a bus that the runner and the jobs need."""

    bus: Pgbus
    settings: Settings
    database: Database
    host: Host
    event_loop: EventLoop

    def queue_of(self, step: Step) -> str:
        """The physical queue on which a step's messages travel."""
        return physical_name(
            self.settings.queue_prefix, step.queue or self.settings.workflow_queue, step.priority
        )

    def connection(self, session: Any) -> AbstractContextManager[Connection]:
        """The connection for a single statement: the host's, else one that commits by itself."""
        if session is None:
            return self.database.autocommit()
        return nullcontext(self.database.joined(session))

    def transaction(self, session: Any) -> AbstractContextManager[Connection]:
        """The connection for several statements, all or nothing.

        In a transaction of its own, else in a savepoint of the host's, which an error leaves
        as it was before.
        """
        if session is None:
            return self.database.transaction()
        return self.database.joined(session).savepoint()

    def decider(
        self, delivery: Delivery, definition: Definition | None, step: Step | None
    ) -> Decider:
        """The decider for one attempt; without a declared step it keeps to the message's queue."""
        queue = self.queue_of(step) if step else delivery.queue
        return Decider(definition, delivery.step_name, queue, self.queue_of)
