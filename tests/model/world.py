"""The engine under the model's test: real runs, its own statements, and what is to be seen of them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from model import Deadline
from shapes import Plan, plan
from support.driving import Driver
from support.sweeps import turn

from pgbus.engine.insights import liveness
from pgbus.engine.jobs.execute import execute as execute_job
from pgbus.engine.runner.attempt import Attempt as Prepared
from pgbus.engine.runner.execute import execute
from pgbus.engine.runner.finalize import Ending, Finalizer
from pgbus.engine.runner.prepare import prepare
from pgbus.engine.states import AttemptStatus, MemberStatus, Outcome, RunStatus, SignalStatus
from pgbus.engine.storage import claims, messages
from pgbus.engine.storage.claims import ClaimVerdict, Delivery, Taking
from pgbus.engine.storage.database import array_literal
from pgbus.engine.sweep import batches, expired_waits
from pgbus.engine.sweep.lost_messages import LostMessages
from pgbus.engine.sweep.stalls import Stalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg
    from shapes import Scripted
    from support.database import Database

    from pgbus import Pgbus, Run

STEPS, JOBS = "pgbus_workflows", "pgbus_default"

_TABLES = (
    *(f"pgbus.{name}" for name in ("workflows", "workflow_steps", "workflow_events")),
    *(f"pgbus.{name}" for name in ("workflow_signals", "batches", "batch_counters", "batch_jobs")),
    *(f"pgmq.{kind}_{queue}" for kind in "qa" for queue in (STEPS, JOBS)),
)

_RUNS = """
SELECT workflow_id::text, status, current_step,
       (SELECT count(*) FROM pgbus.workflow_events e
         WHERE e.workflow_id = w.workflow_id AND e.event = 'late_completion_ignored')
  FROM pgbus.workflows w
"""

_ATTEMPTS = """
SELECT s.workflow_id::text, s.step_name, s.attempt, s.status, s.outcome, s.error_class, s.held ->> 'move',
       CASE WHEN coalesce(s.timeout_at <= now(), s.timeout_left <= '0') THEN 'past'
            WHEN coalesce(s.timeout_at, now() + s.timeout_left) IS NOT NULL THEN 'ahead' END,
       s.late_since IS NOT NULL, s.timed_out, s.scheduled_at <= now(), m.msg_id IS NOT NULL,
       s.batch_id::text
  FROM pgbus.workflow_steps s LEFT JOIN pgmq.q_pgbus_workflows m ON m.msg_id = s.message_id
 ORDER BY s.step_id
"""

_SIGNALS = """
SELECT workflow_id::text, name, payload, idempotency_key, status, step_name
  FROM pgbus.workflow_signals ORDER BY signal_id
"""

_BATCHES = """
SELECT b.batch_id::text, b.finished_at IS NOT NULL, b.withdrawn_at IS NOT NULL,
       ARRAY(SELECT j.status FROM pgbus.batch_jobs j WHERE j.batch_id = b.batch_id ORDER BY j.number)
  FROM pgbus.batches b
"""

_MESSAGES = """
SELECT m.message ->> 'workflow_id', m.msg_id, s.step_id IS NOT NULL
  FROM pgmq.q_pgbus_workflows m
  LEFT JOIN pgbus.workflow_steps s
    ON s.message_id = m.msg_id AND s.status IN ('scheduled', 'in_progress')
 ORDER BY m.msg_id
"""

_MEMBER = """
SELECT m.msg_id, m.message
  FROM pgmq.q_pgbus_default m
  JOIN pgbus.workflow_steps s ON s.batch_id::text = m.message -> 'batch' ->> 0
 WHERE s.workflow_id = %s::uuid AND s.step_name = %s AND s.attempt = %s
   AND (m.message -> 'batch' ->> 1)::integer = %s
"""

#: Moves what is due, and what has finished, so far into the past that the sweep has patience no more.
_AGE = """
WITH w AS (UPDATE pgbus.workflows
              SET updated_at = updated_at - interval '2 hours',
                  sleeps_until = CASE WHEN sleeps_until <= now() THEN sleeps_until - interval '2 hours'
                                      ELSE sleeps_until END),
     b AS (UPDATE pgbus.batches SET finished_at = finished_at - interval '2 hours')
UPDATE pgbus.workflow_steps SET scheduled_at = scheduled_at - interval '2 hours' WHERE scheduled_at <= now()
"""

_COME_DUE = """
WITH s AS (
    UPDATE pgbus.workflow_steps SET scheduled_at = now(), send_at = CASE WHEN send_at IS NOT NULL THEN now() END
     WHERE workflow_id = %s AND status = 'scheduled' RETURNING step_id)
UPDATE pgbus.workflows w SET sleeps_until = now() FROM s WHERE s.step_id = w.step_id AND w.sleeps_until IS NOT NULL
"""

_PASS_DEADLINE = """
UPDATE pgbus.workflow_steps SET timeout_at = now() - interval '3 days'
 WHERE workflow_id = %s AND timeout_at IS NOT NULL
"""

_HANG = """
UPDATE pgbus.workflow_steps SET started_at = started_at - interval '2 hours'
 WHERE workflow_id = %s AND status = 'in_progress'
"""

_LOSE_BATCH = """
WITH lost AS (SELECT batch_id FROM pgbus.workflow_steps WHERE workflow_id = %s AND status = 'waiting'),
     c AS (DELETE FROM pgbus.batch_counters WHERE batch_id IN (SELECT batch_id FROM lost)),
     j AS (DELETE FROM pgbus.batch_jobs WHERE batch_id IN (SELECT batch_id FROM lost))
DELETE FROM pgbus.batches WHERE batch_id IN (SELECT batch_id FROM lost)
"""


_WITH_MESSAGE = (AttemptStatus.SCHEDULED, AttemptStatus.IN_PROGRESS)


class Message(NamedTuple):
    """A step message in the queue; `own` tells that its run's open attempt names it."""

    workflow_id: str
    message_id: int
    own: bool


class World:
    """Drives a bus as its workers, callers and dispatcher would, one thing at a time."""

    def __init__(self, bus: Pgbus, database: Database, connection: psycopg.Connection[Any]) -> None:
        self._bus = bus
        self._services = bus.services
        self._host = database.engine
        self._connection = connection
        self._driver = Driver(bus)
        bus.ensure_queues([STEPS, JOBS])

    def clear(self) -> None:
        """Forget every run, batch and message."""
        self._run(f"TRUNCATE {', '.join(_TABLES)}")
        vars(plan).update(vars(Plan()))

    def _run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def start(self, shape: type[Scripted]) -> Run:
        return self._bus.start(shape)

    @contextmanager
    def session(self, how: str) -> Iterator[Any]:
        """What a verb gets as `session=`: none, or a host's that commits or rolls back."""
        if how == "own":
            yield None
            return
        with self._host.connect() as host:
            try:
                yield host
            finally:
                if how == "committed":
                    host.commit()

    def step_messages(self) -> list[Message]:
        return [Message(*row) for row in self._run(_MESSAGES)]

    def deliver(self, message: Message) -> Prepared | None:
        """Lets a worker take this message; returns the attempt whose body it is to run."""
        taken = self._take(STEPS, message.message_id)
        return self._begin(taken) if taken else None

    def take(self, message: Message) -> bool:
        """Lets a worker take the message and die before it did anything; whether it claimed."""
        taken = self._take(STEPS, message.message_id)
        return taken is not None and taken.verdict is not ClaimVerdict.GUARDED

    def _take(self, queue: str, message_id: int) -> Delivery | None:
        self._run(
            f"UPDATE pgmq.q_{queue} SET vt = now() + CASE WHEN msg_id = %s THEN interval '0'"
            " ELSE interval '20 s' END WHERE msg_id = %s OR vt < now() + interval '10 s'",
            message_id,
            message_id,
        )
        with self._services.database.autocommit() as connection:
            taking = Taking(array_literal([queue]), 1, 30)
            taken = claims.take(connection, self._driver.worker, taking)
        assert isinstance(taken, list), f"message {message_id} of {queue} was not read"
        return taken[0] if taken else None

    def _begin(self, delivery: Delivery) -> Prepared | None:
        finalizer = self._finalizer(goes_on=False)
        step = prepare(self._services, self._driver.worker, finalizer, delivery)
        if isinstance(step, Prepared):
            return step
        if isinstance(step, Ending):
            step = finalizer.commit(step)
        if step is not None:
            assert finalizer.follow(step) is None
        return None

    def end_body(self, prepared: Prepared, *, goes_on: bool) -> Prepared | None:
        """Lets a body run to its end; returns the attempt that the worker goes on with."""
        finalizer = self._finalizer(goes_on=goes_on)
        ended = execute(self._services, finalizer, prepared)
        applied = finalizer.commit(ended) if isinstance(ended, Ending) else ended
        following = finalizer.follow(applied)
        return self._begin(following) if following else None

    def _finalizer(self, *, goes_on: bool) -> Finalizer:
        return Finalizer(self._services, self._driver.worker, stopping=lambda: not goes_on)

    def end_member(self, attempt: tuple[str, str, int], number: int, status: MemberStatus) -> None:
        """Works off the message of a batch's member, then a copy of it."""
        ((message_id, body),) = self._run(_MEMBER, *attempt, number)
        self._end_member(message_id, body, status)
        ((copy,),) = self._run("SELECT pgmq.send(%s, %s)", JOBS, json.dumps(body))
        self._end_member(copy, body, MemberStatus.COMPLETED)

    def _end_member(self, message_id: int, body: object, status: MemberStatus) -> None:
        if status is MemberStatus.DISCARDED:
            self._run(
                "SELECT pgbus.end_job(%s, %s, %s, %s)", JOBS, message_id, json.dumps(body), status
            )
        elif delivery := self._take(JOBS, message_id):
            plan.job_fails = status is MemberStatus.DEAD_LETTERED
            execute_job(self._services, delivery)

    def lose(self, message: Message) -> None:
        self._run("SELECT pgmq.delete(%s, %s)", STEPS, message.message_id)

    def copy(self, message: Message) -> None:
        self._run(
            "SELECT pgmq.send(%s, message) FROM pgmq.q_pgbus_workflows WHERE msg_id = %s",
            STEPS,
            message.message_id,
        )

    def lose_batch(self, workflow_id: str) -> None:
        self._run(_LOSE_BATCH, workflow_id)

    def come_due(self, workflow_id: str) -> None:
        self._run(_COME_DUE, workflow_id)
        with self._services.database.autocommit() as connection:
            messages.send_due(connection, 100)

    def pass_deadline(self, workflow_id: str) -> None:
        self._run(_PASS_DEADLINE, workflow_id)

    def hang(self, workflow_id: str) -> None:
        self._run(_HANG, workflow_id)
        Stalls().sweep(turn(self._bus))

    def sweep(self) -> None:
        self._run(_AGE)
        Stalls().sweep(turn(self._bus))
        LostMessages().sweep(turn(self._bus))
        expired_waits.sweep(turn(self._bus))
        batches.sweep(turn(self._bus))

    def view(self) -> dict[str, dict[str, Any]]:
        """What there is to be seen of each run."""
        with self._services.database.autocommit() as connection:
            broken = liveness.broken(connection, self._bus.settings)
        found = {
            workflow_id: {
                "status": RunStatus(status),
                "step": step,
                "attempts": [],
                "signals": [],
                "due": None,
                "message": False,
                "ignored": ignored,
                "broken": any(one.workflow_id == workflow_id for one in broken),
            }
            for workflow_id, status, step, ignored in self._run(_RUNS)
        }
        batches = {row[0]: row[1:] for row in self._run(_BATCHES)}
        for workflow_id, *row, due, message, batch_id in self._run(_ATTEMPTS):
            run, attempt = found[workflow_id], _attempt(row)
            batch = batches.get(batch_id, "gone") if batch_id else None
            attempt["batch"] = _batch(batch) if isinstance(batch, tuple) else batch
            run["attempts"].append(attempt)
            run["due"] = due if attempt["status"] is AttemptStatus.SCHEDULED else None
            run["message"] = message and attempt["status"] in _WITH_MESSAGE
        for workflow_id, name, payload, key, status, step in self._run(_SIGNALS):
            told = (name, payload["n"], key, SignalStatus(status), step)
            found[workflow_id]["signals"].append(told)
        return found


def _attempt(row: list[Any]) -> dict[str, Any]:
    step, number, status, outcome, error, held, deadline, late, timed_out = row
    return {
        "attempt": (step, number),
        "status": AttemptStatus(status),
        "outcome": outcome and Outcome(outcome),
        "error": error and error.rpartition(".")[2],
        "held": held,
        "deadline": deadline and Deadline(deadline),
        "late": late,
        "timed_out": timed_out,
    }


def _batch(row: tuple[Any, ...]) -> tuple[bool, bool, list[MemberStatus]]:
    finished, withdrawn, members = row
    return finished, withdrawn, [MemberStatus(status) for status in members]
