"""Which queues there are, and which of them are paused: a row of `queues` is a pause.

A pause has a row for each priority, so that whoever asks of a message asks by its queue's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.storage import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.storage.database import Connection

#: What workers are notified of when a queue is paused or goes on; none is called so: each has a prefix.
CHANGED = "queues"

#: Lets those who pause and resume take turns; workers, who only read, do not wait.
_TAKE_TURNS = "LOCK TABLE {schema}.queues IN SHARE ROW EXCLUSIVE MODE"

#: Those with a reader, and whether they are paused.
_FOUND = f"""
SELECT m.queue_name, EXISTS (SELECT FROM {{schema}}.queues q WHERE q.queue = m.queue_name)
  FROM ({messages.QUEUES}) m
"""

_PAUSE = """
INSERT INTO {schema}.queues (queue, actor, reason, paused_at)
SELECT queue, CAST(:actor AS text), CAST(:reason AS text), clock_timestamp()
  FROM unnest(CAST(:queues AS text[])) queue
    ON CONFLICT DO NOTHING
RETURNING queue
"""

_PAUSED = "SELECT queue FROM {schema}.queues"

_RESUME = """
DELETE FROM {schema}.queues WHERE queue = ANY (CAST(:queues AS text[])) RETURNING queue
"""


def found(connection: Connection) -> dict[str, bool]:
    """Return the queues that this schema's workers can read, and whether each is paused."""
    return dict(connection.rows(_FOUND))


def take_turns(connection: Connection) -> None:
    """Wait for whoever pauses or resumes a queue just now; the connection must be in a transaction."""
    connection.rows(_TAKE_TURNS)


def paused(connection: Connection) -> list[str]:
    """Return the queues that are paused, also those that do not exist (any more)."""
    return [row[0] for row in connection.rows(_PAUSED)]


def pause(connection: Connection, queues: Sequence[str], *, actor: str, reason: str | None) -> bool:
    """Let these be read no more; False: they are paused already."""
    return bool(connection.rows(_PAUSE, queues=list(queues), actor=actor, reason=reason))


def resume(connection: Connection, queues: Sequence[str]) -> bool:
    """Let these be read again; False: they are not paused."""
    return bool(connection.rows(_RESUME, queues=list(queues)))
