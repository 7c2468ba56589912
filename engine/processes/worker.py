"""A worker: one thread that takes messages, several that perform them.

The taking thread sleeps until it is notified, a message becomes visible, or
`polling_interval` passes; then it takes as many messages as there are idle threads. A
thread that is done with one takes its next itself, so that a busy worker needs nobody
to hand it work.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from pgbus.engine.definition import registry
from pgbus.engine.processes.crew import Crew
from pgbus.engine.processes.ending import run_until_told
from pgbus.engine.processes.in_flight import Heartbeat, InFlight
from pgbus.engine.processes.intake import Intake
from pgbus.engine.processes.listening import Listening
from pgbus.engine.processes.lost_claims import LostClaims
from pgbus.engine.processes.performer import Performer, start
from pgbus.engine.processes.presence import BEAT_EVERY, Presence
from pgbus.engine.processes.queue_list import QueueList
from pgbus.engine.processes.readiness import outdated_by, wait_until_ready
from pgbus.engine.storage import claims, messages
from pgbus.engine.storage.claims import Idle
from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from pgbus.engine.bus import Pgbus
    from pgbus.engine.definition.step import Step
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.worker")

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
        self._database = bus.services.database
        self._polling = min(settings.polling_interval.total_seconds(), BEAT_EVERY)
        self._in_flight = InFlight()
        self._listening = Listening(settings, self._database)
        self._presence = Presence("worker", settings.app_revision, self._details)
        self._crew = Crew(settings.threads, self._listening.wake)
        self._intake = Intake(
            claims.Worker(self._presence.name, settings.app_revision, _unguarded()),
            QueueList(settings, settings.queues or bus.known_queues()),
            self._in_flight,
            self._listening,
            self._presence,
            visibility=round(settings.visibility_timeout.total_seconds()),
            polling=self._polling,
        )
        self._performers = [
            Performer(bus.services, self._crew, self._intake, self._in_flight)
            for _ in range(settings.threads)
        ]
        self._claims = LostClaims(
            self._intake.worker, self._presence.process_id, self._performers, self._in_flight
        )

    def run(self) -> None:
        """Serve until `stop`; then wait for bodies, at most `shutdown_timeout`.

        Raise `SchemaOutdated` when the database is not migrated to this code, or is to another meanwhile.
        """
        # The queues of all steps: a run that this worker moves on may go to one it does not serve.
        steps = map(self._bus.services.queue_of, _declared_steps())
        queues = {*self._intake.queues.wanted(), *steps}
        try:
            if wait_until_ready(self._bus, stop=self._crew.stopping, queues=queues):
                self._serve()
        finally:
            self._listening.close()
        if self._crew.outdated is not None:
            raise self._crew.outdated

    def stop(self) -> None:
        """Take nothing more; `run` returns when what runs has ended. Safe in a signal handler."""
        self._crew.stopping.set()
        self._listening.wake()

    def _serve(self) -> None:
        settings = self._bus.settings
        # Known before its first claim: what was claimed under its name earlier is not its own.
        self._database.persistently(self._presence.beat_when_due, stop=self._crew.stopping)
        heartbeat = Heartbeat(settings, self._database, self._in_flight)
        threads = start(self._performers)
        if settings.visibility_heartbeat:
            heartbeat.start()
        _log.info("Worker %s serves with %d threads.", self._presence.name, settings.threads)
        try:
            while not self._crew.stopping.is_set():
                self._turn()
        finally:
            self._crew.stopping.set()
            self._shut_down(threads)
            if settings.visibility_heartbeat:
                heartbeat.stop()

    def _turn(self) -> None:
        """Take for the idle threads, then wait for a reason to take again.

        Wait out an outage. What else goes wrong (a queue was dropped, say) must not end the
        thread that all others wait for.
        """
        stopping = self._crew.stopping
        try:
            wait = self._database.persistently(self._take_for_the_idle, stop=stopping)
        except Exception as error:  # noqa: BLE001 (see above)
            if stopping.is_set() and is_passing(error):
                return
            _log.exception("Taking messages failed; it is tried again.")
            outdated = outdated_by(self._bus, error)
            if outdated is not None:
                self._crew.give_up(outdated)
                return
            self._intake.forget_queues()
            wait = _AFTER_FAILURE
        if wait > 0 and (notified := self._listening.wait(self._crew.until_expected(wait))):
            self._intake.notice(notified)
            self._crew.arrived()

    def _take_for_the_idle(self, connection: Connection) -> float:
        """Hand messages to the idle threads, and return the seconds until the next look."""
        idle = self._crew.idle()
        if self._claims.suspected(self._database.failures):
            self._crew.hand_over(self._claims.find(connection))
        if idle <= 0:
            self._intake.refresh(connection)
            self._presence.beat_when_due(connection)
            return self._polling
        taken = self._intake.take(connection, idle)
        if isinstance(taken, Idle):
            return self._wait_after(connection, taken)
        self._crew.hand_over(taken)
        return 0.0

    def _wait_after(self, connection: Connection, idle: Idle) -> float:
        """Return seconds to sleep after finding nothing; send the timer's messages in passing."""
        due = [self._polling]
        if idle.next_send is not None:
            due.append(idle.next_send - _SEND_AHEAD)
            if due[-1] <= 0:
                # What another transaction has locked is not sent, and not to be waited for.
                sent = messages.send_due(connection, _SEND_DUE_LIMIT)
                due[-1] = 0.0 if sent else self._polling
        if idle.next_visible is not None:
            due.append(idle.next_visible)
        return min(due)

    def _shut_down(self, threads: list[threading.Thread]) -> None:
        _log.info(
            "Worker %s takes nothing more; in hand: %s",
            self._presence.name,
            self._in_flight.running() or "nothing",
        )
        deadline = time.monotonic() + self._bus.settings.shutdown_timeout.total_seconds()
        self._crew.dismiss(len(threads))
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = self._in_flight.running()
        if left:
            _log.warning("Stopped with work in hand, left to redelivery: %s", left)
        self._presence.leave_if_possible(self._database)
        _log.info("Worker %s stopped.", self._presence.name)

    def _details(self) -> dict[str, Any]:
        return {
            "queues": sorted(self._intake.queues.physical),
            "threads": len(self._performers),
            "listening": self._listening.works,
            "running": self._in_flight.running(),
        }


def run_worker(bus: Pgbus, *, supervisor: int | None = None) -> int:
    """Run a worker in the foreground until SIGTERM or SIGINT; a second one ends it at once.

    `supervisor` is the pid of the parent, without which it stops too.
    """
    return run_until_told(Worker(bus), supervisor)


def _declared_steps() -> Iterator[Step]:
    for definition in registry.definitions():
        yield from definition.steps


def _unguarded() -> list[str]:
    """Return what may be claimed without asking guards: the steps that this process declares so."""
    return [
        f"{definition.name}#{step.name}"
        for definition in registry.definitions()
        for step in definition.steps
        if not definition.guarded(step)
    ]
