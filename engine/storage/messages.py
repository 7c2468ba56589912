"""Queues and messages, through PGMQ's functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pgbus.engine.storage.database import Connection

#: Those that have a reader: a queue that somebody else made is none of ours.
QUEUES = """
SELECT queue_name FROM pgmq.meta
 WHERE EXISTS (SELECT FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace AND proname = 'read_' || queue_name)
"""

_CREATE = "SELECT {schema}.make_queue(CAST(:queue AS text))"

#: Sends a message for the later of `wait` seconds from now and `not_before`, and wakes workers for it.
_SEND = """
SELECT {schema}.send_job(CAST(:queue AS text), CAST(:body AS jsonb), CAST(:wait AS double precision),
                         CAST(:not_before AS timestamptz))
"""

#: Moves the messages' visibility to `seconds` from now; a message that is gone stays gone.
_KEEP_INVISIBLE = """
SELECT {schema}.keep_invisible(CAST(:queue AS text), CAST(:message_ids AS bigint[]), CAST(:seconds AS integer))
"""

_SET_VISIBLE_IN = """
SELECT msg_id FROM pgmq.set_vt(CAST(:queue AS text), CAST(:message_id AS bigint),
    clock_timestamp() + make_interval(secs => CAST(:seconds AS double precision)))
"""

_NOTIFY = "SELECT pg_notify(CAST(:channel AS text), CAST(:payload AS text))"

#: Sends what the timer has to send; returns how many.
_SEND_DUE = "SELECT {schema}.send_due(CAST(:limit AS integer))"

_DELETE = "SELECT pgmq.delete(CAST(:queue AS text), CAST(:message_id AS bigint))"

#: Has a worker look at a run: a message that no attempt names claims nothing.
_NUDGE = """
SELECT {schema}.send_step(CAST(:workflow_id AS uuid), CAST(:queue AS text), clock_timestamp(), true)
"""

_ARCHIVE = "SELECT pgmq.archive(CAST(:queue AS text), CAST(:message_id AS bigint))"

_ARCHIVE_ALL = "SELECT pgmq.archive(CAST(:queue AS text), CAST(:message_ids AS bigint[]))"

#: Fragments over a message `m` of the queue `{queue}`. One that names a run is its step's, as for who takes it.
IS_STEP = (
    "coalesce(m.message ->> 'workflow_id' ~ '^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$', false)"
)

#: Its last delivery failed, and the next has not come yet.
IS_TO_BE_RETRIED = """
EXISTS (SELECT FROM {schema}.failed_jobs f
         WHERE f.queue = '{queue}' AND f.message_id = m.msg_id AND f.read_count = m.read_ct)
"""

#: A worker has it.
IS_IN_HAND = f"(m.vt > statement_timestamp() AND m.read_ct > 0 AND NOT {IS_TO_BE_RETRIED})"

#: Its headers, which may have come from anywhere; and what a `Mark` adds to them.
HEADERS = "CASE jsonb_typeof(m.headers) WHEN 'object' THEN m.headers ELSE '{}' END"
MARK = """
jsonb_build_object(CAST(:mark AS text), jsonb_build_object(
    'actor', CAST(:actor AS text), 'reason', CAST(:reason AS text), 'at', clock_timestamp()))
"""


@dataclass(frozen=True, slots=True)
class Mark:
    """Who did something to a message, and why, as its headers keep it."""

    actor: str
    reason: str | None

    def parameters(self, done: str) -> dict[str, object]:
        """Return the parameters of `MARK`; `done` is the header's name."""
        return {"mark": done, "actor": self.actor, "reason": self.reason}


def queues(connection: Connection) -> set[str]:
    """Return the physical names of the queues that this schema's workers can read."""
    return {row[0] for row in connection.rows(QUEUES)}


def create_queue(connection: Connection, queue: str) -> None:
    """Create the queue unless it exists."""
    connection.rows(_CREATE, queue=queue)


def send(
    connection: Connection, queue: str, body: str, *, wait: float, not_before: datetime | None
) -> int:
    """Send a message of JSON text; return its id."""
    row = connection.row(_SEND, queue=queue, body=body, wait=wait, not_before=not_before)
    return int(row[0]) if row else 0


def keep_invisible(
    connection: Connection, queue: str, message_ids: Sequence[int], seconds: int
) -> None:
    """Keep messages that are being worked on from being delivered again."""
    connection.rows(_KEEP_INVISIBLE, queue=queue, message_ids=list(message_ids), seconds=seconds)


def set_visible_in(connection: Connection, queue: str, message_id: int, seconds: float) -> None:
    """Let a message be delivered again in this many seconds."""
    connection.rows(_SET_VISIBLE_IN, queue=queue, message_id=message_id, seconds=seconds)


def notify(connection: Connection, channel: str, payload: str) -> None:
    """Wake whoever listens on the channel; workers expect the name of a queue."""
    connection.rows(_NOTIFY, channel=channel, payload=payload)


def send_due(connection: Connection, limit: int) -> int:
    """Send the messages of attempts that come due now; return how many."""
    row = connection.row(_SEND_DUE, limit=limit)
    return int(row[0]) if row else 0


def delete(connection: Connection, queue: str, message_id: int) -> None:
    """Delete a message that needs nothing any more."""
    connection.rows(_DELETE, queue=queue, message_id=message_id)


def nudge(connection: Connection, queue: str, workflow_id: str) -> None:
    """Have a worker look whether there is something for a run that waits."""
    connection.rows(_NUDGE, queue=queue, workflow_id=workflow_id)


def archive(connection: Connection, queue: str, message_id: int) -> bool:
    """Move a message that has been worked off to its queue's archive; False: it is gone."""
    row = connection.row(_ARCHIVE, queue=queue, message_id=message_id)
    return row is not None and bool(row[0])


def archive_all(connection: Connection, queue: str, message_ids: Sequence[int]) -> None:
    """Move these messages to their queue's archive."""
    connection.rows(_ARCHIVE_ALL, queue=queue, message_ids=list(message_ids))
