"""What becomes of a job's message after an execution; each a single statement.

The same statement ends the batch's member that the message is, so neither is without the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pgbus.engine.states import MemberStatus
from pgbus.engine.storage import messages

if TYPE_CHECKING:
    from pgbus.engine.decision import ErrorEntry
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.database import Connection

#: Archives a message that failed before, or is a batch's member.
_END = """
SELECT {schema}.end_job(CAST(:queue AS text), CAST(:message_id AS bigint), CAST(:message AS jsonb),
                        CAST(:status AS text))::text
"""

_RETRY = """
SELECT {schema}.retry_job(CAST(:queue AS text), CAST(:message_id AS bigint), CAST(:read_count AS integer),
                          CAST(:wait AS double precision), CAST(:job AS text), CAST(:error_class AS text),
                          CAST(:error_message AS text), CAST(:error AS jsonb))
"""

_DEAD_LETTER = """
SELECT finished_batch::text FROM {schema}.dead_letter_job(
    CAST(:queue AS text), CAST(:message_id AS bigint), CAST(:read_count AS integer),
    CAST(:dead_letters AS text), CAST(:error_class AS text), CAST(:error_message AS text),
    CAST(:error AS jsonb))
"""


class DeadLettered(NamedTuple):
    """Whether the message was moved, and the batch that this finished."""

    moved: bool
    finished_batch: str | None


def complete(connection: Connection, delivery: Delivery) -> str | None:
    """Archive the message of a job that returned; return the id of a batch that this finished."""
    if delivery.read_count == 1 and '"batch"' not in (delivery.body or ""):
        messages.archive(connection, delivery.queue, delivery.message_id)
        return None
    return _end(connection, delivery, MemberStatus.COMPLETED)


def discard(connection: Connection, delivery: Delivery) -> str | None:
    """Archive the message of a job that is not to run; return the id of a batch that this finished."""
    return _end(connection, delivery, MemberStatus.DISCARDED)


def _end(connection: Connection, delivery: Delivery, status: MemberStatus) -> str | None:
    row = connection.row(
        _END,
        queue=delivery.queue,
        message_id=delivery.message_id,
        message=delivery.body or "null",
        status=status,
    )
    return row[0] if row else None


def retry(
    connection: Connection, delivery: Delivery, job: str, error: ErrorEntry, *, wait: float
) -> bool:
    """Let the message be delivered again in `wait` seconds and keep its error.

    Return False, changing nothing, when it is gone or was delivered to another worker meanwhile.
    """
    row = connection.row(
        _RETRY,
        queue=delivery.queue,
        message_id=delivery.message_id,
        read_count=delivery.read_count,
        wait=wait,
        job=job,
        error_class=error.error_class,
        error_message=error.message,
        error=error.document,
    )
    return row is not None and bool(row[0])


def dead_letter(
    connection: Connection, delivery: Delivery, error: ErrorEntry, dead_letters: str
) -> DeadLettered:
    """Move the message, with its error in the headers, to the queue of the dead letters.

    Nothing is changed when it is gone or was delivered to another worker meanwhile.
    """
    row = connection.row(
        _DEAD_LETTER,
        queue=delivery.queue,
        message_id=delivery.message_id,
        read_count=delivery.read_count,
        dead_letters=dead_letters,
        error_class=error.error_class,
        error_message=error.message,
        error=error.document,
    )
    return DeadLettered(row is not None, row[0] if row else None)
