"""The only module that changes a status; the message goes with it, in the same transaction.

The runner's own moves are database functions (`claim`, `finalize`, `start_run`): one
statement, one commit. The outside verbs lock the run, decide in Python and use the
small statements below; each is checked against `states.TRANSITIONS`.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from pgbus.engine.codec import storable
from pgbus.engine.decision import EventEntry
from pgbus.engine.states import TRANSITIONS, AttemptStatus, Event, Outcome, RunStatus, Verb
from pgbus.engine.storage.processes import BEAT
from pgbus.engine.storage.runs import locked_too_long

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from pgbus.engine.decision import Finalization, NextAttempt
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow, RunRow


#: Of a reason, and of each text in an event's details, the trail keeps this many characters.
_LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True)
class NewRun:
    """What `start_run` writes; documents are encoded."""

    workflow_id: str
    workflow_class: str
    digest: str
    subject_type: str | None
    subject_id: str | None
    arguments: str
    idempotency_key: str | None
    rerun_of: str | None
    step_name: str
    queue: str
    wait: float
    not_before: datetime | None
    actor: str
    reason: str | None
    details: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """What became of a start: `verdict` is started, duplicate or running."""

    verdict: str
    workflow_id: str
    created_at: datetime
    step_id: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message a worker took, with what it needs to act on it (see `take`).

    `verdict` is claimed, guarded, locked or crashed for a step message; job for any
    other, whose `body` is the message as JSON text.
    """

    verdict: str
    queue: str
    message_id: int
    read_count: int
    body: str | None
    workflow_id: str
    workflow_class: str
    definition_digest: str
    status: str
    subject_type: str | None
    subject_id: str | None
    arguments: str
    step_id: int
    step_name: str
    attempt: int


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
class Finalized:
    """What `finalize` did; `step_id` and `attempt` are the next attempt's.

    `taken` is what it was asked to take along; None when it was not asked.
    """

    verdict: str
    status: RunStatus
    step_id: int | None
    attempt: int | None
    due_in: float | None
    taken: list[Delivery] | Idle | None = None


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


_START_RUN = """
SELECT verdict, workflow_id::text, created_at, step_id FROM {schema}.start_run(
    CAST(:workflow_id AS uuid), CAST(:workflow_class AS text), CAST(:digest AS text),
    CAST(:subject_type AS text), CAST(:subject_id AS text), CAST(:arguments AS jsonb),
    CAST(:idempotency_key AS text), CAST(:rerun_of AS uuid), CAST(:step_name AS text), CAST(:queue AS text),
    CAST(:wait AS double precision), CAST(:not_before AS timestamptz), CAST(:actor AS text),
    CAST(:reason AS text), CAST(:details AS jsonb))
"""

_START_RUNS = """
SELECT workflow_id::text, created_at, step_id FROM {schema}.start_runs(
    CAST(:workflow_ids AS uuid[]), CAST(:workflow_class AS text), CAST(:digest AS text),
    CAST(:subject_types AS text[]), CAST(:subject_ids AS text[]), CAST(:arguments AS text[]),
    CAST(:step_name AS text), CAST(:queue AS text), CAST(:wait AS double precision),
    CAST(:not_before AS timestamptz), CAST(:actor AS text), CAST(:reason AS text))
"""

_TAKE_CALL = """
{schema}.take(CAST(:queues AS text[]), CAST(:quantity AS integer), CAST(:visibility AS integer),
                            CAST(:unguarded AS text[]), CAST(:worker AS text), CAST(:revision AS text))
"""

_TAKE = f"SELECT * FROM {_TAKE_CALL}"

_BEAT_AND_TAKE = f"WITH beat AS ({BEAT}) {_TAKE}"

_CLAIM = """
SELECT * FROM {schema}.claim(CAST(:workflow_id AS uuid), CAST(:queue AS text), CAST(:message_id AS bigint),
                             CAST(:read_count AS integer), true, NULL, CAST(:worker AS text), CAST(:revision AS text))
"""

_FINALIZE_CALL = """
{schema}.finalize(
    CAST(:workflow_id AS uuid), CAST(:step_id AS bigint), CAST(:queue AS text), CAST(:message_id AS bigint),
    CAST(:read_count AS integer), CAST(:target AS text),
    CAST(:attempt_status AS text), CAST(:outcome AS text), CAST(:output AS jsonb),
    CAST(:error_class AS text), CAST(:error_message AS text), CAST(:error AS jsonb),
    CAST(:reattempted_by AS text), CAST(:held AS jsonb), CAST(:next_step AS text), CAST(:next_queue AS text),
    CAST(:wait AS double precision), CAST(:not_before AS timestamptz), CAST(:may_continue AS boolean),
    CAST(:worker AS text), CAST(:revision AS text), CAST(:events AS text[]), CAST(:reasons AS text[]),
    CAST(:details AS jsonb[]))
"""

_FINALIZE = f"SELECT * FROM {_FINALIZE_CALL}"

#: What ends one run's stretch takes the next message along: one round trip and commit less.
_FINALIZE_AND_TAKE = f"""
SELECT f.verdict, f.status, f.step_id, f.attempt, f.due_in, t.*
  FROM {_FINALIZE_CALL} f LEFT JOIN LATERAL {_TAKE_CALL} t ON true
"""

#: What this worker has claimed: to be compared with what it knows of.
_CLAIMS = """
SELECT 'claimed', s.queue, s.message_id, s.read_count, NULL, w.workflow_id::text, w.workflow_class,
       w.definition_digest, w.status, w.subject_type, w.subject_id, w.arguments::text,
       s.step_id, s.step_name, s.attempt
  FROM {schema}.workflows w JOIN {schema}.workflow_steps s ON s.step_id = w.step_id
 WHERE w.ended_at IS NULL AND w.status = 'performing' AND s.status = 'in_progress'
   AND s.worker = CAST(:worker AS text)
   AND s.started_at > (SELECT started_at FROM {schema}.processes WHERE process_id = CAST(:process_id AS uuid))
"""

#: Sends what the timer has to send; returns how many.
_SEND_DUE = "SELECT {schema}.send_due(CAST(:limit AS integer))"

#: Guarded by the status that was read under the lock.
_MOVE_RUN = """
UPDATE {schema}.workflows
   SET status = :target, current_step = coalesce(CAST(:current_step AS text), current_step),
       step_id = coalesce(CAST(:step_id AS bigint), step_id), updated_at = clock_timestamp(),
       paused_at = CASE WHEN :target = 'paused' THEN clock_timestamp() END,
       ended_at = CASE WHEN :target IN ('finished', 'cancelled') THEN clock_timestamp() END
 WHERE workflow_id = CAST(:workflow_id AS uuid) AND status = :source
"""

#: Schedules an attempt, with its message, and returns it.
_SCHEDULE = """
SELECT n.step_id, {schema}.schedule_step(n.step_id, CAST(:workflow_id AS uuid), CAST(:step_name AS text),
                                         CAST(:queue AS text), n.at, n.now, true), n.at
  FROM (SELECT nextval('{schema}.workflow_steps_step_id_seq') AS step_id, clock_timestamp() AS now,
               greatest(clock_timestamp() + make_interval(secs => CAST(:wait AS double precision)),
                        CAST(:not_before AS timestamptz)) AS at) n
"""

#: Moves a scheduled attempt to :at, not before now (NULL: it keeps its time), and sends its message.
_RESEND = """
UPDATE {schema}.workflow_steps s
   SET scheduled_at = m.at, message_id = m.message_id, queue = CAST(:queue AS text),
       send_at = CASE WHEN m.message_id IS NULL THEN m.at END
  FROM (SELECT t.at, {schema}.send_step(CAST(:workflow_id AS uuid), CAST(:queue AS text), t.at, true) AS message_id
          FROM (SELECT CASE WHEN CAST(:at AS timestamptz) IS NULL THEN scheduled_at
                            ELSE greatest(CAST(:at AS timestamptz), clock_timestamp()) END AS at
                  FROM {schema}.workflow_steps WHERE step_id = CAST(:step_id AS bigint)) t) m
 WHERE s.step_id = CAST(:step_id AS bigint) AND s.status = 'scheduled'
RETURNING s.scheduled_at
"""

#: Forgets a scheduled attempt's message, sent or to be sent.
_WITHDRAW = """
UPDATE {schema}.workflow_steps SET send_at = NULL, message_id = NULL
 WHERE step_id = CAST(:step_id AS bigint) AND status = 'scheduled'
"""

_END_ATTEMPT = """
UPDATE {schema}.workflow_steps
   SET status = :status, outcome = :outcome, finished_at = coalesce(finished_at, clock_timestamp()),
       send_at = NULL, held = NULL
 WHERE step_id = CAST(:step_id AS bigint)
"""

_RELEASE_HELD = (
    "UPDATE {schema}.workflow_steps SET held = NULL WHERE step_id = CAST(:step_id AS bigint)"
)

_RECORD = """
INSERT INTO {schema}.workflow_events
    (workflow_id, event, step_name, attempt, actor, reason, from_status, to_status, details, created_at)
VALUES (CAST(:workflow_id AS uuid), :event, CAST(:step_name AS text), CAST(:attempt AS integer), :actor,
        CAST(:reason AS text), :source, :target, CAST(:details AS jsonb), clock_timestamp())
"""


def start_run(connection: Connection, new: NewRun) -> Started:
    """Writes a run, its first attempt and events, and sends the step message."""
    row = connection.row(
        _START_RUN,
        workflow_id=new.workflow_id,
        workflow_class=new.workflow_class,
        digest=new.digest,
        subject_type=new.subject_type,
        subject_id=new.subject_id,
        arguments=new.arguments,
        idempotency_key=new.idempotency_key,
        rerun_of=new.rerun_of,
        step_name=new.step_name,
        queue=new.queue,
        wait=new.wait,
        not_before=new.not_before,
        actor=storable(new.actor),
        reason=_cut(new.reason),
        details=new.details,
    )
    assert row is not None  # noqa: S101 (the function returns a row or raises)
    return Started(*row)


def start_runs(
    connection: Connection,
    *,
    workflow_ids: list[str],
    subject_types: list[str | None],
    subject_ids: list[str | None],
    arguments: list[str],
    workflow_class: str,
    digest: str,
    first: NextAttempt,
    actor: str,
    reason: str | None,
) -> list[tuple[str, datetime, int]]:
    """Writes many runs of one class; returns id, creation and step_id of those that started."""
    rows = connection.rows(
        _START_RUNS,
        workflow_ids=workflow_ids,
        subject_types=subject_types,
        subject_ids=subject_ids,
        arguments=arguments,
        workflow_class=workflow_class,
        digest=digest,
        step_name=first.step_name,
        queue=first.queue,
        wait=first.wait,
        not_before=first.not_before,
        actor=storable(actor),
        reason=_cut(reason),
    )
    return [(row[0], row[1], row[2]) for row in rows]


def take(connection: Connection, worker: Worker, taking: Taking) -> list[Delivery] | Idle:
    """Messages that need work, their attempts claimed where that is possible at once."""
    beat = taking.beat
    rows = connection.rows(
        _TAKE if beat is None else _BEAT_AND_TAKE,
        **_take_parameters(worker, taking),
        worker=worker.name,
        revision=worker.revision,
        **(beat or {}),
    )
    return _taken_from(rows)


def _take_parameters(worker: Worker, taking: Taking) -> dict[str, object]:
    return {
        "queues": taking.queues,
        "quantity": taking.quantity,
        "visibility": taking.visibility,
        "unguarded": worker._unguarded_array,  # noqa: SLF001 (the two are one module's)
    }


def _taken_from(rows: list[tuple[Any, ...]]) -> list[Delivery] | Idle:
    if len(rows) == 1 and rows[0][0] == "idle":
        return Idle(rows[0][15], rows[0][16])
    return [Delivery(*row[:15]) for row in rows]


def claims(connection: Connection, worker: Worker, process_id: str) -> list[Delivery]:
    """The attempts that this process has claimed and not ended, as deliveries."""
    rows = connection.rows(_CLAIMS, worker=worker.name, process_id=process_id)
    return [Delivery(*row) for row in rows]


def claim(connection: Connection, worker: Worker, delivery: Delivery) -> Delivery | None:
    """Claims the attempt a message stands for, waiting for its run's lock; None: nothing to do.

    Raises `RunLocked` when another transaction keeps the lock.
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
        row[0],
        delivery.queue,
        delivery.message_id,
        delivery.read_count,
        None,
        delivery.workflow_id,
        *row[1:10],
    )


def finalize(
    connection: Connection,
    worker: Worker,
    delivery: Delivery,
    final: Finalization,
    *,
    may_continue: bool,
    taking: Taking | None = None,
) -> Finalized:
    """Ends the attempt, moves its run and schedules what comes next, in one statement.

    With `taking` that statement takes the worker's next messages, too.
    """
    events = final.events
    if may_continue:
        events = (*events, EventEntry(Event.STEP_STARTED))
    target = RunStatus.PERFORMING if may_continue else final.target
    following = final.next
    error = final.error
    rows = connection.rows(
        _FINALIZE_AND_TAKE if taking else _FINALIZE,
        **(_take_parameters(worker, taking) if taking else {}),
        workflow_id=delivery.workflow_id,
        step_id=delivery.step_id,
        queue=delivery.queue,
        message_id=delivery.message_id,
        read_count=delivery.read_count,
        target=target,
        attempt_status=final.attempt_status,
        outcome=final.outcome,
        output=final.output,
        error_class=error.error_class if error else None,
        error_message=error.message if error else None,
        error=error.document if error else None,
        reattempted_by=final.reattempted_by,
        held=final.held,
        next_step=following.step_name if following else None,
        next_queue=following.queue if following else None,
        wait=following.wait if following else 0.0,
        not_before=following.not_before if following else None,
        may_continue=may_continue,
        worker=worker.name,
        revision=worker.revision,
        **_event_arrays(events),
    )
    verdict, status, step_id, attempt, due_in = rows[0][:5]
    taken = _taken_from([row[5:] for row in rows if row[5] is not None]) if taking else None
    status = RunStatus(status or final.target)
    return Finalized(verdict, status, step_id, attempt, due_in, taken)


def send_due(connection: Connection, limit: int) -> int:
    """Sends the messages of attempts that come due now; returns how many."""
    row = connection.row(_SEND_DUE, limit=limit)
    return int(row[0]) if row else 0


def move_run(
    connection: Connection,
    run: RunRow,
    verb: Verb,
    target: RunStatus,
    *,
    current_step: str | None = None,
    step_id: int | None = None,
) -> None:
    """Moves a locked run as the table allows."""
    allowed = TRANSITIONS[verb]
    assert run.status in allowed.sources, (verb, run.status)  # noqa: S101 (checked by the verb)
    assert target in allowed.targets, (verb, target)  # noqa: S101 (the verb's own mistake)
    connection.rows(
        _MOVE_RUN,
        workflow_id=run.workflow_id,
        source=run.status,
        target=target,
        current_step=current_step,
        step_id=step_id,
    )


def schedule(
    connection: Connection, workflow_id: str, following: NextAttempt
) -> tuple[int, int, datetime]:
    """Schedules an attempt of a locked run; returns its step_id, number and time."""
    row = connection.row(
        _SCHEDULE,
        workflow_id=workflow_id,
        step_name=following.step_name,
        queue=following.queue,
        wait=following.wait,
        not_before=following.not_before,
    )
    assert row is not None  # noqa: S101 (a SELECT of one row)
    return row[0], row[1], row[2]


def resend(
    connection: Connection, attempt: AttemptRow, *, at: datetime | None, queue: str | None = None
) -> datetime:
    """Sends a scheduled attempt's message anew, for `at` (not before now) or its own time."""
    row = connection.row(
        _RESEND,
        step_id=attempt.step_id,
        workflow_id=attempt.workflow_id,
        queue=queue or attempt.queue,
        at=at,
    )
    assert row is not None  # noqa: S101 (the attempt was read under the run's lock)
    moment: datetime = row[0]
    return moment


def withdraw(connection: Connection, attempt: AttemptRow) -> None:
    """Lets an attempt that is scheduled forget its message; one in progress keeps its worker's.

    A message that was sent stays where it is, claims nothing and goes: locked from here
    it would hold up the heartbeat of whoever has it in hand, for as long as a host's
    transaction lasts.
    """
    connection.rows(_WITHDRAW, step_id=attempt.step_id)


def end_attempt(
    connection: Connection, attempt: AttemptRow, status: AttemptStatus, outcome: Outcome
) -> None:
    """Ends an attempt from outside its body; an error it has stays on it."""
    connection.rows(_END_ATTEMPT, step_id=attempt.step_id, status=status, outcome=outcome)


def release_held(connection: Connection, attempt: AttemptRow) -> None:
    """Forgets what an attempt held for resume, once that is applied."""
    connection.rows(_RELEASE_HELD, step_id=attempt.step_id)


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
    """Writes one event on the run's trail."""
    connection.rows(
        _RECORD,
        workflow_id=workflow_id,
        event=entry.event,
        step_name=step_name,
        attempt=attempt,
        actor=storable(actor),
        reason=_cut(entry.reason),
        source=source,
        target=target,
        details=_details(entry.details),
    )


def array_literal(names: Iterable[str]) -> str:
    """A text[] as PostgreSQL writes it: made once, it costs nothing on each statement."""
    quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
    return "{" + ",".join(f'"{name}"' for name in quoted) + "}"


def _event_arrays(events: tuple[EventEntry, ...]) -> dict[str, object]:
    names = tuple(entry.event for entry in events)
    if all(entry.reason is None and entry.details is None for entry in events):
        return _plain_event_arrays(names)
    return {
        "events": array_literal(names),
        "reasons": [_cut(entry.reason) for entry in events],
        "details": [_details(entry.details) for entry in events],
    }


@functools.cache
def _plain_event_arrays(names: tuple[Event, ...]) -> dict[str, object]:
    nothing = "{" + ",".join("NULL" for _ in names) + "}"
    return {"events": array_literal(names), "reasons": nothing, "details": nothing}


def _cut(text: str | None) -> str | None:
    """As much of a text as a trail keeps; None for a blank one."""
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
