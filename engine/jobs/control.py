"""What an operator does with queues, jobs and dead letters: each verb is one transaction, `purge_queue` aside.

A message is named by its queue's physical name and its id. Whoever comes second learns what is there now.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING

from pgbus.engine.codec import storable
from pgbus.engine.insights import queues
from pgbus.engine.insights.messages import parsed_name
from pgbus.engine.jobs import batch
from pgbus.engine.queues import PRIORITIES, parse_physical_name, physical_name
from pgbus.engine.runner import bulk
from pgbus.engine.storage import dead_letters, jobs, messages
from pgbus.engine.storage import queues as storage
from pgbus.engine.storage.messages import Mark
from pgbus.engine.storage.trail import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pgbus.engine.insights.queues import QueuePause
    from pgbus.engine.runner.services import Services
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.jobs")

#: What a message's id may be: PostgreSQL refuses to look for a greater one.
_IDS = range(1, 2**63)

#: Messages that one transaction of a purge looks at.
_WINDOW = 2_000


class Effect(StrEnum):
    """What became of a message that a verb was asked of: only `DONE` changed anything.

    `DUE`: it waits for nothing but a worker. `IN_HAND`: a worker has it. `MOVED_ON`: it was delivered again
    since the caller saw it. `OF_A_RUN`: it is a step's, and the run's own verbs are what moves it. `GONE`:
    there is no such message any more.
    """

    DONE = auto()
    DUE = auto()
    IN_HAND = auto()
    MOVED_ON = auto()
    OF_A_RUN = auto()
    GONE = auto()


@dataclass(frozen=True, slots=True)
class PauseResult:
    """The pause that a queue has now; not `done` where somebody had paused it before."""

    done: bool
    pause: QueuePause


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How many jobs were discarded, and what was left: steps' messages, and jobs in workers' hands.

    Those left are counted up to 10,000 and one. `may_be_more`: the time or who asked ended it before all were
    taken, or some were locked or came back from a worker's hands meanwhile.
    """

    discarded: int
    steps: int
    in_hand: int
    may_be_more: bool


@dataclass(frozen=True, slots=True)
class Purgeable:
    """How many jobs a purge would have discarded at that moment, and the newest message of each of its queues."""

    jobs: int
    newest: Mapping[str, int]


def pause_queue(
    services: Services, logical: str, *, actor: str, reason: str | None = None
) -> PauseResult:
    """Let workers read a queue no more, in all its priorities; what they have in hand goes on.

    They notice at once, without LISTEN within `polling_interval`. Raise `QueueNotFound`.
    """
    with _asked(services, actor, reason) as (connection, by):
        storage.take_turns(connection)
        names = _all_of(connection, services.settings, logical)
        done = storage.pause(connection, names, actor=by.actor, reason=by.reason)
        messages.notify(connection, services.database.schema, storage.CHANGED)
        pause = queues.pauses(connection, services.settings)[logical]
    _tell(f"Queue {logical} was paused", by, done=done)
    return PauseResult(done, pause)


def resume_queue(
    services: Services, logical: str, *, actor: str, reason: str | None = None
) -> QueuePause | None:
    """Let workers read a queue again; return the pause that this ended, None when it was not paused.

    Raise `QueueNotFound`, but not for one that was dropped while it was paused.
    """
    with _asked(services, actor, reason) as (connection, by):
        storage.take_turns(connection)
        pause = queues.pauses(connection, services.settings).get(logical)
        if pause is None:
            queues.of_logical(connection, services.settings, logical)
        storage.resume(connection, _paused(connection, services.settings, logical))
        messages.notify(connection, services.database.schema, storage.CHANGED)
    _tell(f"Queue {logical} was resumed", by, done=pause is not None)
    return pause


def retry_job(
    services: Services,
    queue: str,
    message_id: int,
    *,
    actor: str,
    reason: str | None = None,
    read_count: int | None = None,
) -> Effect:
    """Let a job that waits for its retry, or for its time, run now.

    With `read_count`, as often as the caller saw it delivered, only if it was not since. Raise `QueueNotFound`.
    """
    with _asked(services, actor, reason) as (connection, by):
        queues.check_holds_work(connection, services.settings, queue)
        if message_id not in _IDS:
            return Effect.GONE
        done = jobs.make_due(connection, queue, message_id, read_count=read_count)
        if done:
            messages.notify(connection, services.database.schema, queue)
        effect = _effect(connection, queue, message_id, read_count, done=done)
    _tell(f"Message {message_id} of {queue} was made due", by, done=done)
    return effect


def discard_job(
    services: Services,
    queue: str,
    message_id: int,
    *,
    actor: str,
    reason: str | None = None,
    read_count: int | None = None,
) -> Effect:
    """Archive a job that is not to run (again), forget its failure and end the batch's member that it is.

    `read_count` as in `retry_job`. Raise `QueueNotFound`.
    """
    with _asked(services, actor, reason) as (connection, by):
        queues.check_holds_work(connection, services.settings, queue)
        if message_id not in _IDS:
            return Effect.GONE
        withdrawal = jobs.withdraw(connection, queue, message_id, read_count=read_count, by=by)
        told = batch.told(connection, withdrawal.finished_batch)
        effect = _effect(connection, queue, message_id, read_count, done=withdrawal.done)
    services.events.emit(*told)
    _tell(f"Message {message_id} of {queue} was discarded", by, done=withdrawal.done)
    # One that is due and was not discarded is just being delivered.
    return Effect.IN_HAND if effect is Effect.DUE else effect


def retry_dead_letter(
    services: Services, queue: str, message_id: int, *, actor: str, reason: str | None = None
) -> Effect:
    """Send a dead letter anew to the queue it came from; its batch, if it was a member, has counted it.

    Raise `QueueNotFound`.
    """
    by, settings = _mark(actor, reason), services.settings
    services.bus.check_schema()
    with services.database.autocommit() as connection:
        queues.check_holds_dead_letters(connection, settings, queue)
        if message_id not in _IDS:
            return Effect.GONE
        source = dead_letters.source(connection, queue, message_id)
    to = _source(settings, queue, source)
    services.bus.ensure_queues([to])
    with services.database.transaction() as connection:
        done = dead_letters.retry(connection, queue, message_id, to=to, by=by)
        if done:
            messages.notify(connection, services.database.schema, to)
    _tell(f"Dead letter {message_id} of {queue} was sent anew", by, done=done)
    return Effect.DONE if done else Effect.GONE


def discard_dead_letter(
    services: Services, queue: str, message_id: int, *, actor: str, reason: str | None = None
) -> Effect:
    """Archive a dead letter; raise `QueueNotFound`."""
    with _asked(services, actor, reason) as (connection, by):
        queues.check_holds_dead_letters(connection, services.settings, queue)
        if message_id not in _IDS:
            return Effect.GONE
        done = dead_letters.discard(connection, queue, message_id, by=by)
    _tell(f"Dead letter {message_id} of {queue} was discarded", by, done=done)
    return Effect.DONE if done else Effect.GONE


def purgeable(services: Services, logical: str) -> Purgeable:
    """Return what a purge would take of a queue now; raise `QueueNotFound`."""
    services.bus.check_schema()
    with services.database.autocommit() as connection:
        newest = _newest(connection, services.settings, logical)
        free = [jobs.count_free(connection, queue, until=until) for queue, until in newest.items()]
    return Purgeable(sum(free), newest)


def purge_queue(
    services: Services,
    logical: str,
    *,
    actor: str,
    reason: str | None = None,
    found: Purgeable | None = None,
    goes_on: Callable[[int], bool] | None = None,
) -> Purged:
    """Discard the jobs that are in a queue, in all its priorities, but those that workers have in hand.

    With `found` those that were there then, else now. Messages of runs stay: the sweep would send them again.
    Jobs go by up to 2,000, a batch's members one by one, each in a transaction of its own; `goes_on` is told how
    many it discarded, and tells whether another may begin; without it that is so for half a minute. Raise
    `QueueNotFound`.
    """
    services.bus.check_schema()
    by, goes_on = _mark(actor, reason), goes_on or bulk.for_seconds(bulk.LONGEST_SECONDS)
    with services.database.autocommit() as connection:
        newest = found.newest if found else _newest(connection, services.settings, logical)
    discarded = 0
    for number in _purge(services, newest, by):
        discarded += number
        if not goes_on(number):
            break
    with services.database.autocommit() as connection:
        left = [
            jobs.left(connection, queue, until=until, limit=queues.CAP + 1)
            for queue, until in newest.items()
        ]
    _tell(f"Queue {logical} was purged of {discarded} jobs", by, done=True)
    return Purged(
        discarded=discarded,
        steps=sum(one.steps for one in left),
        in_hand=sum(one.in_hand for one in left),
        may_be_more=any(one.others for one in left),
    )


def _newest(connection: Connection, settings: Settings, logical: str) -> Mapping[str, int]:
    names = queues.of_logical(connection, settings, logical)
    return {queue: jobs.newest(connection, queue) for queue in names}


def _purge(services: Services, newest: Mapping[str, int], by: Mark) -> Iterator[int]:
    """Yield after each transaction how many jobs it discarded, window by window: most messages may be runs'."""
    for queue, until in newest.items():
        after = 0
        while after < until:
            with services.database.transaction() as connection:
                end = jobs.window_end(connection, queue, after=after, until=until, window=_WINDOW)
                discarded = jobs.withdraw_free(connection, queue, after=after, until=end, by=by)
            yield discarded
            yield from _purge_members(services, queue, after, end, by)
            after = end


def _purge_members(
    services: Services, queue: str, after: int, until: int, by: Mark
) -> Iterator[int]:
    """Discard the members one by one: two who discard several at once would wait for each other's counters."""
    with services.database.autocommit() as connection:
        found = jobs.free_members(connection, queue, after=after, until=until)
    for message_id in found:
        effect = discard_job(services, queue, message_id, actor=by.actor, reason=by.reason)
        yield int(effect is Effect.DONE)


def _all_of(connection: Connection, settings: Settings, logical: str) -> list[str]:
    """Return the queue's names in all priorities, also of those not made yet; raise `QueueNotFound`.

    One under another prefix has no other priorities.
    """
    found = queues.of_logical(connection, settings, logical)
    if found == [logical]:
        return found
    return [physical_name(settings.queue_prefix, logical, priority) for priority in PRIORITIES]


def _paused(connection: Connection, settings: Settings, logical: str) -> list[str]:
    """Return the names of the pause that a logical queue has; the queue may be gone."""
    found = storage.paused(connection)
    return [queue for queue in found if parsed_name(settings, queue).logical == logical]


def _source(settings: Settings, queue: str, told: str | None) -> str:
    """Return where a dead letter goes: where it says that it came from, if that is one of its queues."""
    letters = parse_physical_name(settings.queue_prefix, queue)
    assert letters is not None  # noqa: S101 (a queue under another prefix holds no dead letters)
    source = parse_physical_name(settings.queue_prefix, told or "")
    if source is None or source.is_dead_letter or source.logical != letters.logical:
        return physical_name(settings.queue_prefix, letters.logical)
    return physical_name(settings.queue_prefix, source.logical, source.priority)


def _effect(
    connection: Connection, queue: str, message_id: int, read_count: int | None, *, done: bool
) -> Effect:
    if done:
        return Effect.DONE
    standing = jobs.standing(connection, queue, message_id, read_count=read_count)
    if standing is None:
        return Effect.GONE
    if standing.is_step:
        return Effect.OF_A_RUN
    if standing.in_hand:
        return Effect.IN_HAND
    return Effect.DUE if standing.as_seen else Effect.MOVED_ON


@contextmanager
def _asked(services: Services, actor: str, reason: str | None) -> Iterator[tuple[Connection, Mark]]:
    """Open a verb's transaction, with who asks for it and why."""
    services.bus.check_schema()
    with services.database.transaction() as connection:
        yield connection, _mark(actor, reason)


def _mark(actor: str, reason: str | None) -> Mark:
    return Mark(storable(actor), cut(reason))


def _tell(what: str, by: Mark, *, done: bool) -> None:
    if done:
        _log.info("%s by %s: %s.", what, by.actor, by.reason or "no reason given")
