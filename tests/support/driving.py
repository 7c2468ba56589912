"""A worker in the test's own hands: it takes and performs messages when the test says so."""

from __future__ import annotations

from pgbus.engine.processes.worker import _unguarded
from pgbus.engine.runner.perform import perform
from pgbus.engine.storage import claims, messages
from pgbus.engine.storage.claims import Delivery, Idle, Taking, Worker
from pgbus.engine.storage.database import array_literal


class Driver:
    """Takes from every queue there is, one message at a time."""

    def __init__(self, bus, *, name="test:1", unguarded=None):
        self.services = bus.services
        self.worker = Worker(name, "r1", _unguarded() if unguarded is None else unguarded)

    def take(self, visibility=30) -> list[Delivery] | Idle:
        with self.services.database.autocommit() as connection:
            queues = array_literal(
                q for q in sorted(messages.queues(connection)) if not q.endswith("_dlq")
            )
            taking = Taking(queues, 1, visibility)
            return claims.take(connection, self.worker, taking)

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
