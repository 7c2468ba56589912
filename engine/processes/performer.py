"""A performing thread: one message after the other, each taken with the end of the one before."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pgbus.engine.errors import RunLocked
from pgbus.engine.jobs import execute as jobs
from pgbus.engine.processes.readiness import outdated_by
from pgbus.engine.runner.perform import perform
from pgbus.engine.storage import messages
from pgbus.engine.storage.claims import ClaimVerdict, Idle
from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    from pgbus.engine.processes.crew import Crew
    from pgbus.engine.processes.in_flight import InFlight
    from pgbus.engine.processes.intake import Intake
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Delivery, Taking
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.worker")


class Performer:
    """One thread of a worker.

    `awaited` counts the statements that may claim something: it is odd while the answer of
    one is awaited, or what it claimed is not in hand yet.
    """

    def __init__(self, services: Services, crew: Crew, intake: Intake, in_flight: InFlight) -> None:
        self.awaited = 0
        self._services = services
        self._crew = crew
        self._intake = intake
        self._in_flight = in_flight
        self._arrivals = 0

    def run(self) -> None:
        """Perform what is handed over, and what follows, until it is dismissed."""
        with self._services.database.held():
            while (handed := self._crew.handed()) is not None:
                following: Delivery | None = handed
                while following is not None:
                    following = self._next(self._perform(following))

    def _next(self, taken: list[Delivery] | Idle | None) -> Delivery | None:
        """Return the next message, taken already or now; None, and idle, when there is none."""
        while True:
            if taken is None:
                taken = self._take()
            if isinstance(taken, Idle):
                if self._crew.turn_idle(self._arrivals):
                    if taken.next_visible is not None:
                        self._crew.expect(taken.next_visible)
                    return None
            elif taken:
                return taken[0]
            taken = None

    def _take(self) -> list[Delivery] | Idle:
        if self._crew.stopping.is_set():
            return Idle(None, None)
        self._await_answer()
        try:
            with self._services.database.autocommit() as connection:
                return self._intake.take(connection, 1)
        except Exception as error:  # noqa: BLE001 (a thread that ends would be missed; polling goes on)
            if is_passing(error):
                self._services.database.failed(error)
            else:
                _log.exception("Taking a message failed; the worker polls on.")
                self._give_up_if_outdated(error)
            return Idle(None, None)
        finally:
            self._answered()

    def _perform(self, delivery: Delivery) -> list[Delivery] | Idle | None:
        """Work on one message, whatever that raises, and return what was taken at its end."""
        try:
            if self._crew.stopping.is_set() and delivery.verdict is not ClaimVerdict.CLAIMED:
                self._give_back(delivery, seconds=0)
                return None
            return self._work_on(delivery)
        except (KeyboardInterrupt, SystemExit):
            _log.warning("Message %d of %s is left to redelivery: its code asked the process to end.",
                         delivery.message_id, delivery.queue)  # fmt: skip
        except BaseException as error:  # noqa: BLE001 (the message is delivered again)
            _log.exception(
                "Message %d of %s was not finished.", delivery.message_id, delivery.queue
            )
            self._give_up_if_outdated(error)
            if delivery.verdict is not ClaimVerdict.CLAIMED and (
                isinstance(error, RunLocked) or is_passing(error)
            ):
                self._give_back(delivery, seconds=1)
        finally:
            self._in_flight.release(delivery)
            self._answered()
        return None

    def _give_up_if_outdated(self, error: BaseException) -> None:
        """Run no further body whose end could not be recorded either."""
        outdated = outdated_by(self._services.bus, error)
        if outdated is not None:
            self._crew.give_up(outdated)

    def _work_on(self, delivery: Delivery) -> list[Delivery] | Idle | None:
        if delivery.is_job:
            jobs.execute(self._services, delivery)
            return None
        performed = perform(
            self._services,
            self._intake.worker,
            delivery,
            stopping=self._crew.stopping.is_set,
            taking=self._taking,
        )
        if performed.due_in is not None:
            self._crew.expect(performed.due_in)
        return None if performed.taken is None else self._intake.received(performed.taken)

    def _taking(self) -> Taking | None:
        """Return what to take with the statement that ends a run's stretch.

        None when told to stop.
        """
        if self._crew.stopping.is_set():
            return None
        self._await_answer()
        return self._intake.taking()

    def _await_answer(self) -> None:
        self._arrivals = self._crew.arrivals()
        if self.awaited % 2 == 0:
            self.awaited += 1

    def _answered(self) -> None:
        if self.awaited % 2 == 1:
            self.awaited += 1

    def _give_back(self, delivery: Delivery, *, seconds: float) -> None:
        """Let another worker have the message, or this one once more."""
        database = self._services.database

        def give_back(connection: Connection) -> None:
            messages.set_visible_in(connection, delivery.queue, delivery.message_id, seconds)
            messages.notify(connection, database.schema, delivery.queue)

        try:
            database.persistently(give_back, stop=self._crew.stopping)
        except Exception:  # noqa: BLE001 (it comes again by itself, a visibility timeout later)
            _log.exception(
                "Message %d of %s was not given back.", delivery.message_id, delivery.queue
            )


def start(performers: list[Performer]) -> list[threading.Thread]:
    """Start a thread for each."""
    threads = [
        threading.Thread(target=performer.run, name=f"pgbus-{number}", daemon=True)
        for number, performer in enumerate(performers, 1)
    ]
    for thread in threads:
        thread.start()
    return threads
