"""A worker in the test's own hands: it takes and performs messages when the test says so."""

from __future__ import annotations

from pgbus.engine.definition import registry
from pgbus.engine.runner.perform import perform
from pgbus.engine.storage import messages, transitions
from pgbus.engine.storage.transitions import Delivery, Idle, Worker


class Driver:
    """Takes from every queue there is, one message at a time."""

    def __init__(self, bus, *, name="test:1", unguarded=None):
        self.services = bus.services
        if unguarded is None:
            unguarded = [
                f"{definition.name}#{step.name}"
                for definition in registry.definitions()
                for step in definition.steps
                if not definition.guarded(step)
            ]
        self.worker = Worker(name, "r1", unguarded)

    def take(self, visibility=30) -> list[Delivery] | Idle:
        with self.services.database.autocommit() as connection:
            queues = transitions.array_literal(
                q for q in sorted(messages.queues(connection)) if not q.endswith("_dlq")
            )
            taking = transitions.Taking(queues, 1, visibility)
            return transitions.take(connection, self.worker, taking)

    def redeliver(self) -> None:
        """Makes every message visible now, as if its visibility timeout were over."""
        with self.services.database.autocommit() as connection:
            for queue in messages.queues(connection):
                connection.rows(f'UPDATE pgmq."q_{queue}" SET vt = clock_timestamp()')

    def perform(self, delivery: Delivery) -> float | None:
        return perform(self.services, self.worker, delivery).due_in

    def drain(self, limit=1000) -> int:
        """Performs messages until none is visible; returns how many."""
        for done in range(limit):
            taken = self.take()
            if isinstance(taken, Idle):
                return done
            for delivery in taken:
                self.perform(delivery)
        raise AssertionError(f"still busy after {limit} messages")
