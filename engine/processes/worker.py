"""A worker: one thread that takes messages, several that perform them.

The taking thread sleeps until it is notified, a message becomes visible, or
`polling_interval` passes; then it takes as many messages as there are idle threads. A
thread that is done with one takes its next itself, so that a busy worker needs nobody
to hand it work.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import sqlalchemy.exc

from pgbus.engine.definition import registry
from pgbus.engine.jobs import execute as jobs
from pgbus.engine.processes.ending import stop_on_signals, stop_with_supervisor
from pgbus.engine.processes.in_flight import Heartbeat, InFlight
from pgbus.engine.processes.listening import Listening
from pgbus.engine.processes.presence import Presence
from pgbus.engine.processes.queue_list import QueueList
from pgbus.engine.runner.perform import perform
from pgbus.engine.storage import messages, transitions
from pgbus.engine.storage.database import is_passing
from pgbus.engine.storage.transitions import Delivery, Idle

if TYPE_CHECKING:
    from pgbus.engine.bus import Pgbus
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.worker")

#: Seconds between two looks at which queues exist.
_QUEUES_EVERY = 30.0
_SEND_DUE_LIMIT = 500


class Worker:
    """Serves the queues of one bus with `threads` threads until `stop` is called."""

    def __init__(self, bus: Pgbus) -> None:
        settings = bus.settings
        self._bus = bus
        self._services = bus.services
        self._threads = settings.threads
        self._polling = settings.polling_interval.total_seconds()
        self._visibility = round(settings.visibility_timeout.total_seconds())
        self._in_flight = InFlight()
        self._listening = Listening(settings)
        self._presence = Presence("worker", settings.app_revision, self._details)
        self._queues = QueueList(settings, settings.queues or bus.known_queues())
        self._queues_read_at: float | None = None
        self._worker = transitions.Worker(self._presence.name, settings.app_revision, _unguarded())
        self._stopping = threading.Event()
        self._handover: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = settings.threads
        self._arrivals = 0
        self._due_at: float | None = None

    def run(self) -> None:
        """Serves until `stop`; then waits for bodies, at most `shutdown_timeout`."""
        self._bus.check_schema()
        self._bus.ensure_queues(self._queues.wanted())
        heartbeat = Heartbeat(self._bus.settings, self._services.database, self._in_flight)
        if self._bus.settings.visibility_heartbeat:
            heartbeat.start()
        threads = [
            threading.Thread(target=self._perform_until_stopped, name=f"pgbus-{n}", daemon=True)
            for n in range(1, self._threads + 1)
        ]
        for thread in threads:
            thread.start()
        _log.info("Worker %s serves with %d threads.", self._presence.name, self._threads)
        try:
            while not self._stopping.is_set():
                self._turn()
        finally:
            self._stopping.set()
            self._shut_down(threads)
            if self._bus.settings.visibility_heartbeat:
                heartbeat.stop()
            self._listening.close()

    def stop(self) -> None:
        """Takes nothing more; `run` returns when what runs has ended. Safe in a signal handler."""
        self._stopping.set()
        self._listening.wake()

    # the taking thread -------------------------------------------------------------------

    def _turn(self) -> None:
        """Takes for the idle threads, then waits for a reason to take again."""
        with self._lock:
            idle = self._idle
            self._due_at = None
        wait = self._polling
        try:
            if idle:
                taken = self._take(idle)
                if isinstance(taken, list):
                    self._hand_over(taken)
                    return
                wait = self._wait_after(taken)
            else:
                self._beat_when_due()
        except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
            if not is_passing(error):
                raise
            _log.warning("PostgreSQL does not answer (%s); trying on.", error)
            self._services.database.persistently(self._read_queues, give_up=self._stopping.is_set)
            return
        if self._listening.wait(self._capped(wait)):
            with self._lock:
                self._arrivals += 1

    def _wait_after(self, idle: Idle) -> float:
        """Seconds to sleep after finding nothing; the timer's messages are sent in passing."""
        wait = self._polling
        if idle.next_send is not None and idle.next_send < self._polling:
            with self._services.database.autocommit() as connection:
                transitions.send_due(connection, _SEND_DUE_LIMIT)
            return 0.0
        if idle.next_visible is not None:
            wait = min(wait, idle.next_visible)
        return wait

    def _capped(self, wait: float) -> float:
        with self._lock:
            if self._due_at is not None:
                wait = min(wait, self._due_at - time.monotonic())
        return max(0.0, wait)

    def _take(self, quantity: int) -> list[Delivery] | Idle:
        with self._services.database.autocommit() as connection:
            if (
                self._queues_read_at is None
                or time.monotonic() > self._queues_read_at + _QUEUES_EVERY
            ):
                self._read_queues(connection)
            beat = self._presence.parameters() if self._presence.due_in() <= 0 else None
            return self._mine(
                transitions.take(
                    connection,
                    self._worker,
                    queues=self._queues.next_order(),
                    quantity=quantity,
                    visibility=self._visibility,
                    beat=beat,
                )
            )

    def _mine(self, taken: list[Delivery] | Idle) -> list[Delivery] | Idle:
        """Leaves out what this very worker has in hand: its heartbeat was late, it is not dead."""
        if isinstance(taken, Idle):
            return taken
        for delivery in taken:
            if delivery in self._in_flight:
                _log.warning("Message %d of %s came again while it is in hand; its heartbeat was late.",
                             delivery.message_id, delivery.queue)  # fmt: skip
        return [delivery for delivery in taken if delivery not in self._in_flight]

    def _read_queues(self, connection: Connection) -> None:
        self._queues.update(messages.queues(connection))
        self._queues_read_at = time.monotonic()

    def _beat_when_due(self) -> None:
        if self._presence.due_in() <= 0:
            with self._services.database.autocommit() as connection:
                self._presence.beat_when_due(connection)

    def _hand_over(self, taken: list[Delivery]) -> None:
        with self._lock:
            self._idle -= len(taken)
        for delivery in taken:
            self._handover.put(delivery)

    # the performing threads --------------------------------------------------------------

    def _perform_until_stopped(self) -> None:
        with self._services.database.held():
            while (handed := self._handover.get()) is not None:
                following: Delivery | None = handed
                while following is not None:
                    self._perform(following)
                    following = self._next_at_once()

    def _next_at_once(self) -> Delivery | None:
        """The next message, taken by this thread itself; None, and idle, when there is none."""
        while True:
            with self._lock:
                arrivals = self._arrivals
            taken = Idle(None, None) if self._stopping.is_set() else self._try_to_take()
            if taken and isinstance(taken, list):
                return taken[0]
            if isinstance(taken, Idle) and self._turned_idle(arrivals):
                if taken.next_visible is not None:
                    self._expect(taken.next_visible)
                return None

    def _try_to_take(self) -> list[Delivery] | Idle:
        try:
            return self._take(1)
        except Exception as error:  # noqa: BLE001 (a thread that ends would be missed; polling goes on)
            if not is_passing(error):
                _log.exception("Taking a message failed; the worker polls on.")
            return Idle(None, None)

    def _turned_idle(self, arrivals: int) -> bool:
        """Marks this thread idle, unless a notification came since it looked: look again then."""
        with self._lock:
            if arrivals != self._arrivals and not self._stopping.is_set():
                return False
            self._idle += 1
            return True

    def _perform(self, delivery: Delivery) -> None:
        if self._stopping.is_set() and delivery.verdict != "claimed":
            self._give_back(delivery, seconds=0)
            return
        with self._in_flight.holding(delivery):
            try:
                if delivery.verdict == "job":
                    jobs.execute(self._services, delivery)
                    return
                due_in = perform(
                    self._services, self._worker, delivery, stopping=self._stopping.is_set
                )
                if due_in is not None:
                    self._expect(due_in)
            except (KeyboardInterrupt, SystemExit):
                _log.warning("Message %d of %s is left to redelivery: its code asked the process to end.",
                             delivery.message_id, delivery.queue)  # fmt: skip
            except Exception as error:  # noqa: BLE001 (one message must not end its thread; it is delivered again)
                _log.exception(
                    "Message %d of %s was not finished.", delivery.message_id, delivery.queue
                )
                if is_passing(error) and delivery.verdict != "claimed":
                    self._give_back(delivery, seconds=1)

    def _expect(self, due_in: float) -> None:
        """A message that this worker sent comes due: nobody will notify it of that."""
        due_at = time.monotonic() + due_in
        with self._lock:
            if self._due_at is None or due_at < self._due_at:
                self._due_at = due_at
        if due_in < self._polling:
            self._listening.wake()

    # the end -----------------------------------------------------------------------------

    def _shut_down(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + self._bus.settings.shutdown_timeout.total_seconds()
        for _ in threads:
            self._handover.put(None)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = self._in_flight.running()
        if left:
            _log.warning("Stopped with work in hand, left to redelivery: %s", left)
        try:
            with self._services.database.autocommit() as connection:
                self._presence.leave(connection)
        except Exception:  # noqa: BLE001 (it ends all the same)
            _log.exception("The worker's row stays until it is reaped.")
        _log.info("Worker %s stopped.", self._presence.name)

    def _give_back(self, delivery: Delivery, *, seconds: float) -> None:
        self._services.database.persistently(
            lambda connection: messages.set_visible_in(
                connection, delivery.queue, delivery.message_id, seconds
            ),
            give_up=self._stopping.is_set,
        )

    def _details(self) -> dict[str, Any]:
        return {
            "queues": sorted(self._queues.physical),
            "threads": self._threads,
            "listening": self._listening.works,
            "running": self._in_flight.running(),
        }


def run_worker(bus: Pgbus, *, supervised: bool = False) -> int:
    """Runs a worker in the foreground until SIGTERM or SIGINT; a second one ends it at once."""
    worker = Worker(bus)
    stop_on_signals(worker.stop)
    if supervised:
        stop_with_supervisor(worker.stop)
    worker.run()
    return 0


def _unguarded() -> list[str]:
    """What may be claimed without asking guards: the steps that this process declares so."""
    return [
        f"{definition.name}#{step.name}"
        for definition in registry.definitions()
        for step in definition.steps
        if not definition.guarded(step)
    ]
