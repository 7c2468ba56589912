"""Which message the calling code is the job of, for logs and keys far from the worker."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobDelivery:
    """One delivery of a job's message; `queue` is the physical one, `read_count` 1 at first."""

    queue: str
    message_id: int
    read_count: int
    job: str


#: Set around each execution.
running_delivery: ContextVar[JobDelivery | None] = ContextVar("pgbus_job_delivery", default=None)


def current_delivery() -> JobDelivery | None:
    """Return the delivery whose job runs here, `None` outside of one."""
    return running_delivery.get()
