"""Runs of every shape, as the rows that the engine would have left of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, product
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import FanOutFailed, StepNotDefined, StepStalled, WaitTimedOut
from pgbus.engine.insights.performance import _EDGES
from pgbus.engine.states import AttemptStatus, Outcome, RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pgbus.engine.storage.database import Connection

DECLINED = "shop.errors.Declined"
STALLED = qualified_name(StepStalled)
TIMED_OUT = qualified_name(WaitTimedOut)
UNDECLARED = qualified_name(StepNotDefined)

PAUSED_QUEUE = "pgbus_paused"
REVISIONS = (None, "r1", "r2", "r3", "r4", "r5", "r6", "r7")

_MICROSECOND = timedelta(microseconds=1)
_LATENCIES = (timedelta(), _MICROSECOND, timedelta(seconds=3), timedelta(minutes=4))
_RUN_TIMES = (timedelta(), _MICROSECOND, timedelta(seconds=1.5), timedelta(hours=2))


@dataclass(kw_only=True)
class Run:
    """A row of the runs."""

    workflow_id: str
    workflow_class: str
    status: RunStatus
    current_step: str
    step_id: int
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None = None
    ended_at: datetime | None = None
    settled_error: str | None = None
    sleeps_until: datetime | None = None
    definition_digest: str = "d"
    arguments: tuple[()] = ()


@dataclass(kw_only=True)
class Attempt:
    """A row of the attempts."""

    step_id: int
    workflow_id: str
    step_name: str
    attempt: int
    status: AttemptStatus
    scheduled_at: datetime
    created_at: datetime
    outcome: Outcome | None = None
    error_class: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    revision: str | None = None
    send_at: datetime | None = None
    waiting_since: datetime | None = None
    timeout_at: datetime | None = None
    held: dict[str, str] | None = None
    queue: str = "pgbus_workflows"
    timed_out: bool = False


@dataclass(frozen=True)
class Deployed:
    """An app revision that workers ran, `first_seen_at` unless it is unknown; a worker that `beats` runs it."""

    revision: str | None
    first_seen_at: datetime | None
    beats: bool


@dataclass
class History:
    """All rows."""

    runs: list[Run]
    attempts: list[Attempt]
    deployed: list[Deployed] = field(default_factory=list)


_S, _O = AttemptStatus, Outcome

#: How an attempt that ended stands there: with its error, and how it was claimed ("woken": before it was woken).
_ENDED = [
    *[(_S.COMPLETED, _O.COMPLETED, None, "claimed")] * 4,
    (_S.COMPLETED, _O.PAUSED, None, "claimed"),
    (_S.COMPLETED, _O.FINISHED, None, "claimed"),
    *[(_S.FAILED, _O.PAUSED, DECLINED, "claimed")] * 2,
    (_S.FAILED, _O.CANCELLED, DECLINED, "claimed"),
    (_S.FAILED, _O.REATTEMPTED, DECLINED, "claimed"),
    (_S.FAILED, _O.REATTEMPTED, None, "claimed"),
    (_S.FAILED, _O.PAUSED, qualified_name(FanOutFailed), "claimed"),
    (_S.FAILED, _O.PAUSED, UNDECLARED, "claimed"),
    (_S.FAILED, _O.PAUSED, STALLED, "claimed"),
    (_S.FAILED, _O.REATTEMPTED, STALLED, "claimed"),
    (_S.FAILED, _O.CANCELLED, TIMED_OUT, "claimed"),
    (_S.SKIPPED, _O.SKIPPED, TIMED_OUT, "claimed"),
    (_S.SKIPPED, _O.SKIPPED, DECLINED, "claimed"),
    (_S.SKIPPED, _O.SKIPPED, None, "claimed"),
    (_S.SKIPPED, _O.SKIPPED, None, "never"),
    (_S.CANCELLED, _O.CANCELLED, None, "claimed"),
    (_S.CANCELLED, _O.CANCELLED, None, "never"),
    (_S.CANCELLED, _O.CANCELLED, None, "woken"),
]

_AFTER_ITS_END = {
    _S.COMPLETED: (RunStatus.FINISHED, RunStatus.FINISHED, RunStatus.PAUSED),
    _S.SKIPPED: (RunStatus.FINISHED, RunStatus.PAUSED),
    _S.FAILED: (RunStatus.PAUSED, RunStatus.CANCELLED),
    _S.CANCELLED: (RunStatus.CANCELLED,),
}

#: The newest attempt of a run that is under way.
_OPEN = {
    RunStatus.READY: (_S.SCHEDULED,),
    RunStatus.PERFORMING: (_S.IN_PROGRESS,),
    RunStatus.WAITING: (_S.WAITING,),
    RunStatus.PAUSED: (_S.SCHEDULED, _S.IN_PROGRESS, _S.WAITING),
}


class Writer:
    """Makes up one run for each seed, on moments at and between the edges that matter."""

    def __init__(
        self,
        classes: Mapping[str, Sequence[str]],
        edges: Sequence[datetime],
        now: datetime,
        ages: Sequence[timedelta],
    ) -> None:
        """`ages`: how long ago something must have begun to be stuck."""
        self._classes = classes
        # Between two moments of one zone Python counts the hours that the clock shows.
        self._edges = [edge.astimezone(UTC) for edge in edges]
        self._now = now
        self._ages = ages
        self._step_ids = count(1)

    def history(self, seeds: Sequence[int], runs_of_each: int) -> History:
        """Return the rows of so many runs for each seed."""
        found = History([], [], [*self._deployed(Random(f"{seeds}"))])
        for seed, number in product(seeds, range(runs_of_each)):
            run, attempts = self._run(Random(f"{seed} {number}"))
            found.runs.append(run)
            found.attempts += attempts
        return found

    def _deployed(self, random: Random) -> Iterator[Deployed]:
        for revision in REVISIONS:
            if random.random() < 0.7:
                moment = self._now - random.choice((1, 1, 40)) * timedelta(days=random.random())
                yield Deployed(revision, moment if revision else None, random.random() < 0.5)

    def _moment(self, random: Random) -> datetime:
        if random.random() < 0.4:
            edge = random.choice(self._edges)
            return edge + random.choice((-1, 0, 0, 1)) * _MICROSECOND
        first, last = min(self._edges), max(self._edges)
        return first + random.uniform(-0.2, 1.02) * (last - first)

    def _run(self, random: Random) -> tuple[Run, list[Attempt]]:
        workflow_class = random.choice([*self._classes])
        steps = self._classes[workflow_class]
        workflow_id = str(UUID(int=random.getrandbits(128)))
        began, *ends = sorted(self._moment(random) for _ in range(random.randint(1, 7)))
        attempts = [self._ended(random, workflow_id, random.choice(steps), end) for end in ends]
        status = random.choice([*_OPEN])
        if attempts and random.random() < 0.6:
            status = random.choice(_AFTER_ITS_END[attempts[-1].status])
            if status is RunStatus.PAUSED and (random.random() < 0.3 or _must_hold(attempts[-1])):
                attempts[-1].held = {"move": "advance"}
        else:
            attempts.append(self._open(random, workflow_id, random.choice(steps), status))
        _number(attempts)
        newest = attempts[-1]
        moved_at = ends[-1] if ends else began
        ended = status in (RunStatus.FINISHED, RunStatus.CANCELLED)
        if ended and random.random() < 0.4:
            length = (
                timedelta(seconds=random.choice(_EDGES)) + random.choice((-1, 0, 1)) * _MICROSECOND
            )
            began = moved_at - max(length, timedelta())
        settled = ended or status is RunStatus.PAUSED
        asleep = newest.send_at is not None or random.random() < 0.5
        run = Run(
            workflow_id=workflow_id,
            workflow_class=workflow_class,
            status=status,
            current_step=newest.step_name,
            step_id=newest.step_id,
            created_at=began,
            updated_at=moved_at,
            paused_at=moved_at if status is RunStatus.PAUSED else None,
            ended_at=moved_at if ended else None,
            settled_error=(newest.error_class or "") if settled else None,
            sleeps_until=newest.scheduled_at if status is RunStatus.READY and asleep else None,
        )
        return run, attempts

    def _ended(self, random: Random, workflow_id: str, step_name: str, end: datetime) -> Attempt:
        status, outcome, error_class, claimed = random.choice(_ENDED)
        started = end - random.choice((*_RUN_TIMES, timedelta(seconds=random.uniform(0, 600))))
        scheduled = started - random.choice((*_LATENCIES, timedelta(seconds=random.uniform(0, 60))))
        if claimed == "woken":
            scheduled = started + timedelta(seconds=1)
        was_claimed = claimed != "never"
        return Attempt(
            step_id=next(self._step_ids),
            workflow_id=workflow_id,
            step_name=step_name,
            attempt=0,
            status=status,
            outcome=outcome,
            error_class=error_class,
            created_at=scheduled,
            scheduled_at=scheduled,
            started_at=started if was_claimed else None,
            finished_at=end,
            revision=random.choice(REVISIONS) if was_claimed else None,
        )

    def _open(self, random: Random, workflow_id: str, step_name: str, of_run: RunStatus) -> Attempt:
        status = random.choice(_OPEN[of_run])
        age = random.choice(self._ages) + random.choice((-1, 0, 1)) * _MICROSECOND
        since = random.choice((self._now - age, self._moment(random)))
        attempt = Attempt(
            step_id=next(self._step_ids),
            workflow_id=workflow_id,
            step_name=step_name,
            attempt=0,
            status=status,
            created_at=since,
            scheduled_at=since,
            queue=random.choice(("pgbus_workflows", "pgbus_workflows", PAUSED_QUEUE)),
        )
        if status is not _S.SCHEDULED or random.random() < 0.3:
            attempt.started_at = since - timedelta(seconds=1)
            attempt.revision = random.choice(REVISIONS)
        if status is _S.SCHEDULED and since > self._now + timedelta(minutes=1):
            attempt.send_at = since
        if status is _S.WAITING:
            attempt.waiting_since = since
            if random.random() < 0.4 and of_run is RunStatus.WAITING:
                attempt.timeout_at = self._now + timedelta(hours=1)
        return attempt


def _must_hold(ended: Attempt) -> bool:
    """Tell whether an attempt that its run is paused at ended after the pause, as its error alone does not tell."""
    return (ended.status is _S.FAILED) is not bool(ended.error_class)


def _number(attempts: Sequence[Attempt]) -> None:
    so_far: dict[str, int] = {}
    for one in attempts:
        one.attempt = so_far[one.step_name] = so_far.get(one.step_name, 0) + 1


_INSERT = """
INSERT INTO {{schema}}.{table} ({columns})
SELECT {columns} FROM jsonb_populate_recordset(NULL::{{schema}}.{table}, CAST(:rows AS jsonb))
"""


def write(connection: Connection, history: History) -> None:
    """Write the rows, that every class began a run once, that one queue is paused, and the workers."""
    for table, rows in (("workflows", history.runs), ("workflow_steps", history.attempts)):
        if rows:
            plain = [asdict(row) for row in rows]
            statement = _INSERT.format(table=table, columns=", ".join(plain[0]))
            connection.rows(statement, rows=json.dumps(plain, default=datetime.isoformat))
    connection.rows(
        "INSERT INTO {schema}.workflow_definitions (workflow_class, digest, steps, created_at)"
        " SELECT DISTINCT workflow_class, 'd', CAST('[]' AS jsonb), now() FROM {schema}.workflows"
    )
    connection.rows(
        "INSERT INTO {schema}.queues (queue, actor, paused_at) VALUES (:queue, 'app', now())",
        queue=PAUSED_QUEUE,
    )
    for one in history.deployed:
        _deploy(connection, one)


def _deploy(connection: Connection, deployed: Deployed) -> None:
    if deployed.first_seen_at:
        connection.rows(
            "INSERT INTO {schema}.app_revisions VALUES (:revision, CAST(:at AS timestamptz))",
            revision=deployed.revision,
            at=deployed.first_seen_at,
        )
    for kind, silent in (("worker", not deployed.beats), ("dispatcher", False)):
        connection.rows(
            "INSERT INTO {schema}.processes VALUES (gen_random_uuid(), :kind, 'h', 1, :revision, '{}', now(),"
            " now() - make_interval(secs => CAST(:silent AS double precision)))",
            kind=kind,
            revision=deployed.revision,
            silent=31 if silent else 15,
        )
