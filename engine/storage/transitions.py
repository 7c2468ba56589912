"""What verbs and repairs write: they lock the run, decide in Python and use these small statements.

A change is guarded by the status that was read under the lock. One that finds another raises
`RuntimeError`, and nothing of the verb is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgbus.engine.states import check_transition

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.engine.decision import NextAttempt
    from pgbus.engine.states import AttemptStatus, Move, Outcome, RunStatus, Verb
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow, RunRow

_MOVE_RUN = """
UPDATE {schema}.workflows w
   SET status = :target, current_step = coalesce(CAST(:current_step AS text), current_step),
       step_id = coalesce(CAST(:step_id AS bigint), step_id), updated_at = clock_timestamp(),
       paused_at = CASE WHEN :target = 'paused' THEN clock_timestamp() END,
       ended_at = CASE WHEN :target IN ('finished', 'cancelled') THEN clock_timestamp() END,
       settled_error = CASE WHEN :target IN ('paused', 'finished', 'cancelled') THEN
           coalesce((SELECT s.error_class FROM {schema}.workflow_steps s
                      WHERE s.step_id = coalesce(CAST(:step_id AS bigint), w.step_id)), '') END,
       sleeps_until = CASE WHEN :target = 'ready' THEN
           (SELECT s.send_at FROM {schema}.workflow_steps s
             WHERE s.step_id = coalesce(CAST(:step_id AS bigint), w.step_id)) END
 WHERE workflow_id = CAST(:workflow_id AS uuid) AND status = :source
RETURNING status
"""

#: Schedules an attempt, with its message, and returns its id and number.
_SCHEDULE = """
SELECT n.step_id, {schema}.schedule_step(n.step_id, CAST(:workflow_id AS uuid), CAST(:step_name AS text),
                                         CAST(:queue AS text), n.at, n.now, true, CAST(:trace AS text))
  FROM (SELECT nextval('{schema}.workflow_steps_step_id_seq') AS step_id, clock_timestamp() AS now,
               greatest(clock_timestamp() + make_interval(secs => CAST(:wait AS double precision)),
                        CAST(:not_before AS timestamptz)) AS at) n
"""

#: Moves a scheduled attempt to :at, not before now (NULL: it keeps its time), and sends its message, or has the
#: timer send it.
_RESEND = """
UPDATE {schema}.workflow_steps s
   SET scheduled_at = m.at, message_id = m.message_id, queue = CAST(:queue AS text), send_at = m.send_at
  FROM (SELECT t.at, t.send_at, CASE WHEN t.send_at IS NULL THEN
                   {schema}.send_step(CAST(:workflow_id AS uuid), CAST(:queue AS text), t.at, true) END AS message_id
          FROM (SELECT d.at, {schema}.sleeps_until(d.at, clock_timestamp()) AS send_at
                  FROM (SELECT CASE WHEN CAST(:at AS timestamptz) IS NULL THEN scheduled_at
                                    ELSE greatest(CAST(:at AS timestamptz), clock_timestamp()) END AS at
                          FROM {schema}.workflow_steps WHERE step_id = CAST(:step_id AS bigint)) d) t) m
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
       send_at = NULL, held = NULL, reattempted_by = CASE WHEN held IS NULL THEN reattempted_by END,
       waiting_since = NULL, timeout_at = NULL, timeout_left = NULL
 WHERE step_id = CAST(:step_id AS bigint) AND status = CAST(:source AS text)
RETURNING status
"""

#: The newest attempt was not tried again, whatever was held.
_RELEASE_HELD = """
UPDATE {schema}.workflow_steps SET held = NULL, reattempted_by = NULL
 WHERE step_id = CAST(:step_id AS bigint) AND status = CAST(:source AS text)
RETURNING status
"""


def move_run(
    connection: Connection,
    run: RunRow,
    move: Verb | Move,
    target: RunStatus,
    *,
    current_step: str | None = None,
    step_id: int | None = None,
) -> None:
    """Move a locked run as the table allows; one that gets ready sleeps as long as its newest attempt says."""
    check_transition(move, run.status, target)
    row = connection.row(
        _MOVE_RUN,
        workflow_id=run.workflow_id,
        source=run.status,
        target=target,
        current_step=current_step,
        step_id=step_id,
    )
    if row is None:
        raise RuntimeError(_found_changed(f"run {run.workflow_id}", run.status))


def schedule(
    connection: Connection, workflow_id: str, following: NextAttempt, *, trace: str | None
) -> tuple[int, int]:
    """Schedule an attempt of a locked run; return its step_id and number."""
    ((step_id, attempt),) = connection.rows(
        _SCHEDULE,
        workflow_id=workflow_id,
        step_name=following.step_name,
        queue=following.queue,
        wait=following.wait,
        not_before=following.not_before,
        trace=trace,
    )
    return step_id, attempt


def resend(
    connection: Connection, attempt: AttemptRow, *, at: datetime | None, queue: str | None = None
) -> datetime:
    """Send a scheduled attempt's message anew, for `at` (not before now) or its own time."""
    (moment,) = change_attempt(
        connection,
        _RESEND,
        attempt,
        workflow_id=attempt.workflow_id,
        queue=queue or attempt.queue,
        at=at,
    )
    scheduled_at: datetime = moment
    return scheduled_at


def withdraw(connection: Connection, attempt: AttemptRow) -> None:
    """Let an attempt that is scheduled forget its message; one in progress keeps its worker's.

    A message that was sent stays where it is, claims nothing and goes: locked from here
    it would hold up the heartbeat of whoever has it in hand, for as long as a host's
    transaction lasts.
    """
    connection.rows(_WITHDRAW, step_id=attempt.step_id)


def end_attempt(
    connection: Connection, attempt: AttemptRow, status: AttemptStatus, outcome: Outcome
) -> None:
    """End an attempt from outside its body; an error it has stays on it."""
    change_attempt(
        connection, _END_ATTEMPT, attempt, source=attempt.status, status=status, outcome=outcome
    )


def release_held(connection: Connection, attempt: AttemptRow) -> None:
    """Forget what an attempt held for resume, once that is applied."""
    change_attempt(connection, _RELEASE_HELD, attempt, source=attempt.status)


def change_attempt(
    connection: Connection, statement: str, attempt: AttemptRow, **parameters: object
) -> tuple[Any, ...]:
    """Run a statement that changes the attempt (`:step_id`) of a locked run; return its row."""
    row = connection.row(statement, step_id=attempt.step_id, **parameters)
    if row is None:
        raise RuntimeError(_found_changed(f"attempt {attempt.step_id}", attempt.status))
    return row


def _found_changed(what: str, status: RunStatus | AttemptStatus) -> str:
    return f"A bug in pgbus: {what} is not {status} any more, although its run is locked."
