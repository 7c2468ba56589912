"""How an attempt ends: its outcome, the run's move and the next attempt, in one statement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.engine.decision import EventEntry
from pgbus.engine.states import Event, RunStatus, check_transition
from pgbus.engine.storage.claims import TAKE_CALL, TAKEN, take_parameters, taken_from
from pgbus.engine.storage.trail import event_arrays

if TYPE_CHECKING:
    from pgbus.engine.decision import Finalization
    from pgbus.engine.storage.claims import Delivery, Idle, Taking, Worker
    from pgbus.engine.storage.database import Connection


class EndVerdict(StrEnum):
    """What became of an ending (`functions/40_finalize.sql`, `39_finalize_moved.sql`)."""

    APPLIED = "applied"
    CONTINUED = "continued"
    DECLINED = "declined"
    HELD = "held"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Finalized:
    """What `finalize` did; `step_id` and `attempt` are the next attempt's.

    `taken` is what it was asked to take along; None when it was not asked.
    """

    verdict: EndVerdict
    step_id: int | None
    attempt: int | None
    due_in: float | None
    taken: list[Delivery] | Idle | None = None


_FINALIZE_CALL = """
{schema}.finalize(
    CAST(:workflow_id AS uuid), CAST(:step_id AS bigint), CAST(:queue AS text), CAST(:message_id AS bigint),
    CAST(:read_count AS integer), CAST(:target AS text),
    CAST(:attempt_status AS text), CAST(:outcome AS text), CAST(:output AS jsonb),
    CAST(:error_class AS text), CAST(:error_message AS text), CAST(:error AS jsonb),
    CAST(:reattempted_by AS text), CAST(:held AS jsonb), CAST(:next_step AS text), CAST(:next_queue AS text),
    CAST(:wait AS double precision), CAST(:not_before AS timestamptz), CAST(:may_continue AS boolean),
    CAST(:worker AS text), CAST(:revision AS text), CAST(:events AS text[]), CAST(:reasons AS text[]),
    CAST(:details AS jsonb[]), CAST(:takes_signals AS boolean), CAST(:trace AS text))
"""

_FINALIZED = "f.verdict, f.step_id, f.attempt, f.due_in"

_FINALIZE = f"SELECT {_FINALIZED} FROM {_FINALIZE_CALL} f"

#: What ends one run's stretch takes the next message along: one round trip and commit less.
_FINALIZE_AND_TAKE = f"""
SELECT {_FINALIZED}, {TAKEN} FROM {_FINALIZE_CALL} f LEFT JOIN LATERAL {TAKE_CALL} t ON true
"""


def finalize(
    connection: Connection,
    worker: Worker,
    delivery: Delivery,
    final: Finalization,
    *,
    may_continue: bool,
    takes_signals: bool,
    trace: str | None = None,
    taking: Taking | None = None,
) -> Finalized:
    """End the attempt, move its run and schedule what comes next, in one statement.

    `takes_signals` tells of a step that may hold one; `trace` is where the span of what follows
    belongs. With `taking` it takes the worker's next messages, too.
    """
    check_transition(final.move, RunStatus.PERFORMING, final.target)
    events = final.events
    if may_continue:
        events = (*events, EventEntry(Event.STEP_STARTED))
    following = final.next
    error = final.error
    rows = connection.rows(
        _FINALIZE_AND_TAKE if taking else _FINALIZE,
        **(take_parameters(worker, taking) if taking else {}),
        workflow_id=delivery.workflow_id,
        step_id=delivery.step_id,
        queue=delivery.queue,
        message_id=delivery.message_id,
        read_count=delivery.read_count,
        target=RunStatus.PERFORMING if may_continue else final.target,
        attempt_status=final.attempt_status,
        outcome=final.outcome,
        output=final.output,
        error_class=error.error_class if error else None,
        error_message=error.message if error else None,
        error=error.document if error else None,
        reattempted_by=final.reattempted_by,
        held=final.held.encode() if final.held else None,
        next_step=following.step_name if following else None,
        next_queue=following.queue if following else None,
        wait=following.wait if following else 0.0,
        not_before=following.not_before if following else None,
        may_continue=may_continue,
        worker=worker.name,
        revision=worker.revision,
        takes_signals=takes_signals,
        trace=trace,
        **event_arrays(events),
    )
    verdict, step_id, attempt, due_in = rows[0][:4]
    taken = taken_from([row[4:] for row in rows if row[4] is not None]) if taking else None
    return Finalized(EndVerdict(verdict), step_id, attempt, due_in, taken)
