"""Signals of runs: stored as they come, claimed by a step, consumed when that step has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine import codec
from pgbus.engine.codec import storable
from pgbus.engine.states import SignalStatus
from pgbus.engine.storage.trail import cut

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One row of `workflow_signals`; `step_name` is the step that claimed it."""

    signal_id: int
    name: str
    encoded_payload: str | None
    idempotency_key: str | None
    actor: str
    reason: str | None
    status: SignalStatus
    step_name: str | None
    received_at: datetime
    claimed_at: datetime | None
    consumed_at: datetime | None

    @property
    def payload(self) -> dict[str, Any]:
        """What it came with, {} when nothing; subjects in it are references."""
        return {} if self.encoded_payload is None else dict(codec.decode(self.encoded_payload))


@dataclass(frozen=True, slots=True)
class NewSignal:
    """What a caller sends; the payload is encoded."""

    name: str
    payload: str | None
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class AtGate:
    """What an attempt finds at its gate.

    `held` is the oldest signal that its step has claimed and not consumed; `woken` tells that it was
    claimed before this attempt. `pending` are those that may match, oldest first.
    """

    timed_out: bool
    held: SignalRow | None
    woken: bool
    pending: tuple[SignalRow, ...]


_COLUMNS = """
g.signal_id, g.name, g.payload::text, g.idempotency_key, g.actor, g.reason, g.status, g.step_name,
g.received_at, g.claimed_at, g.consumed_at
"""

_STORE = f"""
INSERT INTO {{schema}}.workflow_signals AS g
    (workflow_id, name, payload, idempotency_key, actor, reason, status, received_at)
VALUES (CAST(:workflow_id AS uuid), :name, CAST(:payload AS jsonb), CAST(:idempotency_key AS text), :actor,
        CAST(:reason AS text), 'pending', clock_timestamp())
RETURNING {_COLUMNS}
"""

_BY_KEY = f"""
SELECT {_COLUMNS} FROM {{schema}}.workflow_signals g
 WHERE g.workflow_id = CAST(:workflow_id AS uuid) AND g.idempotency_key = :idempotency_key
"""

_OF_RUN = f"""
SELECT {_COLUMNS} FROM {{schema}}.workflow_signals g
 WHERE g.workflow_id = CAST(:workflow_id AS uuid) ORDER BY g.signal_id
"""

_AT_GATE = f"""
SELECT s.timed_out, g.claimed_at < s.started_at, {_COLUMNS}
  FROM {{schema}}.workflow_steps s
  LEFT JOIN {{schema}}.workflow_signals g
    ON g.workflow_id = s.workflow_id
   AND (g.status = 'claimed' AND g.step_name = s.step_name
        OR g.status = 'pending' AND g.name = coalesce(CAST(:name AS text), g.name))
 WHERE s.step_id = CAST(:step_id AS bigint)
 ORDER BY g.signal_id
"""

_CLAIM = """
UPDATE {schema}.workflow_signals
   SET status = 'claimed', step_name = CAST(:step_name AS text), step_id = CAST(:step_id AS bigint),
       claimed_at = clock_timestamp()
 WHERE workflow_id = CAST(:workflow_id AS uuid) AND signal_id = CAST(:signal_id AS bigint)
   AND status = 'pending'
RETURNING signal_id
"""

_CONSUME = "SELECT {schema}.consume_signals(CAST(:workflow_id AS uuid), CAST(:step_name AS text))"


def _signal_from(row: tuple[Any, ...]) -> SignalRow:
    values = list(row)
    values[6] = SignalStatus(values[6])
    return SignalRow(*values)


def store(
    connection: Connection, workflow_id: str, new: NewSignal, *, actor: str, reason: str | None
) -> SignalRow:
    """Store a signal to a locked run as pending."""
    (row,) = connection.rows(
        _STORE,
        workflow_id=workflow_id,
        name=new.name,
        payload=new.payload,
        idempotency_key=new.idempotency_key,
        actor=storable(actor),
        reason=cut(reason),
    )
    return _signal_from(row)


def by_key(connection: Connection, workflow_id: str, idempotency_key: str) -> SignalRow | None:
    """Return the signal that the run got under this key, if any."""
    row = connection.row(_BY_KEY, workflow_id=workflow_id, idempotency_key=idempotency_key)
    return _signal_from(row) if row else None


def of_run(connection: Connection, workflow_id: str) -> list[SignalRow]:
    """Return all signals of a run, oldest first."""
    return [_signal_from(row) for row in connection.rows(_OF_RUN, workflow_id=workflow_id)]


def at_gate(connection: Connection, step_id: int, name: str | None) -> AtGate:
    """Return what the attempt finds; pending signals only of this name, unless None."""
    rows = connection.rows(_AT_GATE, step_id=step_id, name=name)
    found = [(row[1], _signal_from(row[2:])) for row in rows if row[2] is not None]
    claimed = [(woken, signal) for woken, signal in found if signal.status is SignalStatus.CLAIMED]
    woken, held = claimed[0] if claimed else (False, None)
    return AtGate(
        timed_out=bool(rows and rows[0][0]),
        held=held,
        woken=bool(woken),
        pending=tuple(signal for _, signal in found if signal.status is SignalStatus.PENDING),
    )


def claim(connection: Connection, workflow_id: str, signal_id: int, step: tuple[str, int]) -> None:
    """Let the attempt, given as step name and step_id, of a locked run have a pending signal."""
    step_name, step_id = step
    row = connection.row(
        _CLAIM, workflow_id=workflow_id, signal_id=signal_id, step_name=step_name, step_id=step_id
    )
    if row is None:
        raise RuntimeError(
            f"A bug in pgbus: signal {signal_id} of locked run {workflow_id} is not pending."
        )


def consume(connection: Connection, attempt: AttemptRow) -> None:
    """Consume what the step of this attempt, which has ended, has claimed."""
    connection.rows(_CONSUME, workflow_id=attempt.workflow_id, step_name=attempt.step_name)
