"""A verb on many jobs, or dead letters: on each by itself, as it was when it was found."""

from __future__ import annotations

from enum import StrEnum, auto
from functools import partial
from typing import TYPE_CHECKING

from pgbus.engine.insights import dead_letters, jobs
from pgbus.engine.insights.matches import Matches
from pgbus.engine.insights.reading import reading
from pgbus.engine.jobs import control
from pgbus.engine.jobs.control import Effect
from pgbus.engine.runner.bulk import LIMIT, for_seconds, press

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from pgbus.engine.insights.jobs import JobFilter
    from pgbus.engine.insights.matches import JobKey
    from pgbus.engine.runner.bulk import BulkResult
    from pgbus.engine.runner.services import Services
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: No further one is taken then.
_LONGEST_SECONDS = 12.0


class Press(StrEnum):
    """What can be asked of all that match a filter."""

    RETRY_FAILED = auto()
    DISCARD_FAILED = auto()
    DISCARD_ENQUEUED = auto()
    RETRY_DEAD_LETTERS = auto()
    DISCARD_DEAD_LETTERS = auto()


#: What is found among the messages of queues; the others are found among the failures.
_SEARCHES = {
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
    after: str | None = None,
    limit: int = LIMIT,
) -> BulkResult:
    """Ask the verb of all that `found` returns, at most `at_most`, and no more than `limit` of them.

    No further one is taken after 12 seconds: somebody waits for a page. Raise `QueueNotFound` and `BadCursor`.
    """
    goes_on = for_seconds(_LONGEST_SECONDS)
    if at_most < 0:
        raise ValueError(f"at_most is {at_most}; give a number of jobs.")
    with reading(services) as connection:
        services.bus.check_schema()
        matches = found(
            connection,
            services.settings,
            verb,
            wanted,
            until=until,
            limit=min(at_most, limit + 1),
            after=after,
        )
    return on_messages(
        services,
        matches.keys,
        verb,
        actor=actor,
        reason=reason,
        limit=limit,
        goes_on=goes_on,
    )


def found(
    connection: Connection,
    settings: Settings,
    verb: Press,
    wanted: JobFilter,
    *,
    until: datetime,
    limit: int,
    after: str | None = None,
) -> Matches:
    """Return those that match and had failed, were enqueued or had died by the moment, the oldest first.

    Enqueued jobs and dead letters come queue by queue; 200,000 messages are looked at, from the first on or
    behind the place `after`. Raise `QueueNotFound`, and `BadCursor` for a text that is no place.
    """
    of = (connection, settings, wanted)
    if verb in _SEARCHES:
        return _SEARCHES[verb](*of, until=until, limit=limit, after=after)
    return Matches(tuple(jobs.failed_until(*of, until=until, limit=limit)), further=None)


def on_messages(
    services: Services,
    keys: Sequence[JobKey],
    verb: Press,
    *,
    actor: str,
    reason: str | None,
    limit: int = LIMIT,
    goes_on: Callable[[int], bool] | None = None,
) -> BulkResult:
    """Ask the verb of messages as they were found, in the manner of the runner's `press`.

    Each is asked in a transaction of its own: what is done stays done, whatever becomes of the others. One that
    was delivered, discarded or retried since has moved on.
    """
    return press(
        keys,
        partial(_is_done, services, verb, actor, reason),
        limit=limit,
        name=lambda key: f"message {key.message_id} of {key.queue}",
        goes_on=goes_on,
    )


def _is_done(services: Services, verb: Press, actor: str, reason: str | None, key: JobKey) -> bool:
    of = (services, key.queue, key.message_id)
    if verb in _JOB_ACTS:
        seen = key.read_count
        effect = _JOB_ACTS[verb](*of, actor=actor, reason=reason, read_count=seen)
    else:
        effect = _LETTER_ACTS[verb](*of, actor=actor, reason=reason)
    return effect is Effect.DONE
