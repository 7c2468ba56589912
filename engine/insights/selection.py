"""Which runs a filter selects, as SQL over a run `w` and its newest attempt `s`.

A list is put together of lanes: within one, an index has the runs in the order of the list.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from pgbus.engine.insights import stuck
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import RunStatus
from pgbus.engine.storage.runs import MOVING, ONGOING_LANES, SLEEPING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.insights.runs import RunFilter, Tab
    from pgbus.engine.settings import Settings

ENDED = (RunStatus.FINISHED, RunStatus.CANCELLED)

#: A run's lane is its status, with ready and performing as one, but for those that are ready and sleep.
LANES: tuple[str, ...] = (*ONGOING_LANES, *ENDED)

_SETTLED = (RunStatus.PAUSED, *ENDED)

_LANES_OF_TAB: dict[Tab, tuple[str, ...]] = {
    "all": LANES,
    "ongoing": ONGOING_LANES,
    RunStatus.READY: (MOVING, SLEEPING),
    RunStatus.PERFORMING: (MOVING,),
    **{status: (status,) for status in (RunStatus.WAITING, RunStatus.PAUSED, *ENDED)},
}

_READY = ("w.status = 'ready'",)
_PERFORMING = ("w.status = 'performing'",)
_OF_TAB: dict[Tab, Sequence[str]] = {
    RunStatus.READY: _READY,
    RunStatus.PERFORMING: _PERFORMING,
}

_RUNS = "FROM {schema}.workflows w"
_WITH_NEWEST = f"{_RUNS} JOIN {{schema}}.workflow_steps s ON s.step_id = w.step_id"

#: The same of runs that do not move, for which indexes are enough: the newest has the highest id. (Told that
#: both ids are equal, the planner would expect next to no run to match.)
_WITH_FOUND = (
    f"{_RUNS} JOIN {{schema}}.workflow_steps s"
    " ON s.workflow_id = w.workflow_id AND s.step_id >= w.settled_attempt"
)

#: Of a run that has settled: in the other lanes no newest attempt has an error.
_FAILED = "w.settled_error = :error_class"
_WITHOUT_ERROR = "w.settled_error = ''"

#: The others hold nothing that ends them.
_HELD = f"coalesce({stuck.held_end('s')}, '{stuck.NO_END}') = CAST(:held AS text)"

#: Of a run that is neither ready nor performing, the indexes have the step.
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
        possible &= {*stuck.CONDITIONS[wanted.stuck]}
    if wanted.failed_with is not None:
        possible &= {*_SETTLED}
    if wanted.held in stuck.HELD_ENDS:
        possible &= {RunStatus.PAUSED}
    if wanted.ended_from is not None or wanted.ended_to is not None:
        possible &= {*ENDED}
    return [lane for lane in _LANES_OF_TAB[wanted.status] if lane in possible]


def in_order(*, backwards: bool) -> str:
    """Return the clause that sorts runs as the list has them, or the other way round."""
    direction = "ASC" if backwards else "DESC"
    return f"ORDER BY w.created_at {direction}, w.workflow_id {direction}"


def page(wanted: RunFilter, *, backwards: bool, cursor: bool) -> str:
    """Return the query of the first `:limit` runs, from the cursor on: the first of the first of each lane."""
    more = [*_OF_TAB.get(wanted.status, ())]
    if cursor:
        more.append(_BEFORE if backwards else _AFTER)
    first = f"{in_order(backwards=backwards)} LIMIT CAST(:limit AS integer)"
    found = " UNION ALL ".join(
        f"(SELECT w.* {_in_lane(wanted, lane, *more)} {first})" for lane in lanes(wanted)
    )
    return f"SELECT * FROM ({found}) w {first}"


def counts(wanted: RunFilter) -> str:
    """Return the query of how many match in each lane, up to `:limit`, and of how many of those perform.

    Up to twice as many that move: if not all are counted, more than the limit perform or are ready.
    """
    parts = [(lane, _in_lane(wanted, lane), 1 + (lane == MOVING)) for lane in lanes(wanted)]
    if MOVING in lanes(wanted):
        parts.append((RunStatus.PERFORMING, _in_lane(wanted, MOVING, *_PERFORMING), 1))
    return " UNION ALL ".join(
        f"SELECT '{name}', count(*)"
        f" FROM (SELECT {matching} LIMIT {times} * CAST(:limit AS integer)) n"
        for name, matching, times in parts
    )


def among_newest(wanted: RunFilter, number: int) -> str:
    """Return the query that has a row when one of the newest runs has ended and matches."""
    ended = ("w.ended_at IS NOT NULL", *_of_attempt(wanted, RunStatus.FINISHED))
    return (
        f"SELECT 1 FROM (SELECT * FROM {{schema}}.workflows ORDER BY workflow_id DESC LIMIT {number}) w"
        " JOIN {schema}.workflow_steps s ON s.step_id = w.step_id"
        f" {_where(wanted, *ended)} LIMIT 1"
    )


def _in_lane(wanted: RunFilter, lane: str, *more: str) -> str:
    """Return what selects the lane's runs that match the filter."""
    if lane not in _SETTLED:
        wanted = replace(wanted, error_class=None)
    if lane != RunStatus.PAUSED:
        wanted = replace(wanted, held=None)
    if wanted.stuck is StuckReason.WAITING_OVERDUE:
        source = _WITH_FOUND
    elif _of_attempt(wanted, lane):
        source = _WITH_NEWEST
    else:
        source = _RUNS
    on_step = _ON_STEP if lane in (MOVING, SLEEPING) else _ON_SETTLED_STEP
    in_lane = (f"w.lane = '{lane}'", *_of_attempt(wanted, lane))
    return f"{source} {_where(wanted, *in_lane, *more, on_step=on_step)}"


def _where(wanted: RunFilter, *more: str, on_step: str = _ON_STEP) -> str:
    """Give it only the conditions asked for: an index is not found behind `OR :x IS NULL`."""
    given = _given(wanted)
    asked = [condition for name, condition in _CONDITIONS.items() if name in given]
    if wanted.current_step is not None:
        asked.append(on_step)
    if wanted.failed_with is not None:
        asked.append(_FAILED)
    elif wanted.error_class is not None:
        asked.append(_WITHOUT_ERROR)
    return f"WHERE {' AND '.join([*more, *asked])}"


def _of_attempt(wanted: RunFilter, lane: str) -> list[str]:
    """Return the conditions on the newest attempt of a run in the lane."""
    asked = []
    if wanted.held is not None:
        asked.append(_HELD)
    if wanted.stuck is not None:
        asked.append(stuck.CONDITIONS[wanted.stuck].get(lane, "false"))
    return asked


def _given(wanted: RunFilter) -> dict[str, Any]:
    """Return the parts of the filter that narrow, the status aside."""
    parts = ((field.name, getattr(wanted, field.name)) for field in fields(wanted))
    return {name: value for name, value in parts if name != "status" and value is not None}
