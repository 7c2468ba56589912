"""The signals of one run, and which names its class waits for."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import EntryNotFound
from pgbus.engine.insights.documents import Document, Slice
from pgbus.engine.states import SignalStatus

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True)
class StoredSignal:
    """A signal that the run got; `step_name` and `attempt` are those that took it, None before."""

    signal_id: int
    name: str
    status: SignalStatus
    idempotency_key: str | None
    payload: Document
    actor: str
    reason: str | None
    step_name: str | None
    attempt: int | None
    received_at: datetime
    claimed_at: datetime | None
    consumed_at: datetime | None


_SELECT = """
SELECT g.signal_id, g.name, g.status, g.idempotency_key,
       CASE WHEN coalesce(octet_length(d.payload) <= CAST(:inline AS integer), true) THEN d.payload END,
       octet_length(d.payload), g.actor, g.reason, g.step_name, s.attempt,
       g.received_at, g.claimed_at, g.consumed_at
  FROM {schema}.workflow_signals g
 CROSS JOIN LATERAL (SELECT coalesce(g.payload, '{}')::text AS payload OFFSET 0) d
  LEFT JOIN {schema}.workflow_steps s ON s.step_id = g.step_id
 WHERE g.workflow_id = CAST(:workflow_id AS uuid)
"""

#: The newest signals of a run, or those before one.
_NEWEST = f"""{_SELECT}
   AND g.signal_id < coalesce(CAST(:older_than AS bigint), 9223372036854775807)
 ORDER BY g.signal_id DESC
 LIMIT CAST(:limit AS integer)
"""

_ONE = f"{_SELECT} AND g.signal_id = CAST(:signal_id AS bigint)"


def newest(
    connection: Connection,
    workflow_id: str,
    *,
    limit: int,
    older_than: int | None = None,
    inline: int | None = None,
) -> Slice[StoredSignal]:
    """Return the run's newest signals, or those older than the signal of an id.

    Payloads of more than `inline` bytes are left out; None: none is.
    """
    rows = connection.rows(
        _NEWEST, workflow_id=workflow_id, limit=limit + 1, older_than=older_than, inline=inline
    )
    return Slice.cut([_from(row) for row in rows], limit)


def one(connection: Connection, workflow_id: str, signal_id: int) -> StoredSignal:
    """Return a signal of the run with its whole payload; raise `EntryNotFound`."""
    row = connection.row(_ONE, workflow_id=workflow_id, signal_id=signal_id, inline=None)
    if row is None:
        raise EntryNotFound(f"Run {workflow_id} has no signal {signal_id}.")
    return _from(row)


def _from(row: tuple[Any, ...]) -> StoredSignal:
    signal_id, name, status, key, payload, size, *rest = row
    return StoredSignal(signal_id, name, SignalStatus(status), key, Document(payload, size), *rest)


def unexpected(definition: Definition, name: str) -> str | None:
    """Say that no step of the class waits for signals of this name; None when one does, or may."""
    names = {step.wait_for.name for step in definition.steps if step.wait_for}
    if None in names or name in names:
        return None
    known = sorted(known for known in names if known is not None)
    close = get_close_matches(name, known, n=1)
    if close:
        mend = f"did you mean {close[0]!r}?"
    elif known:
        mend = f"there are {', '.join(map(repr, known))}"
    else:
        mend = "none waits for a signal"
    return f"no step of {definition.name} waits for {name!r}; {mend}"
