"""From a step message to its outcome, and on through the steps that follow at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.runner.attempt import Attempt
from pgbus.engine.runner.execute import execute
from pgbus.engine.runner.finalize import Ending, Finalizer
from pgbus.engine.runner.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.transitions import Delivery, Worker


def perform(
    services: Services, worker: Worker, delivery: Delivery, *, stopping: Callable[[], bool]
) -> float | None:
    """Performs one delivered step message; returns the seconds until the one it sent is due.

    None: it sent none. `stopping` is asked before the run goes on without queueing.
    """
    finalizer = Finalizer(services, worker, stopping)
    following: Delivery | None = delivery
    while following is not None:
        step = prepare(services, worker, finalizer, following)
        if isinstance(step, Attempt):
            step = execute(services, finalizer, step)
        if isinstance(step, Ending):
            step = finalizer.commit(step)
        following = finalizer.follow(step) if step is not None else None
    return finalizer.due_in
