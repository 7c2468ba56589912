"""What a worker takes: from which queues, and what of it is its to perform."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pgbus.engine.storage import claims, queues
from pgbus.engine.storage.claims import Idle, Taking

if TYPE_CHECKING:
    from pgbus.engine.processes.in_flight import InFlight
    from pgbus.engine.processes.listening import Listening
    from pgbus.engine.processes.presence import Presence
    from pgbus.engine.processes.queue_list import QueueList
    from pgbus.engine.storage.claims import Delivery, Worker
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.worker")

#: Seconds between two looks at which queues exist and are paused; a notification comes before.
_QUEUES_EVERY = 300.0


class Intake:
    """Takes messages for one worker. What it takes is in hand (kept invisible) from then on."""

    def __init__(
        self,
        worker: Worker,
        queues: QueueList,
        in_flight: InFlight,
        listening: Listening,
        presence: Presence,
        *,
        visibility: int,
        polling: float,
    ) -> None:
        self.worker = worker
        self.queues = queues
        self._in_flight = in_flight
        self._listening = listening
        self._presence = presence
        self._visibility = visibility
        self._polling = polling
        self._read_at: float | None = None
        self._heard = False

    def take(self, connection: Connection, quantity: int) -> list[Delivery] | Idle:
        """Take up to `quantity` deliveries; [] when what was read needed nothing."""
        self.refresh(connection)
        beat = self._presence.parameters() if self._presence.due_in() <= 0 else None
        taking = Taking(self.queues.next_order(), quantity, self._visibility, beat)
        return self.received(claims.take(connection, self.worker, taking))

    def taking(self) -> Taking:
        """Return what to take for one thread, along with another statement of its own."""
        return Taking(self.queues.next_order(), 1, self._visibility)

    def received(self, taken: list[Delivery] | Idle) -> list[Delivery] | Idle:
        """Take in hand what was taken; return it without what this very worker had in hand already.

        That came again because its heartbeat was late, or is off; this worker is not dead.
        """
        if isinstance(taken, Idle):
            return taken
        new = [delivery for delivery in taken if self._in_flight.hold(delivery)]
        if len(new) < len(taken):
            _log.warning("A message came again while it is in hand: no heartbeat came in time.")
        return new

    def refresh(self, connection: Connection) -> None:
        """Ask which queues exist and are paused, now and then; at every poll unless notified of changes."""
        works, read_at = self._listening.works, self._read_at
        every = _QUEUES_EVERY if works else self._polling
        # What was read before LISTEN worked may have changed without a word.
        if works and not self._heard:
            read_at = None
        if read_at is not None and time.monotonic() < read_at + every:
            return
        # Noted before: what is notified of from now on may not be in the answer.
        self._read_at = asked_at = time.monotonic()
        self._heard = works
        try:
            found = queues.found(connection)
        except BaseException:
            self.forget_queues()
            raise
        # Another thread may have asked since, and know better.
        if self._read_at == asked_at:
            self.queues.update(found)

    def notice(self, notified: set[str]) -> None:
        """Look again which queues there are: one was paused or goes on, or is new and its own."""
        new = notified - self.queues.physical
        if queues.CHANGED in new or any(map(self.queues.may_be_mine, new)):
            self.forget_queues()

    def forget_queues(self) -> None:
        """Ask which queues exist before taking again."""
        self._read_at = None
