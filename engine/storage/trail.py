"""A run's audit trail: its events, written in the transaction of what they tell of."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from pgbus.engine.codec import storable
from pgbus.engine.storage.database import array_literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.decision import EventEntry
    from pgbus.engine.states import Event, RunStatus
    from pgbus.engine.storage.database import Connection

#: Of a reason, and of each text in an event's details, the trail keeps this many characters.
_LONGEST_TEXT = 1000

_RECORD = """
INSERT INTO {schema}.workflow_events
    (workflow_id, event, step_name, attempt, actor, reason, from_status, to_status, details, created_at)
VALUES (CAST(:workflow_id AS uuid), :event, CAST(:step_name AS text), CAST(:attempt AS integer), :actor,
        CAST(:reason AS text), :source, :target, CAST(:details AS jsonb), clock_timestamp())
"""


def record(
    connection: Connection,
    workflow_id: str,
    entry: EventEntry,
    *,
    source: RunStatus,
    target: RunStatus,
    actor: str,
    step_name: str | None = None,
    attempt: int | None = None,
) -> None:
    """Write one event on the run's trail."""
    connection.rows(
        _RECORD,
        workflow_id=workflow_id,
        event=entry.event,
        step_name=step_name,
        attempt=attempt,
        actor=storable(actor),
        reason=cut(entry.reason),
        source=source,
        target=target,
        details=_details(entry.details),
    )


def event_arrays(events: Sequence[EventEntry]) -> dict[str, object]:
    """Return the events as a database function takes them: `events`, `reasons` and `details`."""
    names = tuple(entry.event for entry in events)
    if all(entry.reason is None and entry.details is None for entry in events):
        return _plain_event_arrays(names)
    return {
        "events": array_literal(names),
        "reasons": [cut(entry.reason) for entry in events],
        "details": [_details(entry.details) for entry in events],
    }


@functools.cache
def _plain_event_arrays(names: tuple[Event, ...]) -> dict[str, object]:
    nothing = "{" + ",".join("NULL" for _ in names) + "}"
    return {"events": array_literal(names), "reasons": nothing, "details": nothing}


def cut(text: str | None) -> str | None:
    """Return as much of a text as a trail keeps; None for a blank one."""
    return storable((text or "").strip())[:_LONGEST_TEXT] or None


def _details(details: dict[str, Any] | None) -> str | None:
    if not details:
        return None
    return json.dumps(
        {
            name: storable(value)[:_LONGEST_TEXT] if isinstance(value, str) else value
            for name, value in details.items()
        }
    )
