"""What a worker runs just now, and the heartbeat that keeps its messages to itself."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import PayloadError
from pgbus.engine.jobs import envelope
from pgbus.engine.storage import messages

if TYPE_CHECKING:
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.database import Connection, Database

_log = logging.getLogger("pgbus.worker")

_LONGEST_NAME = 300


@dataclass(frozen=True, slots=True)
class Running:
    """One message being worked on: a run's step or a job."""

    delivery: Delivery
    began: float


class InFlight:
    """The messages this worker has in hand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Running] = {}

    def __contains__(self, delivery: Delivery) -> bool:
        return _key(delivery) in self._running

    def hold(self, delivery: Delivery) -> bool:
        """Take the delivery's message in hand; False when it is already."""
        running = Running(delivery, time.monotonic())
        with self._lock:
            return self._running.setdefault(_key(delivery), running) is running

    def release(self, delivery: Delivery) -> None:
        """Let go of it."""
        with self._lock:
            self._running.pop(_key(delivery), None)

    def by_queue(self) -> dict[str, list[int]]:
        """Return the ids of the messages in hand, by queue."""
        with self._lock:
            keys = list(self._running)
        queues: dict[str, list[int]] = {}
        for queue, message_id in keys:
            queues.setdefault(queue, []).append(message_id)
        return queues

    def running(self) -> list[dict[str, Any]]:
        """Return what is in hand, and for how long, for people."""
        now = time.monotonic()
        with self._lock:
            held = list(self._running.values())
        return [
            {
                **_told(one.delivery),
                "seconds": round(now - one.began, 1),
                "queue": one.delivery.queue,
            }
            for one in held
        ]


def _told(delivery: Delivery) -> dict[str, Any]:
    """Return what a delivery is; the name that a job's message gives, which may be any text, in part."""
    if delivery.workflow_id:
        return {"what": f"{delivery.workflow_class} {delivery.workflow_id}"}
    try:
        job = envelope.job_name(delivery.body or "null")[:_LONGEST_NAME]
    except PayloadError:
        job = None
    return {"what": "job", "job": job, "message_id": delivery.message_id}


def _key(delivery: Delivery) -> tuple[str, int]:
    return delivery.queue, delivery.message_id


class Heartbeat:
    """A thread that keeps the messages in hand invisible, three times per visibility timeout.

    It needs the interpreter: a body that holds the GIL for most of a timeout starves it.
    That is said in the log, with what ran.
    """

    def __init__(self, settings: Settings, database: Database, in_flight: InFlight) -> None:
        self._visibility = settings.visibility_timeout.total_seconds()
        self._database = database
        self._in_flight = in_flight
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgbus-heartbeat", daemon=True)

    def start(self) -> None:
        """Start to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; what is still in hand is delivered again in time."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        every = self._visibility / 3
        beaten_at = time.monotonic()
        while not self._stopped.wait(every - min(every, time.monotonic() - beaten_at)):
            late = time.monotonic() - beaten_at - every
            if late > every:
                _log.warning(
                    "The heartbeat was %.1f s late: something held the interpreter (the GIL). With "
                    "visibility_timeout at %g s another worker takes such messages for a dead "
                    "worker's. In hand: %s",
                    late,
                    self._visibility,
                    self._in_flight.running(),
                )
            beaten_at = time.monotonic()
            for queue, message_ids in self._in_flight.by_queue().items():
                self._keep_invisible(queue, message_ids)

    def _keep_invisible(self, queue: str, message_ids: list[int]) -> None:
        def keep(connection: Connection) -> None:
            messages.keep_invisible(connection, queue, message_ids, round(self._visibility))

        try:
            self._database.persistently(keep, stop=self._stopped)
        except Exception:  # noqa: BLE001 (a heartbeat that ends would lose every message in hand)
            _log.exception("The heartbeat of %s failed; it is tried again.", queue)
