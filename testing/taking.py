"""A run's own message, taken out of turn and performed the way a worker does it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from pgbus.engine.runner import perform as runner
from pgbus.engine.storage.claims import ClaimVerdict, Delivery, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.runner.run import Run
    from pgbus.engine.runner.services import Services

T = TypeVar("T")

#: Who moves a run here, on its trail.
ACTOR = "test_helpers"

#: Keeps the message from other readers; no row when it is gone.
_HOLD = """
SELECT read_ct FROM pgmq.set_vt(CAST(:queue AS text), CAST(:message_id AS bigint), CAST(:seconds AS integer))
"""


def services_of(run: Run) -> Services:
    """Return the parts of the run's bus."""
    return run._services  # noqa: SLF001 (the engine's own half of the handle)


def worker_of(services: Services) -> Worker:
    """Return this process as a worker."""
    return Worker(f"{ACTOR}:{os.getpid()}", services.settings.app_revision)


def take(run: Run, queue: str, message_id: int | None) -> Delivery | None:
    """Return a message of the run as a delivery that is still to be claimed; None when it is gone."""
    if message_id is None:
        return None
    services = services_of(run)
    seconds = round(services.settings.visibility_timeout.total_seconds())
    with services.database.autocommit() as connection:
        row = connection.row(_HOLD, queue=queue, message_id=message_id, seconds=seconds)
    return None if row is None else _delivery(run, queue, message_id, read_count=row[0])


def _delivery(run: Run, queue: str, message_id: int, *, read_count: int) -> Delivery:
    """Return what `claim` asks of a delivery; it answers with the rest."""
    return Delivery(
        verdict=ClaimVerdict.GUARDED,
        queue=queue,
        message_id=message_id,
        read_count=read_count,
        body=None,
        workflow_id=run.workflow_id,
        workflow_class=run.workflow_class,
        subject_type=None,
        subject_id=None,
        arguments="{}",
        step_id=0,
        step_name=run.current_step,
        attempt=0,
    )


def perform(run: Run, delivery: Delivery) -> None:
    """Perform the message, and no step that follows at once."""
    services = services_of(run)
    worker = worker_of(services)
    as_worker(lambda: runner.perform(services, worker, delivery, stopping=lambda: True))


def as_worker(work: Callable[[], T]) -> T:
    """Do it in a thread of its own, whose scoped sessions and contexts are not the test's.

    One that hangs, on a lock of the test's say, can be left: by Ctrl-C, or by a test's timeout.
    """
    done: Future[T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 (it is raised in the test)
            done.set_exception(error)

    threading.Thread(target=do, name="pgbus-test", daemon=True).start()
    return done.result()
