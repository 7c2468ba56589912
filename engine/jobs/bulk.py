"""A verb on many jobs, or dead letters: on each by itself, as it was when it was found."""

from __future__ import annotations

from enum import StrEnum, auto
from functools import partial
from typing import TYPE_CHECKING

from pgbus.engine.insights import dead_letters, jobs
from pgbus.engine.insights.reading import reading
from pgbus.engine.jobs import control
from pgbus.engine.jobs.control import Effect
from pgbus.engine.runner.bulk import LIMIT, press

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.insights.jobs import JobFilter, JobKey
    from pgbus.engine.runner.bulk import BulkResult
    from pgbus.engine.runner.services import Services


class Press(StrEnum):
    """What can be asked of all that match a filter."""

    RETRY_FAILED = auto()
    DISCARD_FAILED = auto()
    DISCARD_ENQUEUED = auto()
    RETRY_DEAD_LETTERS = auto()
    DISCARD_DEAD_LETTERS = auto()


_FINDS = {
    Press.RETRY_FAILED: jobs.failed_until,
    Press.DISCARD_FAILED: jobs.failed_until,
    Press.DISCARD_ENQUEUED: jobs.enqueued_until,
    Press.RETRY_DEAD_LETTERS: dead_letters.until,
    Press.DISCARD_DEAD_LETTERS: dead_letters.until,
}

#: On a job as it was found, and on a dead letter, which nobody delivers.
_JOB_ACTS = {
    Press.RETRY_FAILED: control.retry_job,
    Press.DISCARD_FAILED: control.discard_job,
    Press.DISCARD_ENQUEUED: control.discard_job,
}
_LETTER_ACTS = {
    Press.RETRY_DEAD_LETTERS: control.retry_dead_letter,
    Press.DISCARD_DEAD_LETTERS: control.discard_dead_letter,
}


def act(
    services: Services,
    verb: Press,
    wanted: JobFilter,
    *,
    until: datetime,
    at_most: int,
    actor: str,
    reason: str | None = None,
    limit: int = LIMIT,
) -> BulkResult:
    """Ask the verb of all that match and had failed, were enqueued or had died by the moment, the oldest first.

    At most `at_most` are taken, and no more than `limit` of them, each in a transaction of its own: what is
    done stays done, whatever becomes of the others. One that was delivered, discarded or retried since has
    moved on. Raise `QueueNotFound`.
    """
    if at_most < 0:
        raise ValueError(f"at_most is {at_most}; give a number of jobs.")
    with reading(services) as connection:
        services.bus.check_schema()
        found = _FINDS[verb](
            connection, services.settings, wanted, until=until, limit=min(at_most, limit + 1)
        )
    return press(
        found,
        partial(_is_done, services, verb, actor, reason),
        limit=limit,
        name=lambda key: f"message {key.message_id} of {key.queue}",
    )


def _is_done(services: Services, verb: Press, actor: str, reason: str | None, key: JobKey) -> bool:
    of = (services, key.queue, key.message_id)
    if verb in _JOB_ACTS:
        seen = key.read_count
        effect = _JOB_ACTS[verb](*of, actor=actor, reason=reason, read_count=seen)
    else:
        effect = _LETTER_ACTS[verb](*of, actor=actor, reason=reason)
    return effect is Effect.DONE
