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

from pgbus.engine.definition import registry
from pgbus.engine.jobs import execute as jobs
from pgbus.engine.processes.ending import stop_on_signals, stop_with_supervisor
from pgbus.engine.processes.in_flight import Heartbeat, InFlight
from pgbus.engine.processes.listening import Listening
from pgbus.engine.processes.presence import BEAT_EVERY, Presence
from pgbus.engine.processes.queue_list import QueueList
from pgbus.engine.processes.readiness import wait_until_ready
from pgbus.engine.runner.perform import perform
from pgbus.engine.storage import messages, transitions
from pgbus.engine.storage.database import is_passing
from pgbus.engine.storage.transitions import Delivery, Idle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.bus import Pgbus
    from pgbus.engine.definition.step import Step
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.worker")

#: Seconds between two looks at which queues exist; a notification of a new one comes before.
_QUEUES_EVERY = 30.0
_SEND_DUE_LIMIT = 500
#: Seconds before its time from which on the timer sends a step's message.
_SEND_AHEAD = 1.0
#: Seconds until a taking thread that failed for a reason of its own tries again.
_AFTER_FAILURE = 1.0


class Worker:
    """Serves the queues of one bus with `threads` threads until `stop` is called."""

    def __init__(self, bus: Pgbus) -> None:
        settings = bus.settings
        self._bus = bus
        self._services = bus.services
        self._threads = settings.threads
        self._polling = min(settings.polling_interval.total_seconds(), BEAT_EVERY)
        self._visibility = round(settings.visibility_timeout.total_seconds())
        self._in_flight = InFlight()
        self._listening = Listening(settings, bus.services.database)
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
        # The queues of all steps: a run that this worker moves on may go to one it does not serve.
        queues = {*self._queues.wanted(), *map(self._services.queue_of, _declared_steps())}
        try:
            if wait_until_ready(self._bus, give_up=self._stopping.is_set, queues=queues):
                self._serve()
        finally:
            self._listening.close()

    def _serve(self) -> None:
        heartbeat = Heartbeat(self._bus.settings, self._services.database, self._in_flight)
        threads = [
            threading.Thread(target=self._perform_until_stopped, name=f"pgbus-{n}", daemon=True)
            for n in range(1, self._threads + 1)
        ]
        for thread in threads:
            thread.start()
        if self._bus.settings.visibility_heartbeat:
            heartbeat.start()
        _log.info("Worker %s serves with %d threads.", self._presence.name, self._threads)
        try:
            while not self._stopping.is_set():
                self._turn()
        finally:
            self._stopping.set()
            self._shut_down(threads)
            if self._bus.settings.visibility_heartbeat:
                heartbeat.stop()

    def stop(self) -> None:
        """Takes nothing more; `run` returns when what runs has ended. Safe in a signal handler."""
        self._stopping.set()
        self._listening.wake()

    # the taking thread -------------------------------------------------------------------

    def _turn(self) -> None:
        """Takes for the idle threads, then waits for a reason to take again.

        Waits out an outage. What else goes wrong (a queue was dropped, say) must not end the
        thread that all others wait for.
        """
        try:
            wait = self._services.database.persistently(
                self._take_for_the_idle, give_up=self._stopping.is_set
            )
        except Exception as error:  # noqa: BLE001 (see above)
            if self._stopping.is_set() and is_passing(error):
                return
            _log.exception("Taking messages failed; it is tried again.")
            self._queues_read_at = None
            wait = _AFTER_FAILURE
        if wait > 0:
            self._note(self._listening.wait(self._capped(wait)))

    def _take_for_the_idle(self, connection: Connection) -> float:
        """Hands messages to the idle threads; returns the seconds to wait before the next look."""
        with self._lock:
            idle = self._idle
            self._due_at = None
        if not idle:
            self._presence.beat_when_due(connection)
            return self._polling
        taken = self._take(connection, idle)
        if isinstance(taken, Idle):
            return self._wait_after(connection, taken)
        self._hand_over(taken)
        return 0.0

    def _wait_after(self, connection: Connection, idle: Idle) -> float:
        """Seconds to sleep after finding nothing; the timer's messages are sent in passing."""
        due = [self._polling]
        if idle.next_send is not None:
            due.append(idle.next_send - _SEND_AHEAD)
            if due[-1] <= 0:
                # What another transaction has locked is not sent, and not to be waited for.
                sent = transitions.send_due(connection, _SEND_DUE_LIMIT)
                due[-1] = 0.0 if sent else self._polling
        if idle.next_visible is not None:
            due.append(idle.next_visible)
        return min(due)

    def _note(self, notified: set[str]) -> None:
        """Remembers that something arrived, for the threads that are looking just now."""
        if not notified:
            return
        if any(queue not in self._queues.physical and self._queues.may_be_mine(queue)
               for queue in notified):  # fmt: skip
            self._queues_read_at = None
        with self._lock:
            self._arrivals += 1

    def _capped(self, wait: float) -> float:
        with self._lock:
            if self._due_at is not None:
                wait = min(wait, self._due_at - time.monotonic())
        return max(0.0, wait)

    def _take(self, connection: Connection, quantity: int) -> list[Delivery] | Idle:
        if self._queues_are_old():
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

    def _queues_are_old(self) -> bool:
        """Whether to ask which queues exist; unless it is notified of new ones, whenever it polls."""
        every = _QUEUES_EVERY if self._listening.works else self._polling
        read_at = self._queues_read_at
        return read_at is None or time.monotonic() >= read_at + every

    def _read_queues(self, connection: Connection) -> None:
        # Noted before: a queue that is notified of from now on may not be in the answer.
        self._queues_read_at = time.monotonic()
        try:
            self._queues.update(messages.queues(connection))
        except BaseException:
            self._queues_read_at = None
            raise

    def _mine(self, taken: list[Delivery] | Idle) -> list[Delivery] | Idle:
        """Leaves out what this very worker has in hand: its heartbeat was late, it is not dead."""
        if isinstance(taken, Idle):
            return taken
        for delivery in taken:
            if delivery in self._in_flight:
                _log.warning("Message %d of %s came again while it is in hand; its heartbeat was late.",
                             delivery.message_id, delivery.queue)  # fmt: skip
        return [delivery for delivery in taken if delivery not in self._in_flight]

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
            with self._services.database.autocommit() as connection:
                return self._take(connection, 1)
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
        """Works on one message; whatever that raises, the thread and the worker live on."""
        if self._stopping.is_set() and delivery.verdict != "claimed":
            self._give_back(delivery, seconds=0)
            return
        try:
            with self._in_flight.holding(delivery):
                self._work_on(delivery)
        except (KeyboardInterrupt, SystemExit):
            _log.warning("Message %d of %s is left to redelivery: its code asked the process to end.",
                         delivery.message_id, delivery.queue)  # fmt: skip
        except BaseException as error:  # noqa: BLE001 (the message is delivered again)
            _log.exception(
                "Message %d of %s was not finished.", delivery.message_id, delivery.queue
            )
            if is_passing(error) and delivery.verdict != "claimed":
                self._give_back(delivery, seconds=1)

    def _work_on(self, delivery: Delivery) -> None:
        if delivery.verdict == "job":
            jobs.execute(self._services, delivery)
            return
        due_in = perform(self._services, self._worker, delivery, stopping=self._stopping.is_set)
        if due_in is not None:
            self._expect(due_in)

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
        _log.info(
            "Worker %s takes nothing more; in hand: %s",
            self._presence.name,
            self._in_flight.running() or "nothing",
        )
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
        """Lets another worker have the message, or this one once more."""

        def give_back(connection: Connection) -> None:
            messages.set_visible_in(connection, delivery.queue, delivery.message_id, seconds)
            messages.notify(connection, self._bus.settings.schema, delivery.queue)

        try:
            self._services.database.persistently(give_back, give_up=self._stopping.is_set)
        except Exception:  # noqa: BLE001 (it comes again by itself, a visibility timeout later)
            _log.exception(
                "Message %d of %s was not given back.", delivery.message_id, delivery.queue
            )

    def _details(self) -> dict[str, Any]:
        return {
            "queues": sorted(self._queues.physical),
            "threads": self._threads,
            "listening": self._listening.works,
            "running": self._in_flight.running(),
        }


def run_worker(bus: Pgbus, *, supervisor: int | None = None) -> int:
    """Runs a worker in the foreground until SIGTERM or SIGINT; a second one ends it at once.

    `supervisor` is the pid of the parent, without which it stops too.
    """
    worker = Worker(bus)
    stop_on_signals(worker.stop)
    if supervisor is not None:
        stop_with_supervisor(worker.stop, supervisor)
    worker.run()
    return 0


def _declared_steps() -> Iterator[Step]:
    for definition in registry.definitions():
        yield from definition.steps


def _unguarded() -> list[str]:
    """What may be claimed without asking guards: the steps that this process declares so."""
    return [
        f"{definition.name}#{step.name}"
        for definition in registry.definitions()
        for step in definition.steps
        if not definition.guarded(step)
    ]
