"""What an operator does with a dead letter; its batch's member has ended, and stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.states import MemberStatus
from pgbus.engine.storage import messages
from pgbus.engine.storage.messages import HEADERS, MARK

if TYPE_CHECKING:
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.messages import Mark

#: The queue that a dead letter says it came from, which may be any text.
_SOURCE = """
SELECT m.headers -> 'dead_letter' ->> 'queue' FROM pgmq."q_{queue}" m
 WHERE m.msg_id = CAST(:message_id AS bigint)
"""

#: Sends a dead letter anew. A batch's member becomes a job of its own: the batch has counted it.
_RETRY = f"""
WITH taken AS (DELETE FROM pgmq."q_{{queue}}" WHERE msg_id = CAST(:message_id AS bigint) RETURNING message, headers)
SELECT pgmq.send(CAST(:source AS text),
                 CASE WHEN (SELECT o.batch_id FROM {{schema}}.member_of(m.message) o) IS NULL THEN m.message
                      ELSE m.message - 'batch' END,
                 {HEADERS} - 'dead_letter' || {MARK}, clock_timestamp())
  FROM taken m
"""

#: A dead letter among the newest (there is no index) that one delivery of a message became.
_CAME_OF = """
SELECT 1 FROM (SELECT m.headers FROM pgmq."q_{queue}" m ORDER BY m.msg_id DESC LIMIT 10000) newest
 WHERE newest.headers -> 'dead_letter' @> jsonb_build_object(
    'queue', CAST(:source AS text), 'message_id', CAST(:message_id AS bigint),
    'read_count', CAST(:read_count AS integer))
 LIMIT 1
"""

_MARK_DISCARDED = f"""
UPDATE pgmq."q_{{queue}}" m SET headers = {HEADERS} || {MARK}
 WHERE m.msg_id = CAST(:message_id AS bigint)
RETURNING m.msg_id
"""


def source(connection: Connection, queue: str, message_id: int) -> str | None:
    """Return the name, any text, of the queue that a dead letter says it came from."""
    row = connection.row(_SOURCE.replace("{queue}", queue), message_id=message_id)
    return row[0] if row else None


def came_of(connection: Connection, queue: str, delivery: Delivery) -> bool:
    """Tell whether a message has become a dead letter at this very delivery, not long ago."""
    return bool(
        connection.rows(
            _CAME_OF.replace("{queue}", queue),
            source=delivery.queue,
            message_id=delivery.message_id,
            read_count=delivery.read_count,
        )
    )


def retry(connection: Connection, queue: str, message_id: int, *, to: str, by: Mark) -> bool:
    """Send a dead letter anew to the queue `to`; False: it is gone."""
    return bool(
        connection.rows(
            _RETRY.replace("{queue}", queue),
            message_id=message_id,
            source=to,
            **by.parameters("retried"),
        )
    )


def discard(connection: Connection, queue: str, message_id: int, *, by: Mark) -> bool:
    """Archive a dead letter, with who discarded it; False: it is gone.

    The connection must be in a transaction.
    """
    marked = connection.rows(
        _MARK_DISCARDED.replace("{queue}", queue),
        message_id=message_id,
        **by.parameters(MemberStatus.DISCARDED),
    )
    if marked:
        messages.archive(connection, queue, message_id)
    return bool(marked)
