"""The threads of one worker, as they see each other: who is idle, and why to look for work."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pgbus.engine.errors import SchemaOutdated
    from pgbus.engine.storage.claims import Delivery


class Crew:
    """What the taking thread and the performing threads share; `wake` ends the former's wait."""

    def __init__(self, threads: int, wake: Callable[[], None]) -> None:
        self.stopping = threading.Event()
        #: Why the worker cannot go on, once a thread has found out.
        self.outdated: SchemaOutdated | None = None
        self._wake = wake
        self._lock = threading.Lock()
        self._idle = threads
        self._arrivals = 0
        self._due_at: float | None = None
        self._handover: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()

    def give_up(self, outdated: SchemaOutdated) -> None:
        """Take nothing more: what this worker's statements call is not there any more."""
        self.outdated = outdated
        self.stopping.set()
        self._wake()

    def idle(self) -> int:
        """Return how many threads wait for work.

        What was expected to come due is looked at with that.
        """
        with self._lock:
            self._due_at = None
            return self._idle

    def hand_over(self, deliveries: Iterable[Delivery]) -> None:
        """Give each delivery to an idle thread, or to the next that turns idle."""
        for delivery in deliveries:
            with self._lock:
                self._idle -= 1
            self._handover.put(delivery)

    def dismiss(self, threads: int) -> None:
        """End the threads, each once it has nothing in hand."""
        for _ in range(threads):
            self._handover.put(None)

    def handed(self) -> Delivery | None:
        """Wait, idle, for a delivery; None ends the thread."""
        return self._handover.get()

    def arrived(self) -> None:
        """Have a thread that is looking just now look again: something was notified of."""
        with self._lock:
            self._arrivals += 1

    def arrivals(self) -> int:
        """Return what to compare with after looking; see `turn_idle`."""
        return self._arrivals

    def turn_idle(self, arrivals: int) -> bool:
        """Mark the calling thread idle, unless something arrived since: then it looks again."""
        with self._lock:
            if arrivals != self._arrivals and not self.stopping.is_set():
                return False
            self._idle += 1
            return True

    def expect(self, seconds: float) -> None:
        """Expect a message to become visible then; nobody will notify of it."""
        due_at = time.monotonic() + seconds
        with self._lock:
            sooner = self._due_at is None or due_at < self._due_at
            if sooner:
                self._due_at = due_at
        if sooner:
            self._wake()

    def until_expected(self, wait: float) -> float:
        """Return the wait, cut short where something is expected before its end."""
        with self._lock:
            if self._due_at is not None:
                wait = min(wait, self._due_at - time.monotonic())
        return max(0.0, wait)
