"""What becomes of a job's message after an execution; each a single statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.storage import messages

if TYPE_CHECKING:
    from pgbus.engine.decision import ErrorEntry
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.database import Connection

#: Archives a message that failed before, and forgets that it did.
_COMPLETE_RETRIED = """
WITH recovered AS (
    DELETE FROM {schema}.failed_jobs
     WHERE queue = CAST(:queue AS text) AND message_id = CAST(:message_id AS bigint)
)
SELECT pgmq.archive(CAST(:queue AS text), CAST(:message_id AS bigint))
"""

_RETRY = """
SELECT {schema}.retry_job(CAST(:queue AS text), CAST(:message_id AS bigint), CAST(:read_count AS integer),
                          CAST(:wait AS double precision), CAST(:job AS text), CAST(:error_class AS text),
                          CAST(:error_message AS text), CAST(:error AS jsonb))
"""

_DEAD_LETTER = """
SELECT {schema}.dead_letter_job(
    CAST(:queue AS text), CAST(:message_id AS bigint), CAST(:read_count AS integer),
    CAST(:dead_letters AS text), CAST(:error_class AS text), CAST(:error_message AS text),
    CAST(:error AS jsonb))
"""


def complete(connection: Connection, delivery: Delivery) -> None:
    """Archive the message of a job that returned."""
    if delivery.read_count == 1:
        messages.archive(connection, delivery.queue, delivery.message_id)
    else:
        connection.rows(_COMPLETE_RETRIED, queue=delivery.queue, message_id=delivery.message_id)


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
) -> bool:
    """Move the message, with its error in the headers, to the queue of the dead letters.

    Return False, changing nothing, when it is gone or was delivered to another worker meanwhile.
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
    return row is not None and bool(row[0])
