"""What becomes of a job's message after an execution, or by an operator's word.

What ends the message ends the batch's member that it is: neither is without the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pgbus.engine.states import MemberStatus
from pgbus.engine.storage import messages
from pgbus.engine.storage.messages import HEADERS, IS_IN_HAND, IS_STEP, MARK, Mark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.decision import ErrorEntry
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.database import Connection

#: Archives a message that failed before, or is a batch's member; the first column: it was there.
_END = """
SELECT EXISTS (SELECT FROM pgmq."q_{queue}" m WHERE m.msg_id = CAST(:message_id AS bigint)),
       {schema}.end_job(CAST(:queue AS text), CAST(:message_id AS bigint), CAST(:message AS jsonb),
                        CAST(:status AS text))::text
"""

#: The batch that the end of this member finished: then one transaction wrote both rows last.
_FINISHED_BY = """
SELECT b.batch_id::text
  FROM {schema}.member_of(CAST(:message AS jsonb)) o
  JOIN {schema}.batch_jobs j ON j.batch_id = o.batch_id AND j.number = o.number
  JOIN {schema}.batches b ON b.batch_id = o.batch_id
 WHERE b.finished_at IS NOT NULL AND b.xmin = j.xmin
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

#: `:read_count` is how often the message had been delivered when its caller saw it; None: whatever it is.
_AS_SEEN = "m.read_ct = coalesce(CAST(:read_count AS integer), m.read_ct)"

_ONE_FREE = f"""
m.msg_id = CAST(:message_id AS bigint) AND NOT {IS_STEP} AND NOT {IS_IN_HAND} AND {_AS_SEEN}
"""

#: Makes a job due that waits for its retry, or for its time.
_MAKE_DUE = f"""
UPDATE pgmq."q_{{queue}}" m SET vt = clock_timestamp()
 WHERE m.vt > statement_timestamp() AND {_ONE_FREE}
RETURNING m.msg_id
"""

#: Notes on a job that nobody has in hand why it is discarded.
_MARK_DISCARDED = f"""
UPDATE pgmq."q_{{queue}}" m SET headers = {HEADERS} || {MARK}
 WHERE {_ONE_FREE}
RETURNING m.message::text
"""

_STANDING = f"""
SELECT {IS_STEP}, {IS_IN_HAND}, {_AS_SEEN}
  FROM pgmq."q_{{queue}}" m WHERE m.msg_id = CAST(:message_id AS bigint)
"""

_FORGET_FAILED = """
DELETE FROM {schema}.failed_jobs
 WHERE queue = CAST(:queue AS text) AND message_id = ANY (CAST(:message_ids AS bigint[]))
RETURNING message_id
"""

_NEWEST = 'SELECT max(msg_id) FROM pgmq."q_{queue}"'

_FREE = f"NOT {IS_STEP} AND NOT {IS_IN_HAND} AND m.msg_id <= CAST(:until AS bigint)"
_IS_MEMBER = "coalesce(m.message ? 'batch', false)"

_COUNT_FREE = f'SELECT count(*) FROM pgmq."q_{{queue}}" m WHERE {_FREE}'

_WINDOW_END = """
SELECT msg_id FROM pgmq."q_{queue}" WHERE msg_id > CAST(:after AS bigint)
 ORDER BY msg_id LIMIT 1 OFFSET CAST(:window AS integer) - 1
"""

_FREE_BEHIND = f"{_FREE} AND m.msg_id > CAST(:after AS bigint)"

#: Notes on jobs of no batch that nobody has in hand why they are discarded.
_MARK_FREE = f"""
UPDATE pgmq."q_{{queue}}" m SET headers = {HEADERS} || {MARK}
 WHERE m.msg_id = ANY (ARRAY(
    SELECT m.msg_id FROM pgmq."q_{{queue}}" m WHERE {_FREE_BEHIND} AND NOT {_IS_MEMBER}
       FOR UPDATE SKIP LOCKED))
RETURNING m.msg_id
"""

_FREE_MEMBERS = f"""
SELECT m.msg_id FROM pgmq."q_{{queue}}" m WHERE {_FREE_BEHIND} AND {_IS_MEMBER} ORDER BY m.msg_id
"""

_LEFT = f"""
SELECT count(*) FILTER (WHERE is_step), count(*) FILTER (WHERE NOT is_step),
       EXISTS (SELECT FROM pgmq."q_{{queue}}" m WHERE {_FREE})
  FROM (SELECT {IS_STEP} AS is_step FROM pgmq."q_{{queue}}" m
         WHERE m.msg_id <= CAST(:until AS bigint) AND ({IS_STEP} OR {IS_IN_HAND})
         LIMIT CAST(:limit AS integer)) left_over
"""


class Ended(NamedTuple):
    """Whether it was this that ended the message, and the batch that this finished."""

    done: bool
    finished_batch: str | None


class Standing(NamedTuple):
    """How it is with a message: a run's, in a worker's hands, as it was seen."""

    is_step: bool
    in_hand: bool
    as_seen: bool


class Left(NamedTuple):
    """What a purge left: how many messages of runs, how many jobs in hand, and whether any other."""

    steps: int
    in_hand: int
    others: bool


def complete(connection: Connection, delivery: Delivery) -> Ended:
    """Archive the message of a job that returned."""
    if delivery.read_count == 1 and '"batch"' not in (delivery.body or ""):
        done = messages.archive(connection, delivery.queue, delivery.message_id)
        return Ended(done, None)
    return _end(
        connection, delivery.queue, delivery.message_id, delivery.body, MemberStatus.COMPLETED
    )


def discard(connection: Connection, delivery: Delivery) -> Ended:
    """Archive the message of a job that is not to run."""
    return _end(
        connection, delivery.queue, delivery.message_id, delivery.body, MemberStatus.DISCARDED
    )


def _end(
    connection: Connection, queue: str, message_id: int, body: str | None, status: MemberStatus
) -> Ended:
    statement = _END.replace("{queue}", queue)
    [row] = connection.rows(
        statement, queue=queue, message_id=message_id, message=body or "null", status=status
    )
    return Ended(*row)


def finished_by(connection: Connection, delivery: Delivery) -> str | None:
    """Return the id of the batch that the end of this member finished, when the answer that told it was lost.

    None also once a step has taken up the batch's end.
    """
    row = connection.row(_FINISHED_BY, message=delivery.body or "null")
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
) -> Ended:
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
    return Ended(row is not None, row[0] if row else None)


def make_due(
    connection: Connection, queue: str, message_id: int, *, read_count: int | None
) -> bool:
    """Let the message of a job that waits be delivered now; False: see its `standing`."""
    statement = _MAKE_DUE.replace("{queue}", queue)
    return bool(connection.rows(statement, message_id=message_id, read_count=read_count))


def withdraw(
    connection: Connection, queue: str, message_id: int, *, read_count: int | None, by: Mark
) -> Ended:
    """Archive the message of a job that is not to run, with who withdrew it; nothing: see its `standing`.

    The connection must be in a transaction. A failure whose message is gone is forgotten.
    """
    marked = connection.row(
        _MARK_DISCARDED.replace("{queue}", queue),
        message_id=message_id,
        read_count=read_count,
        **by.parameters(MemberStatus.DISCARDED),
    )
    if marked is not None:
        return _end(connection, queue, message_id, marked[0], MemberStatus.DISCARDED)
    if standing(connection, queue, message_id, read_count=read_count) is None:
        forgotten = _forget_failed(connection, queue, [message_id])
        return Ended(forgotten, None)
    return Ended(done=False, finished_batch=None)


def standing(
    connection: Connection, queue: str, message_id: int, *, read_count: int | None
) -> Standing | None:
    """Tell how it is with a message now; None when it is gone."""
    statement = _STANDING.replace("{queue}", queue)
    row = connection.row(statement, message_id=message_id, read_count=read_count)
    return Standing(*row) if row else None


def newest(connection: Connection, queue: str) -> int:
    """Return the id of the newest message; 0 when there is none."""
    ((message_id,),) = connection.rows(_NEWEST.replace("{queue}", queue))
    return message_id or 0


def count_free(connection: Connection, queue: str, *, until: int) -> int:
    """Return how many jobs there are, up to an id, that nobody has in hand."""
    ((number,),) = connection.rows(_COUNT_FREE.replace("{queue}", queue), until=until)
    return int(number)


def window_end(connection: Connection, queue: str, *, after: int, until: int, window: int) -> int:
    """Return the last of the next so many messages after an id, whatever they are; at most `until`."""
    row = connection.row(_WINDOW_END.replace("{queue}", queue), after=after, window=window)
    return min(row[0], until) if row else until


def withdraw_free(connection: Connection, queue: str, *, after: int, until: int, by: Mark) -> int:
    """Withdraw jobs of no batch that nobody has in hand, after one id and up to another; return how many.

    The connection must be in a transaction.
    """
    marked = connection.rows(
        _MARK_FREE.replace("{queue}", queue),
        after=after,
        until=until,
        **by.parameters(MemberStatus.DISCARDED),
    )
    message_ids = [row[0] for row in marked]
    messages.archive_all(connection, queue, message_ids)
    _forget_failed(connection, queue, message_ids)
    return len(message_ids)


def free_members(connection: Connection, queue: str, *, after: int, until: int) -> list[int]:
    """Return the messages of batches' members that nobody has in hand, after one id and up to another."""
    statement = _FREE_MEMBERS.replace("{queue}", queue)
    return [row[0] for row in connection.rows(statement, after=after, until=until)]


def left(connection: Connection, queue: str, *, until: int, limit: int) -> Left:
    """Return what is left up to an id, counted up to the limit."""
    [row] = connection.rows(_LEFT.replace("{queue}", queue), until=until, limit=limit)
    return Left(*row)


def _forget_failed(connection: Connection, queue: str, message_ids: Sequence[int]) -> bool:
    return bool(connection.rows(_FORGET_FAILED, queue=queue, message_ids=list(message_ids)))
