"""The processes that serve the bus: who beats, who went silent, and what each runs now."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pgbus.engine.queues import parse_physical_name
from pgbus.engine.storage.processes import STALE_AFTER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: The kinds of processes: what executes bodies, what sends and sweeps, what keeps those running.
WORKER, DISPATCHER, SUPERVISOR = "worker", "dispatcher", "supervisor"


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt whose body a worker executes."""

    workflow_id: str
    workflow_class: str
    step_name: str
    attempt: int
    started_at: datetime


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a worker had in hand at its last beat, since `started_at`; `job` is the name its message gives.

    None: it gives none.
    """

    job: str | None
    queue: str
    message_id: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A worker, dispatcher or supervisor; one that has not beaten for long is not `alive`.

    `queues` are the logical ones that a worker serves. It runs so many attempts (`running`), the
    newest of them `attempts`; one whose run was paused meanwhile is not among them. At its last beat
    it had so many `jobs` in hand, as many of them `running_jobs`, and a supervisor so many `children`.
    """

    process_id: str
    kind: str
    host: str
    pid: int
    revision: str | None
    started_at: datetime
    heartbeat_at: datetime
    silent_seconds: float
    alive: bool
    queues: tuple[str, ...]
    running: int
    attempts: tuple[RunningAttempt, ...]
    jobs: int
    running_jobs: tuple[RunningJob, ...]
    children: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """How many processes of each kind beat and how many are silent, and as many as were asked for.

    `served` are the logical queues of the workers that beat.
    """

    alive: Mapping[str, int]
    silent: Mapping[str, int]
    served: frozenset[str]
    processes: tuple[Process, ...]


_COUNTS = """
SELECT kind, heartbeat_at >= statement_timestamp() - make_interval(secs => CAST(:dead_after AS double precision)),
       count(*)
  FROM {schema}.processes GROUP BY 1, 2
"""

_BEATING = """
SELECT details::text FROM {schema}.processes
 WHERE kind = CAST(:kind AS text)
   AND heartbeat_at >= statement_timestamp() - make_interval(secs => CAST(:dead_after AS double precision))
"""

#: Those that went silent first, the longest silent before the others.
_PROCESSES = """
SELECT p.process_id::text, p.kind, p.host, p.pid, p.revision, p.started_at, p.heartbeat_at,
       extract(epoch FROM statement_timestamp() - p.heartbeat_at)::double precision, p.details::text
  FROM {schema}.processes p
 ORDER BY least(p.heartbeat_at, statement_timestamp()
                                - make_interval(secs => CAST(:dead_after AS double precision))),
          p.kind DESC, p.host, p.pid, p.process_id
 LIMIT CAST(:limit AS integer)
"""

#: What is in progress, by who has it: among workers of one host and pid, which come one after the other in a
#: container, the last that had started by then. At most `few` of each are returned, the newest.
_RUNNING = """
SELECT process_id::text, running, workflow_id::text, workflow_class, step_name, attempt, started_at
  FROM (SELECT p.process_id, w.workflow_id, w.workflow_class, s.step_name, s.attempt, s.started_at,
               count(*) OVER (PARTITION BY p.process_id) AS running,
               row_number() OVER (PARTITION BY p.process_id ORDER BY s.started_at DESC, s.step_id DESC) AS place
          FROM {schema}.workflows w
          JOIN {schema}.workflow_steps s ON s.step_id = w.step_id
         CROSS JOIN LATERAL (SELECT o.process_id FROM {schema}.processes o
                              WHERE o.kind = CAST(:kind AS text) AND o.host || ':' || o.pid = s.worker
                                AND o.started_at <= s.started_at
                              ORDER BY o.started_at DESC LIMIT 1) p
         WHERE w.lane = 'moving' AND w.status = 'performing') r
 WHERE place <= CAST(:few AS integer)
 ORDER BY process_id, place
"""


def alive(connection: Connection) -> dict[str, int]:
    """Return how many processes of each kind beat; 0 where none does."""
    rows = connection.rows(_COUNTS, dead_after=STALE_AFTER.total_seconds())
    return dict.fromkeys((SUPERVISOR, WORKER, DISPATCHER), 0) | {
        kind: number for kind, beats, number in rows if beats
    }


def fleet(connection: Connection, settings: Settings, *, limit: int, few: int = 3) -> Fleet:
    """Return at most `limit` processes, the silent first, each with `few` of what it runs."""
    dead_after = STALE_AFTER.total_seconds()
    counts: dict[bool, dict[str, int]] = {True: {}, False: {}}
    for kind, alive, number in connection.rows(_COUNTS, dead_after=dead_after):
        counts[alive][kind] = number
    running: dict[str, int] = {}
    attempts: dict[str, list[RunningAttempt]] = defaultdict(list)
    for process_id, number, *attempt in connection.rows(_RUNNING, kind=WORKER, few=few):
        running[process_id] = number
        attempts[process_id].append(RunningAttempt(*attempt))
    beating = connection.rows(_BEATING, kind=WORKER, dead_after=dead_after)
    rows = connection.rows(_PROCESSES, dead_after=dead_after, limit=limit)
    return Fleet(
        alive=counts[True],
        silent=counts[False],
        served=frozenset().union(
            *(served_queues(settings, json.loads(told)) for (told,) in beating)
        ),
        processes=tuple(
            _process(settings, row, running.get(row[0], 0), attempts[row[0]], few) for row in rows
        ),
    )


def _process(
    settings: Settings,
    row: tuple[Any, ...],
    running: int,
    attempts: list[RunningAttempt],
    few: int,
) -> Process:
    process_id, kind, host, pid, revision, started_at, heartbeat_at, silent_seconds, details = row
    told = json.loads(details)
    jobs = [one for one in told.get("running", ()) if "message_id" in one]
    return Process(
        process_id=process_id,
        kind=kind,
        host=host,
        pid=pid,
        revision=revision,
        started_at=started_at,
        heartbeat_at=heartbeat_at,
        silent_seconds=silent_seconds,
        alive=silent_seconds <= STALE_AFTER.total_seconds(),
        queues=tuple(sorted(served_queues(settings, told))),
        running=running,
        attempts=tuple(attempts),
        jobs=len(jobs),
        running_jobs=tuple(_running_job(one, heartbeat_at) for one in jobs[:few]),
        children=len(told.get("children", ())),
    )


def _running_job(told: dict[str, Any], heartbeat_at: datetime) -> RunningJob:
    started_at = heartbeat_at - timedelta(seconds=told["seconds"])
    return RunningJob(told.get("job"), told["queue"], told["message_id"], started_at)


def served_queues(settings: Settings, told: dict[str, Any]) -> set[str]:
    """Return the logical names of what a worker reads; one under another prefix stands for itself."""
    queues = told.get("queues", ())
    parsed = ((queue, parse_physical_name(settings.queue_prefix, queue)) for queue in queues)
    return {one.logical if one else queue for queue, one in parsed}
