"""From a step message to its outcome, and on through the steps that follow at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.runner.attempt import Attempt
from pgbus.engine.runner.execute import execute
from pgbus.engine.runner.finalize import Ending, Finalizer
from pgbus.engine.runner.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Delivery, Idle, Taking, Worker


@dataclass(frozen=True, slots=True)
class Performed:
    """A stretch of a run's steps is done.

    `due_in` is the seconds until the message it sent last becomes visible (None: it sent
    none); `taken` what was taken along with its end (None: nothing was asked for).
    """

    due_in: float | None
    taken: list[Delivery] | Idle | None


def perform(
    services: Services,
    worker: Worker,
    delivery: Delivery,
    *,
    stopping: Callable[[], bool] = lambda: False,
    taking: Callable[[], Taking | None] = lambda: None,
) -> Performed:
    """Perform one delivered step message, and the steps that follow at once.

    `stopping` is asked before the run goes on without queueing, `taking` what to take along
    with the statement that ends the stretch.
    """
    finalizer = Finalizer(services, worker, stopping, taking)
    following: Delivery | None = delivery
    try:
        while following is not None:
            step = prepare(services, worker, finalizer, following)
            if isinstance(step, Attempt):
                step = execute(services, finalizer, step)
            if isinstance(step, Ending):
                step = finalizer.commit(step)
            following = finalizer.follow(step) if step is not None else None
    except BaseException:
        finalizer.abandon()
        raise
    return Performed(finalizer.due_in, finalizer.taken)
