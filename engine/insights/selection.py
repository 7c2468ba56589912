"""Which runs a filter selects, as SQL over a run `w` and its newest attempt `s`.

A list is put together of lanes: within one, an index has the runs in the order of the list.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from pgbus.engine.insights import stuck
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.insights.runs import RunFilter, Tab
    from pgbus.engine.settings import Settings

MOVING = "moving"
ENDED = (RunStatus.FINISHED, RunStatus.CANCELLED)

#: A run's lane is its status, with ready and performing as one.
LANES: tuple[str, ...] = (MOVING, RunStatus.WAITING, RunStatus.PAUSED, *ENDED)

#: In the others no newest attempt has ended, so none has an error.
_OF_ENDED_ATTEMPTS = (RunStatus.PAUSED, *ENDED)

_LANES_OF_TAB: dict[Tab, tuple[str, ...]] = {
    "all": LANES,
    "ongoing": (MOVING, RunStatus.WAITING, RunStatus.PAUSED),
    RunStatus.READY: (MOVING,),
    RunStatus.PERFORMING: (MOVING,),
    **{status: (status,) for status in (RunStatus.WAITING, RunStatus.PAUSED, *ENDED)},
}

_LANE_OF_REASON: dict[StuckReason, str] = {
    **dict.fromkeys(stuck.PAUSED_REASONS, RunStatus.PAUSED),
    StuckReason.OVERDUE: MOVING,
    StuckReason.WAITING_OVERDUE: RunStatus.WAITING,
}

_READY = ("w.status = 'ready'",)
_PERFORMING = ("w.status = 'performing'", stuck.AWAKE)
_OF_TAB: dict[Tab, Sequence[str]] = {
    RunStatus.READY: _READY,
    RunStatus.PERFORMING: _PERFORMING,
}

_RUNS = "FROM {schema}.workflows w"
_WITH_NEWEST = f"{_RUNS} JOIN {{schema}}.workflow_steps s ON s.step_id = w.step_id"

#: The same of runs that do not move, for which indexes are enough: the newest has the highest id. (Told that
#: both ids are equal, the planner would expect next to no run to match.)
_THE_NEWEST = "s.workflow_id = w.workflow_id AND s.step_id >= w.settled_attempt"
_WITH_FOUND = f"{_RUNS} JOIN {{schema}}.workflow_steps s ON {_THE_NEWEST}"

#: From the attempts with an error, one by one, to their runs: the number of other runs does not matter.
_BY_FAILED = """
FROM {schema}.workflow_steps s
CROSS JOIN LATERAL (SELECT * FROM {schema}.workflows r
                     WHERE r.workflow_id = s.workflow_id AND r.step_id <= s.step_id OFFSET 0) w
"""

#: Those the index has: one that was tried again by itself is not the newest, unless that is held.
_INDEXED = "(s.reattempted_by IS NULL OR s.held IS NOT NULL)"
_FAILED = f"s.error_class = :error_class AND {_INDEXED}"

#: The other runs, one by one, or where so many are asked for that an index is read as a whole.
_WITHOUT_ERROR = "s.error_class IS NULL"
_NONE_FAILED = f"""
NOT EXISTS (SELECT FROM {{schema}}.workflow_steps s
             WHERE s.error_class IS NOT NULL AND {_INDEXED} AND {_THE_NEWEST})
"""

#: So many runs are looked at in the order of the list, before the order of all that match is made.
_NEAR = 2_000

#: More attempts with one error are not followed to their runs one by one.
_FEW = 20_000

#: How many attempts failed as wanted: a few, or one more than that.
FAILED = f"""
SELECT count(*) FROM (SELECT FROM {{schema}}.workflow_steps s WHERE {_FAILED} LIMIT {_FEW} + 1) f
"""

#: The others hold nothing that ends them.
_HELD = f"coalesce({stuck.held_end('s')}, '{stuck.NO_END}') = CAST(:held AS text)"

#: Of a run that does not move, the indexes have the step.
_ON_STEP = "w.current_step = :current_step"
_ON_SETTLED_STEP = "w.settled_step = :current_step"

#: No run was created after it ended.
_CONDITIONS = {
    "workflow_class": "w.workflow_class = :workflow_class",
    "subject_type": "w.subject_type = :subject_type",
    "subject_id": "w.subject_id = :subject_id",
    "workflow_id": "w.workflow_id = CAST(:workflow_id AS uuid)",
    "created_from": "w.created_at >= CAST(:created_from AS timestamptz)",
    "created_to": "w.created_at < CAST(:created_to AS timestamptz)",
    "ended_from": "w.ended_at >= CAST(:ended_from AS timestamptz)",
    "ended_to": (
        "w.ended_at < CAST(:ended_to AS timestamptz) AND w.created_at < CAST(:ended_to AS timestamptz)"
    ),
}

_KEYS = "w.created_at, w.workflow_id, w.lane, w.settled_attempt"
_LIMIT = "LIMIT CAST(:limit AS integer)"
_CURSOR = "(CAST(:cursor_at AS timestamptz), CAST(:cursor_id AS uuid))"
_AFTER = f"(w.created_at, w.workflow_id) < {_CURSOR}"
_BEFORE = f"(w.created_at, w.workflow_id) > {_CURSOR}"


def parameters(settings: Settings, wanted: RunFilter) -> dict[str, Any]:
    """Return what the statements about the filter name, the limit and the cursor aside."""
    return _given(wanted) | {"error_class": wanted.failed_with} | stuck.parameters(settings)


def lanes(wanted: RunFilter) -> list[str]:
    """Return the lanes in which runs can match the filter."""
    possible = set(LANES)
    if wanted.stuck is not None:
        possible &= {_LANE_OF_REASON[wanted.stuck]}
    if wanted.failed_with is not None:
        possible &= {*_OF_ENDED_ATTEMPTS}
    if wanted.held in stuck.HELD_ENDS:
        possible &= {RunStatus.PAUSED}
    if wanted.ended_from is not None or wanted.ended_to is not None:
        possible &= {*ENDED}
    return [lane for lane in _LANES_OF_TAB[wanted.status] if lane in possible]


def in_order(*, backwards: bool) -> str:
    """Return the clause that sorts runs as the list has them, or the other way round."""
    direction = "ASC" if backwards else "DESC"
    return f"ORDER BY w.created_at {direction}, w.workflow_id {direction}"


def pages(wanted: RunFilter, *, failed: int, backwards: bool, cursor: bool) -> tuple[str, ...]:
    """Return queries of the first `:limit` runs, from the cursor on: the first full answer is right, or the last.

    `failed` is what `FAILED` counts; 0 when it is not asked.
    """
    more = [*_OF_TAB.get(wanted.status, ())]
    if cursor:
        more.append(_BEFORE if backwards else _AFTER)
    order = in_order(backwards=backwards)
    if wanted.failed_with is None:
        return (_merged("w.*", wanted, lanes(wanted), more, f"{order} {_LIMIT}"),)
    ways = [_failed_near(wanted, more, order)] if failed > _NEAR else []
    ways.append(
        _one_by_one(_KEYS, wanted, *more) if failed <= _FEW else _failed_anywhere(wanted, more)
    )
    return tuple(
        f"SELECT w.* FROM ({way} {order} {_LIMIT}) k JOIN {{schema}}.workflows w USING (workflow_id)"
        for way in ways
    )


def counts(wanted: RunFilter, *, failed: int) -> str:
    """Return the query of how many match in each lane, up to `:limit`, and of how many of those perform.

    Up to twice as many that move: if not all are counted, more than the limit perform or are ready. A few that
    failed are all counted.
    """
    if wanted.failed_with is not None and failed <= _FEW:
        return f"SELECT lane, count(*) FROM ({_one_by_one('w.lane', wanted)}) n GROUP BY lane"
    parts = [(lane, _counted(wanted, lane), 1 + (lane == MOVING)) for lane in lanes(wanted)]
    if MOVING in lanes(wanted):
        parts.append((RunStatus.PERFORMING, _in_lane(wanted, MOVING, *_PERFORMING), 1))
    return " UNION ALL ".join(
        f"SELECT '{name}', count(*)"
        f" FROM (SELECT {matching} LIMIT {times} * CAST(:limit AS integer)) n"
        for name, matching, times in parts
    )


def among_newest(wanted: RunFilter, number: int) -> str:
    """Return the query that has a row when one of the newest runs has ended and matches."""
    return (
        f"SELECT 1 FROM (SELECT * FROM {{schema}}.workflows ORDER BY workflow_id DESC LIMIT {number}) w"
        " JOIN {schema}.workflow_steps s ON s.step_id = w.step_id"
        f" {_where(wanted, 'w.ended_at IS NOT NULL')} LIMIT 1"
    )


def _merged(
    columns: str, wanted: RunFilter, among: Sequence[str], more: Sequence[str], first: str
) -> str:
    """Return the query of the first runs, as `first` tells: the first of the first of each lane."""
    found = " UNION ALL ".join(
        f"(SELECT {columns} {_in_lane(wanted, lane, *more)} {first})" for lane in among
    )
    return f"SELECT * FROM ({found}) w {first}"


def _one_by_one(columns: str, wanted: RunFilter, *more: str) -> str:
    """Return the query of all that match, found by their attempts."""
    among = ", ".join(f"'{lane}'" for lane in lanes(wanted))
    where = _where(wanted, f"w.lane IN ({among})", *more, on_step=_ON_SETTLED_STEP)
    return f"SELECT {columns} {_BY_FAILED} {where}"


def _failed_near(wanted: RunFilter, more: Sequence[str], order: str) -> str:
    """Return the query of those that match of the first runs, whatever their attempts."""
    any_attempt = replace(wanted, error_class=None, stuck=None, held=None)
    runs = _merged(_KEYS, any_attempt, lanes(wanted), more, f"{order} LIMIT {_NEAR}")
    matching = " AND ".join([_THE_NEWEST, *_of_attempt(wanted)])
    return f"""
SELECT w.created_at, w.workflow_id FROM ({runs}) w
 CROSS JOIN LATERAL (SELECT FROM {{schema}}.workflow_steps s WHERE {matching} OFFSET 0) s
"""


def _failed_anywhere(wanted: RunFilter, more: Sequence[str]) -> str:
    """Return the query of all that match, found by two indexes."""
    found = " UNION ALL ".join(
        f"SELECT w.created_at, w.workflow_id {_in_lane(wanted, lane, *more)}"
        for lane in lanes(wanted)
    )
    return f"WITH w AS MATERIALIZED ({found}) SELECT * FROM w"


def _counted(wanted: RunFilter, lane: str) -> str:
    """Return what selects the lane's runs that match, whose order does not matter."""
    if lane in _OF_ENDED_ATTEMPTS and _of_attempt(wanted) == [_WITHOUT_ERROR]:
        return _in_lane(replace(wanted, error_class=None), lane, _NONE_FAILED)
    return _in_lane(wanted, lane)


def _in_lane(wanted: RunFilter, lane: str, *more: str) -> str:
    """Return what selects the lane's runs that match the filter."""
    if lane not in _OF_ENDED_ATTEMPTS:
        wanted = replace(wanted, error_class=None)
    if lane != RunStatus.PAUSED:
        wanted = replace(wanted, held=None)
    if wanted.failed_with is not None or wanted.stuck is StuckReason.WAITING_OVERDUE:
        source = _WITH_FOUND
    elif _of_attempt(wanted):
        source = _WITH_NEWEST
    else:
        source = _RUNS
    on_step = _ON_STEP if lane == MOVING else _ON_SETTLED_STEP
    where = _where(wanted, f"w.lane = '{lane}'", *more, on_step=on_step)
    return f"{source} {where}"


def _where(wanted: RunFilter, *more: str, on_step: str = _ON_STEP) -> str:
    """Give it only the conditions asked for: an index is not found behind `OR :x IS NULL`."""
    given = _given(wanted)
    asked = [condition for name, condition in _CONDITIONS.items() if name in given]
    if wanted.current_step is not None:
        asked.append(on_step)
    return f"WHERE {' AND '.join([*more, *asked, *_of_attempt(wanted)])}"


def _of_attempt(wanted: RunFilter) -> list[str]:
    """Return the conditions on the newest attempt."""
    asked = []
    if wanted.failed_with is not None:
        asked.append(_FAILED)
    elif wanted.error_class is not None:
        asked.append(_WITHOUT_ERROR)
    if wanted.held is not None:
        asked.append(_HELD)
    if wanted.stuck is not None:
        asked.append(stuck.CONDITIONS[wanted.stuck])
    return asked


def _given(wanted: RunFilter) -> dict[str, Any]:
    """Return the parts of the filter that narrow, the status aside."""
    parts = ((field.name, getattr(wanted, field.name)) for field in fields(wanted))
    return {name: value for name, value in parts if name != "status" and value is not None}
