"""The dispatcher: what is nobody's message. Any number may run; each task is shared safely."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.errors import SchemaOutdated
from pgbus.engine.processes.ending import run_until_told
from pgbus.engine.processes.presence import Presence
from pgbus.engine.processes.readiness import wait_until_ready
from pgbus.engine.storage import claims, messages, processes
from pgbus.engine.storage.database import is_passing
from pgbus.engine.sweep.tasks import Sweep

if TYPE_CHECKING:
    from pgbus.engine.bus import Pgbus
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.dispatcher")

#: Seconds between two looks at the timer.
_TICK = 1.0
#: Seconds between two looks at a database that is not migrated.
_UNMIGRATED_TICK = 5.0
_SEND_DUE_LIMIT = 1_000


class Dispatcher:
    """Sends the messages of steps that come due, reaps processes that stopped beating, and sweeps."""

    def __init__(self, bus: Pgbus) -> None:
        self._bus = bus
        self._stopping = threading.Event()
        self._presence = Presence("dispatcher", bus.settings.app_revision, dict)
        worker = claims.Worker(self._presence.name, bus.settings.app_revision)
        self._sweep = Sweep(bus.services, worker, self._stopping.is_set)

    def run(self) -> None:
        """Work until `stop`; one failed task is tried again at the next tick."""
        database = self._bus.services.database
        if not self._ready():
            return
        # The timer does not wait for a sweep.
        sweeping = threading.Thread(target=self._sweep_until_told, name="pgbus-sweep", daemon=True)
        sweeping.start()
        while not self._stopping.is_set():
            try:
                database.persistently(self._tick, stop=self._stopping)
            except Exception as error:  # noqa: BLE001 (a failed task is tried again; it must not end the process)
                if not (self._stopping.is_set() and is_passing(error)):
                    _log.exception("The dispatcher failed; it tries again.")
            self._stopping.wait(_TICK)
        # A repair may wait for a database that is away; it is safe to leave.
        sweeping.join(self._bus.settings.shutdown_timeout.total_seconds())
        self._presence.leave_if_possible(database)

    def _sweep_until_told(self) -> None:
        while not self._stopping.is_set():
            self._sweep.tick()
            self._stopping.wait(_TICK)

    def _ready(self) -> bool:
        """Idle until the database is migrated, and say so once; False when told to stop before."""
        said = False
        # A repair may schedule a step on any queue.
        queues = {
            self._bus.services.queue_of(step)
            for definition in registry.definitions()
            for step in definition.steps
        }
        while not self._stopping.is_set():
            try:
                return wait_until_ready(self._bus, stop=self._stopping, queues=queues)
            except SchemaOutdated as error:
                if not said:
                    _log.warning("%s The dispatcher idles until then.", error)
                said = True
            self._stopping.wait(_UNMIGRATED_TICK)
        return False

    def stop(self) -> None:
        """Let `run` return soon."""
        self._stopping.set()

    def _tick(self, connection: Connection) -> None:
        while messages.send_due(connection, _SEND_DUE_LIMIT) == _SEND_DUE_LIMIT:
            pass
        if self._presence.due_in() <= 0:
            self._presence.beat_when_due(connection)
            for process in processes.reap(connection):
                _log.warning("%s stopped beating and was reaped.", process)


def run_dispatcher(bus: Pgbus, *, supervisor: int | None = None) -> int:
    """Run a dispatcher in the foreground until SIGTERM or SIGINT; a second one ends it at once.

    `supervisor` is the pid of the parent, without which it stops too.
    """
    return run_until_told(Dispatcher(bus), supervisor)
