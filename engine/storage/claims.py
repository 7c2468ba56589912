"""How a worker comes by its work: messages taken, and the attempts they stand for claimed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psycopg

from pgbus.engine.storage.database import array_literal
from pgbus.engine.storage.processes import BEAT, SEE_REVISION
from pgbus.engine.storage.runs import locked_too_long

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.storage.database import Connection


class ClaimVerdict(StrEnum):
    """What a worker found (`functions/30_claim.sql`, `31_take.sql`).

    A message that is no step's is a `JOB`, or `WITHDRAWN` with its batch. `IDLE` is of no
    message: there was none.
    """

    CLAIMED = "claimed"
    GUARDED = "guarded"
    LOCKED = "locked"
    CRASHED = "crashed"
    WAITING = "waiting"
    JOB = "job"
    WITHDRAWN = "withdrawn"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message a worker took, with what it needs to act on it (see `take`).

    Only a job's has a `body`, the message as JSON text; only a step's has what follows.
    """

    verdict: ClaimVerdict
    queue: str
    message_id: int
    read_count: int
    body: str | None
    workflow_id: str
    workflow_class: str
    subject_type: str | None
    subject_id: str | None
    arguments: str
    step_id: int
    step_name: str
    attempt: int
    trace: str | None = None

    @property
    def is_job(self) -> bool:
        """Whether it is no step's."""
        return self.verdict in (ClaimVerdict.JOB, ClaimVerdict.WITHDRAWN)


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to take: seconds until the next message is visible and the timer has one to send."""

    next_visible: float | None
    next_send: float | None


@dataclass(frozen=True, slots=True)
class Taking:
    """What a worker takes: `queues` is an array literal of physical names, in the order to read.

    A message stays invisible for `visibility` seconds. `beat` adds the process's heartbeat to
    the same statement (`processes.BEAT`'s parameters).
    """

    queues: str
    quantity: int
    visibility: int
    beat: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """Who claims: `name` is hostname:pid, `revision` the code it runs.

    `unguarded` lists what may be claimed without asking guards, as `class#step`.
    """

    name: str
    revision: str | None
    unguarded: Sequence[str] = ()
    _unguarded_array: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_unguarded_array", array_literal(self.unguarded))


#: The columns of `take()`, called t: a `Delivery`'s, then an `Idle`'s.
TAKEN = """
t.verdict, t.queue, t.message_id, t.read_count, t.body, t.workflow_id, t.workflow_class,
t.subject_type, t.subject_id, t.arguments, t.step_id, t.step_name, t.attempt, t.trace, t.next_visible,
t.next_send
"""

TAKE_CALL = """
{schema}.take(CAST(:queues AS text[]), CAST(:quantity AS integer), CAST(:visibility AS integer),
                            CAST(:unguarded AS text[]), CAST(:worker AS text), CAST(:revision AS text))
"""

_TAKE = f"SELECT {TAKEN} FROM {TAKE_CALL} t"

_BEAT_AND_TAKE = f"WITH seen AS ({SEE_REVISION}), beat AS ({BEAT}) {_TAKE}"

_CLAIM = """
SELECT verdict, workflow_class, subject_type, subject_id, arguments, step_id, step_name, attempt, trace
  FROM {schema}.claim(CAST(:workflow_id AS uuid), CAST(:queue AS text), CAST(:message_id AS bigint),
                      CAST(:read_count AS integer), true, NULL, CAST(:worker AS text), CAST(:revision AS text))
"""

#: What this worker has claimed: to be compared with what it knows of. Nothing, while another worker
#: of the same host name and pid (containers may share both) could have claimed it under that name.
_CLAIMS = """
SELECT 'claimed', s.queue, s.message_id, s.read_count, NULL, w.workflow_id::text, w.workflow_class,
       w.subject_type, w.subject_id, w.arguments::text, s.step_id, s.step_name, s.attempt, s.trace
  FROM {schema}.workflows w JOIN {schema}.workflow_steps s ON s.step_id = w.step_id
 WHERE w.lane = 'moving' AND w.status = 'performing' AND s.status = 'in_progress'
   AND s.worker = CAST(:worker AS text)
   AND s.started_at > (SELECT me.started_at FROM {schema}.processes me
                        WHERE me.process_id = CAST(:process_id AS uuid)
                          AND NOT EXISTS (SELECT FROM {schema}.processes other
                                           WHERE other.host = me.host AND other.pid = me.pid AND other.kind = me.kind
                                             AND other.process_id <> me.process_id))
"""


def take(connection: Connection, worker: Worker, taking: Taking) -> list[Delivery] | Idle:
    """Take messages that need work, their attempts claimed where that is possible at once."""
    beat = taking.beat
    rows = connection.rows(
        _TAKE if beat is None else _BEAT_AND_TAKE,
        **take_parameters(worker, taking),
        worker=worker.name,
        revision=worker.revision,
        **(beat or {}),
    )
    return taken_from(rows)


def take_parameters(worker: Worker, taking: Taking) -> dict[str, object]:
    """Return the parameters of `TAKE_CALL`, without the worker's name and revision."""
    return {
        "queues": taking.queues,
        "quantity": taking.quantity,
        "visibility": taking.visibility,
        "unguarded": worker._unguarded_array,  # noqa: SLF001 (the two are one module's)
    }


def taken_from(rows: list[tuple[Any, ...]]) -> list[Delivery] | Idle:
    """Return what rows of `TAKEN` say."""
    if len(rows) == 1 and rows[0][0] == ClaimVerdict.IDLE:
        return Idle(*rows[0][-2:])
    return [_delivery(row[:-2]) for row in rows]


def _delivery(row: tuple[Any, ...]) -> Delivery:
    return Delivery(ClaimVerdict(row[0]), *row[1:])


def of_process(connection: Connection, worker: Worker, process_id: str) -> list[Delivery]:
    """Return the attempts that this process has claimed and not ended, as deliveries."""
    rows = connection.rows(_CLAIMS, worker=worker.name, process_id=process_id)
    return [_delivery(row) for row in rows]


def claim(connection: Connection, worker: Worker, delivery: Delivery) -> Delivery | None:
    """Claim the attempt a message stands for, waiting for its run's lock; None: nothing to do.

    Raise `RunLocked` when another transaction keeps the lock.
    """
    try:
        row = connection.row(
            _CLAIM,
            workflow_id=delivery.workflow_id,
            queue=delivery.queue,
            message_id=delivery.message_id,
            read_count=delivery.read_count,
            worker=worker.name,
            revision=worker.revision,
        )
    except psycopg.errors.LockNotAvailable as error:
        raise locked_too_long(delivery.workflow_id) from error
    if row is None:
        return None
    return Delivery(
        ClaimVerdict(row[0]),
        delivery.queue,
        delivery.message_id,
        delivery.read_count,
        None,
        delivery.workflow_id,
        *row[1:],
    )
