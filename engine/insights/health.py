"""Where the bus itself is in trouble: what no run tells of, and what would slow all of them down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any

from pgbus.engine.insights import queues
from pgbus.engine.insights.processes import DISPATCHER, WORKER, served_queues
from pgbus.engine.storage import messages, revision
from pgbus.engine.storage.processes import STALE_AFTER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: Seconds that a new worker has until LISTEN works.
_LISTENS_AFTER = 15.0
#: Seconds by which clocks may differ.
_CLOCK_TOLERANCE = 5.0
#: Seconds from which on a transaction counts as long.
_LONG_TRANSACTION = 600.0
#: Vacuum copes with fewer dead rows by itself.
_MANY_DEAD_ROWS = 50_000
_MOST_TRANSACTIONS = 10


class Problem(StrEnum):
    """What is wrong, the worst first, and what a `Hint` tells besides.

    - `OLD_SCHEMA`: the database is not migrated to this code. Nothing else was looked at.
    - `NO_WORKER`: none beats.
    - `NO_DISPATCHER`: none beats; so many deadlines (`number`) are past.
    - `UNREAD_QUEUE`: no worker that beats serves the queue `subject` (physical); so many messages are due.
    - `PAUSED_QUEUE`: the queue `subject` (logical) is paused `since` then; so many messages are due.
    - `NO_LISTEN`: notifications do not reach the worker `subject`, which polls.
    - `VACUUM_HELD_BACK`: dead rows stay because of the transaction of `subject`, open `since` then.
    - `BLOATED_QUEUE`: so many dead rows are in the table of the queue `subject`, vacuumed last `since` then.
    - `CLOCKS_APART`: the clock of the process `subject` is so many `seconds` ahead of the database's.
    """

    OLD_SCHEMA = auto()
    NO_WORKER = auto()
    NO_DISPATCHER = auto()
    UNREAD_QUEUE = auto()
    PAUSED_QUEUE = auto()
    NO_LISTEN = auto()
    VACUUM_HELD_BACK = auto()
    BLOATED_QUEUE = auto()
    CLOCKS_APART = auto()


_ALL = frozenset(Problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A problem and its facts, as `Problem` says; counts of messages stop one above 10,000."""

    problem: Problem
    subject: str | None = None
    number: int | None = None
    since: datetime | None = None
    seconds: float | None = None


_BEATING = """
SELECT kind, host || ':' || pid, details::text, extract(epoch FROM heartbeat_at)::double precision,
       extract(epoch FROM heartbeat_at - started_at)::double precision
  FROM {schema}.processes
 WHERE heartbeat_at >= statement_timestamp() - make_interval(secs => CAST(:dead_after AS double precision))
 ORDER BY 1, 2
"""

_PAST_DEADLINES = """
SELECT count(*) FROM (SELECT FROM {schema}.workflow_steps WHERE timeout_at <= statement_timestamp()
                       LIMIT CAST(:limit AS integer)) s
"""

#: A role that may not see others' activity sees only its own.
_LONG_TRANSACTIONS = """
SELECT concat(coalesce(nullif(application_name, ''), 'a session'), ' of ', usename, ', pid ', pid), xact_start
  FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend'
   AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
   AND xact_start < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
UNION ALL
SELECT concat('prepared transaction ', gid), prepared FROM pg_prepared_xacts
 WHERE database = current_database()
   AND prepared < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
 ORDER BY 2 LIMIT CAST(:limit AS integer)
"""

_DEAD_ROWS = """
SELECT substr(relname, 3), n_dead_tup, greatest(last_vacuum, last_autovacuum) FROM pg_stat_user_tables
 WHERE schemaname = 'pgmq' AND left(relname, 2) = 'q_' AND n_dead_tup > n_live_tup
   AND n_dead_tup >= CAST(:many AS bigint)
 ORDER BY n_dead_tup DESC
"""


def hints(
    connection: Connection, settings: Settings, concern: frozenset[Problem] = _ALL
) -> tuple[Hint, ...]:
    """Return what is wrong with the bus just now, the worst first; () when nothing is.

    Only problems that `concern` the caller are looked for, beside `OLD_SCHEMA`, which hides the others.
    """
    current = connection.row(
        revision.IS_CURRENT,
        version_table=revision.version_table(settings.schema),
        fingerprint=revision.fingerprint(),
    )
    if current is None or not current[0]:
        return (Hint(problem=Problem.OLD_SCHEMA),)
    beating = connection.rows(_BEATING, dead_after=STALE_AFTER.total_seconds())
    found = [*_of_service(connection, [kind for kind, *_ in beating])]
    if concern & {Problem.UNREAD_QUEUE, Problem.PAUSED_QUEUE}:
        found += _of_queues(connection, settings, beating)
    found += _of_workers(beating)
    if concern & {Problem.VACUUM_HELD_BACK, Problem.BLOATED_QUEUE}:
        found += _of_tables(connection)
    found += _of_clocks(beating)
    return tuple(hint for hint in found if hint.problem in concern)


def _of_service(connection: Connection, kinds: list[str]) -> Iterator[Hint]:
    if WORKER not in kinds:
        yield Hint(problem=Problem.NO_WORKER)
    if DISPATCHER not in kinds:
        ((past,),) = connection.rows(_PAST_DEADLINES, limit=queues.CAP + 1)
        yield Hint(problem=Problem.NO_DISPATCHER, number=past)


def _of_queues(
    connection: Connection, settings: Settings, beating: list[tuple[Any, ...]]
) -> Iterator[Hint]:
    served = {
        queue for _, _, told, *_ in beating for queue in served_queues(settings, json.loads(told))
    }
    depths = queues.depths(connection, settings)
    for one in depths:
        if one.visible and one.logical not in served:
            yield Hint(problem=Problem.UNREAD_QUEUE, subject=one.queue, number=one.visible)
    for logical, pause in queues.pauses(connection, settings).items():
        due = sum(one.visible for one in depths if one.logical == logical)
        yield Hint(problem=Problem.PAUSED_QUEUE, subject=logical, number=due, since=pause.since)


def _of_workers(beating: list[tuple[Any, ...]]) -> Iterator[Hint]:
    for kind, name, told, _, age in beating:
        if kind == WORKER and age > _LISTENS_AFTER and json.loads(told).get("listening") is False:
            yield Hint(problem=Problem.NO_LISTEN, subject=name)


def _of_tables(connection: Connection) -> Iterator[Hint]:
    for session, since in connection.rows(
        _LONG_TRANSACTIONS, seconds=_LONG_TRANSACTION, limit=_MOST_TRANSACTIONS
    ):
        yield Hint(problem=Problem.VACUUM_HELD_BACK, subject=session, since=since)
    known = messages.queues(connection)
    for queue, dead, vacuumed_at in connection.rows(_DEAD_ROWS, many=_MANY_DEAD_ROWS):
        if queue in known:
            yield Hint(problem=Problem.BLOATED_QUEUE, subject=queue, number=dead, since=vacuumed_at)


def _of_clocks(beating: list[tuple[Any, ...]]) -> Iterator[Hint]:
    for _, name, told, heartbeat_at, _ in beating:
        clock = json.loads(told).get("clock")
        if clock is not None and abs(clock - heartbeat_at) > _CLOCK_TOLERANCE:
            yield Hint(problem=Problem.CLOCKS_APART, subject=name, seconds=clock - heartbeat_at)
