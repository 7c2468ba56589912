"""The runs that do not move on by themselves, and why: counted, grouped by cause, one by one.

A condition, `REASON` and `SINCE` are fragments over a run `w` and its newest attempt `s`;
what asks with them passes `parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, get_args

from pgbus.engine.definition import registry
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import StepStalled
from pgbus.engine.states import NEEDS_CLASS, Move, RunStatus, Verb
from pgbus.engine.storage.runs import MOVING, SLEEPING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

_MOST_GROUPS = 200
#: As much of an error's message comes along.
LONGEST_MESSAGE = 1000

#: What an attempt may hold that ends its run when it is resumed; anything else tries the step again or goes on.
HeldEnd = Literal[Move.FINISH, Move.STEP_CANCEL]
HELD_ENDS: dict[str, HeldEnd] = {move.value: move for move in get_args(HeldEnd)}

#: As what is held: of runs that resume does not end so.
NO_END = "none"


class StuckReason(StrEnum):
    """Why a run does not move on by itself, as its newest attempt tells."""

    STALLED = "stalled"
    PAUSED_ERROR = "paused_error"
    PAUSED_MANUAL = "paused_manual"
    OVERDUE = "overdue"
    WAITING_OVERDUE = "waiting_overdue"


#: The reasons that only a person takes away.
PAUSED_REASONS = frozenset(
    {StuckReason.STALLED, StuckReason.PAUSED_ERROR, StuckReason.PAUSED_MANUAL}
)

#: What can be asked of all the runs of a group, by why they are stuck.
VERBS = {
    **dict.fromkeys(PAUSED_REASONS, (Verb.RESUME, Verb.CANCEL)),
    StuckReason.OVERDUE: (Verb.RUN_NOW, Verb.CANCEL),
    StuckReason.WAITING_OVERDUE: (Verb.CANCEL,),
}


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What the stuck runs of one group share; no error class where their newest attempts have none.

    `held`: the body ended while its run was paused, and resume ends the run as it asked.
    """

    workflow_class: str
    step_name: str
    reason: StuckReason
    error_class: str | None
    held: HeldEnd | None = None

    @property
    def class_loaded(self) -> bool:
        """Whether a loaded module declares the class."""
        return registry.find(self.workflow_class) is not None

    @property
    def available_actions(self) -> tuple[Verb, ...]:
        """The verbs that can be asked of the runs in this process."""
        loaded = self.class_loaded
        return tuple(verb for verb in VERBS[self.reason] if loaded or verb not in NEEDS_CLASS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckGroup:
    """How many runs are stuck for one cause, and since when: the first and the last of them.

    The message, cut to its first 1,000 characters, is of the run that got stuck last; when that is
    paused, `newest_actor` paused it, and `newest_because` says why.
    """

    key: GroupKey
    count: int
    first_at: datetime
    last_at: datetime
    newest_error_message: str | None
    newest_actor: str | None
    newest_because: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The stuck runs of a class, of one step of it, or of all, as they were at the database's moment `as_of`.

    `groups` are the 200 biggest, and `exhaustive` when there are no others; `total` counts the runs of
    those left out too. `by_class` is of all classes that have one, whichever was asked for.
    """

    groups: tuple[StuckGroup, ...]
    exhaustive: bool
    total: int
    by_class: Mapping[str, int]
    as_of: datetime


@dataclass(frozen=True, slots=True)
class StuckAtStep:
    """How many runs of a class are stuck at a step, and since when the first of them is; `paused` ones by why."""

    step_name: str
    runs: int
    first_at: datetime
    paused: Mapping[StuckReason, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Member:
    """A run as it was when it was found: a later `updated_at` tells that it moved."""

    workflow_id: str
    updated_at: datetime


#: A moment to come is none yet, and without one it is now: NULL is never the least.
_AS_OF = "least(CAST(:as_of AS timestamptz), now())"

_STEP_STALLED = qualified_name(StepStalled)


def _why_paused(failed: str, error_class: str) -> str:
    """Return why a run is paused, given whether its newest attempt failed, and with what."""
    return f"""
CASE WHEN NOT ({failed}) THEN '{StuckReason.PAUSED_MANUAL}'
     WHEN {error_class} = '{_STEP_STALLED}' THEN '{StuckReason.STALLED}'
     ELSE '{StuckReason.PAUSED_ERROR}' END
"""


def held_end(attempt: str) -> str:
    """Return the `HeldEnd` of an attempt; NULL without one."""
    ends = ", ".join(f"'{move}'" for move in HELD_ENDS)
    return f"CASE WHEN {attempt}.held ->> 'move' IN ({ends}) THEN {attempt}.held ->> 'move' END"


_WHY_PAUSED = _why_paused("s.status = 'failed'", "s.error_class")


_PAUSED = "w.lane = 'paused'"

_DUE_BY = f"{_AS_OF} - make_interval(secs => CAST(:overdue_seconds AS double precision))"

#: On a paused queue a run waits for whoever paused it.
_OVERDUE = f"""
w.status = 'ready' AND s.scheduled_at < {_DUE_BY}
AND s.queue <> ALL (ARRAY(SELECT q.queue FROM {{schema}}.queues q))
"""

#: A wait has no deadline either when it never had one, or when a late notice left it without.
_WAITING = f"""
s.waiting_since < {_AS_OF} - make_interval(secs => CAST(:waiting_seconds AS double precision))
AND s.timeout_at IS NULL AND s.workflow_id = w.workflow_id AND w.lane = 'waiting'
"""

#: Which runs are stuck for a reason, by their lane. Of those that sleep an index has the few that overslept.
CONDITIONS: dict[StuckReason, dict[str, str]] = {
    **{
        reason: {RunStatus.PAUSED: f"{_PAUSED} AND {_WHY_PAUSED} = '{reason}'"}
        for reason in PAUSED_REASONS
    },
    StuckReason.OVERDUE: {
        MOVING: f"w.lane = '{MOVING}' AND {_OVERDUE}",
        SLEEPING: f"w.sleeps_until < {_DUE_BY} AND {_OVERDUE}",
    },
    StuckReason.WAITING_OVERDUE: {RunStatus.WAITING: _WAITING},
}

#: Why a run is stuck; NULL for one that is not.
REASON = f"""
CASE WHEN {_PAUSED} THEN {_WHY_PAUSED} WHEN {_OVERDUE} THEN '{StuckReason.OVERDUE}'
     WHEN {_WAITING} THEN '{StuckReason.WAITING_OVERDUE}' END
"""

#: Since when a run is stuck that is.
SINCE = (
    "coalesce(w.paused_at, CASE w.status WHEN 'ready' THEN s.scheduled_at ELSE s.waiting_since END)"
)


def parameters(settings: Settings, *, as_of: datetime | None = None) -> dict[str, object]:
    """Return what the fragments name; with `as_of` a run is stuck that was so at that moment."""
    return {
        "overdue_seconds": settings.workflow_stall_threshold.total_seconds(),
        "waiting_seconds": settings.workflow_waiting_visibility_threshold.total_seconds(),
        "as_of": as_of,
    }


_FROM = "FROM {schema}.workflows w JOIN {schema}.workflow_steps s ON s.step_id = w.step_id"

#: Runs, the paused ones each with its newest attempt `h` when that holds something; and why a run is paused.
#: What failed is known by its error: so many runs are not read one by one, for an index holds all that is
#: asked. Only of a body that ended after the pause is it not: one that asks for another attempt fails without an
#: error, one skipped by a policy keeps its error without having failed. Those hold something.
WITH_HELD = f"""
{{schema}}.workflows w LEFT JOIN {{schema}}.workflow_steps h
    ON h.step_id = w.settled_attempt AND h.held IS NOT NULL AND {_PAUSED}
"""
WHY_PAUSED = _why_paused("coalesce(h.status = 'failed', w.settled_error <> '')", "w.settled_error")

_STUCK_PAUSED = f"""
SELECT w.workflow_class, w.settled_step AS step_name, {WHY_PAUSED} AS reason,
       nullif(w.settled_error, '') AS error_class, {held_end("h")} AS held, w.paused_at AS since,
       w.settled_attempt AS step_id
  FROM {WITH_HELD} WHERE {_PAUSED}
"""

#: How runs are stuck without being paused: each way is found by an index of its own.
_UNPAUSED = [
    (reason, condition)
    for reason in (StuckReason.OVERDUE, StuckReason.WAITING_OVERDUE)
    for condition in CONDITIONS[reason].values()
]

#: Every stuck run, once.
_STUCK = " UNION ALL ".join(
    [
        _STUCK_PAUSED,
        *(
            f"SELECT w.workflow_class, s.step_name, '{reason}', s.error_class, NULL, {SINCE}, s.step_id"
            f" {_FROM} WHERE {condition}"
            for reason, condition in _UNPAUSED
        ),
    ]
)

_AT_STEP_PAUSED = f"""
SELECT w.settled_step AS step_name, {WHY_PAUSED} AS reason, w.paused_at AS since
  FROM {WITH_HELD} WHERE {_PAUSED} AND w.workflow_class = :workflow_class
"""

_AT_STEP = " UNION ALL ".join(
    [
        _AT_STEP_PAUSED,
        *(
            f"SELECT s.step_name, '{reason}', {SINCE}"
            f" {_FROM} WHERE {condition} AND w.workflow_class = :workflow_class"
            for reason, condition in _UNPAUSED
        ),
    ]
)

#: Those of a class by step; of the others none is read.
_AT_STEPS = f"""
SELECT step_name, reason, count(*), min(since) FROM ({_AT_STEP}) s
 GROUP BY step_name, reason ORDER BY step_name
"""

_ASKED = """
(workflow_class = :workflow_class OR CAST(:workflow_class AS text) IS NULL)
AND (step_name = :step_name OR CAST(:step_name AS text) IS NULL)
"""

#: The biggest groups; before them, without a step, how many are stuck of each class, and of those asked for. The
#: newest run's attempt comes with the counting, in one pass, as the greatest pair of moment and attempt.
_GROUPS = f"""
WITH stuck AS ({_STUCK}),
groups AS MATERIALIZED (
SELECT workflow_class, step_name, reason, error_class, held, count(*) AS runs, min(since) AS first_at,
       max(since) AS last_at, max(ARRAY[(extract(epoch FROM since) * 1000000)::bigint, step_id]) AS newest
  FROM stuck GROUP BY workflow_class, step_name, reason, error_class, held),
biggest AS (
SELECT * FROM groups
 WHERE {_ASKED}
 ORDER BY runs DESC, last_at DESC, workflow_class, step_name, reason, error_class, held
 LIMIT CAST(:limit AS integer))
SELECT now(), workflow_class, NULL AS step_name, NULL AS reason, NULL AS error_class, NULL AS held,
       CASE grouping(workflow_class) WHEN 0 THEN sum(runs)::bigint
            ELSE coalesce(sum(runs) FILTER (WHERE {_ASKED}), 0)::bigint END AS runs,
       NULL AS first_at, NULL AS last_at, NULL, NULL, NULL
  FROM groups GROUP BY ROLLUP (workflow_class)
UNION ALL
SELECT now(), b.workflow_class, b.step_name, b.reason, b.error_class, b.held, b.runs, b.first_at, b.last_at,
       left(s.error_message, {LONGEST_MESSAGE}), e.actor, left(e.reason, {LONGEST_MESSAGE})
  FROM biggest b
  JOIN {{schema}}.workflow_steps s ON s.step_id = b.newest[2]
  LEFT JOIN LATERAL (SELECT actor, reason FROM {{schema}}.workflow_events
                      WHERE workflow_id = s.workflow_id AND event = 'paused'
                      ORDER BY event_id DESC LIMIT 1) e ON true
 ORDER BY runs DESC, last_at DESC, workflow_class, step_name, reason, error_class, held
"""

#: Why a run is paused does not matter here, so its attempt is not read.
_COUNT = f"""
SELECT count(*)
  FROM (SELECT FROM {{schema}}.workflows w WHERE {_PAUSED}
        {" ".join(f"UNION ALL SELECT {_FROM} WHERE {condition}" for _, condition in _UNPAUSED)}
        LIMIT CAST(:limit AS integer)) stuck
"""

_BY_REASON = (
    f"SELECT workflow_class, reason, count(*) FROM ({_STUCK}) stuck GROUP BY workflow_class, reason"
)


def _members(condition: str) -> str:
    return f"""
SELECT w.workflow_id, w.updated_at, {SINCE} AS since
  {_FROM}
 WHERE {condition}
   AND w.workflow_class = :workflow_class AND s.step_name = :step_name
   AND s.error_class IS NOT DISTINCT FROM CAST(:error_class AS text)
   AND {held_end("s")} IS NOT DISTINCT FROM CAST(:held AS text)
   AND {SINCE} <= {_AS_OF}
"""


#: The runs of a group that were stuck at a moment, those first that have been for longest.
_MEMBERS = {
    reason: f"""
SELECT workflow_id::text, updated_at
  FROM ({" UNION ALL ".join(_members(condition) for condition in conditions.values())}) m
 ORDER BY since, workflow_id
 LIMIT CAST(:limit AS integer)
"""
    for reason, conditions in CONDITIONS.items()
}


def groups(
    connection: Connection,
    settings: Settings,
    workflow_class: str | None = None,
    step_name: str | None = None,
) -> Attention:
    """Group the stuck runs by cause, the most first; of one class, or one step of it, when it is given."""
    rows = connection.rows(
        _GROUPS,
        workflow_class=workflow_class,
        step_name=step_name,
        limit=_MOST_GROUPS + 1,
        **parameters(settings),
    )
    ((as_of, total),) = ((row[0], row[6]) for row in rows if row[1] is None)
    by_class = {row[1]: row[6] for row in rows if row[1] is not None and row[2] is None}
    found = [_group(*row[1:]) for row in rows if row[2] is not None]
    return Attention(
        groups=tuple(found[:_MOST_GROUPS]),
        exhaustive=len(found) <= _MOST_GROUPS,
        total=total,
        by_class=by_class,
        as_of=as_of,
    )


def count(connection: Connection, settings: Settings, *, cap: int = 10_000) -> int:
    """Count the stuck runs; more than `cap` come back as one more than that."""
    ((number,),) = connection.rows(_COUNT, limit=cap + 1, **parameters(settings))
    return int(number)


def by_reason(
    connection: Connection, settings: Settings, classes: Collection[str]
) -> dict[tuple[str, StuckReason], int]:
    """Count the stuck runs by class and reason; 0 where one of `classes` has none."""
    return dict.fromkeys(product(classes, StuckReason), 0) | {
        (workflow_class, StuckReason(reason)): number
        for workflow_class, reason, number in connection.rows(_BY_REASON, **parameters(settings))
    }


def at_steps(
    connection: Connection, settings: Settings, workflow_class: str
) -> tuple[StuckAtStep, ...]:
    """Count the stuck runs of a class by step, and tell since when the first is."""
    rows = connection.rows(_AT_STEPS, workflow_class=workflow_class, **parameters(settings))
    return tuple(
        _at_step(step_name, [row[1:] for row in of_step])
        for step_name, of_step in groupby(rows, key=itemgetter(0))
    )


def members(
    connection: Connection,
    settings: Settings,
    group: GroupKey,
    *,
    stuck_before: datetime,
    limit: int,
) -> list[Member]:
    """Return the runs of the group that were stuck at the moment, at most `limit`, oldest first."""
    rows = connection.rows(
        _MEMBERS[group.reason],
        workflow_class=group.workflow_class,
        step_name=group.step_name,
        error_class=group.error_class,
        held=group.held,
        limit=limit,
        **parameters(settings, as_of=stuck_before),
    )
    return [Member(*row) for row in rows]


def _at_step(step_name: str, by_reason: Sequence[tuple[Any, ...]]) -> StuckAtStep:
    return StuckAtStep(
        step_name,
        sum(runs for _reason, runs, _first_at in by_reason),
        min(first_at for _reason, _runs, first_at in by_reason),
        {StuckReason(reason): runs for reason, runs, _ in by_reason if reason in PAUSED_REASONS},
    )


def _group(
    workflow_class: str,
    step_name: str,
    reason: str,
    error_class: str | None,
    held: str | None,
    runs: int,
    first_at: datetime,
    last_at: datetime,
    error_message: str | None,
    *pause: str | None,
) -> StuckGroup:
    key = GroupKey(
        workflow_class,
        step_name,
        StuckReason(reason),
        error_class,
        HELD_ENDS[held] if held else None,
    )
    actor, because = pause if key.reason in PAUSED_REASONS else (None, None)
    return StuckGroup(
        key=key,
        count=runs,
        first_at=first_at,
        last_at=last_at,
        newest_error_message=error_message,
        newest_actor=actor,
        newest_because=because,
    )
