"""Waiting attempts: how a wait begins, is told of being late, is woken or resolved, and paused.

Each statement is for a run whose row the caller holds, and guarded by the attempt's status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.states import Move, RunStatus
from pgbus.engine.storage import transitions

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pgbus.engine.decision import Held
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.runs import AttemptRow, RunRow

_IN = "SELECT clock_timestamp() + make_interval(secs => CAST(:seconds AS double precision))"

#: Of an attempt that was parked by a finalization; nothing names a message while it waits.
_BEGIN = """
UPDATE {schema}.workflow_steps
   SET waiting_for = CAST(:waiting_for AS text), waiting_since = clock_timestamp(),
       timeout_at = CAST(:timeout_at AS timestamptz), batch_id = CAST(:batch_id AS uuid),
       message_id = NULL, read_count = NULL, held = NULL
 WHERE step_id = CAST(:step_id AS bigint) AND status = 'waiting' AND waiting_since IS NULL
RETURNING step_id
"""

_HOLD = """
UPDATE {schema}.workflow_steps SET held = CAST(:held AS jsonb)
 WHERE step_id = CAST(:step_id AS bigint) AND status = 'waiting' AND held IS NOT NULL
"""

#: Schedules the attempt for now; of a paused run nothing is sent before resume.
_WAKE = """
UPDATE {schema}.workflow_steps
   SET status = 'scheduled', scheduled_at = clock_timestamp(), timed_out = CAST(:timed_out AS boolean),
       waiting_since = NULL, timeout_at = NULL, timeout_left = NULL, queue = CAST(:queue AS text),
       message_id = CASE WHEN CAST(:send AS boolean) THEN
           {schema}.send_step(workflow_id, CAST(:queue AS text), clock_timestamp(), true) END,
       trace = coalesce(CAST(:trace AS text), trace)
 WHERE step_id = CAST(:step_id AS bigint) AND status = 'waiting'
RETURNING step_id
"""

#: Lets the attempt end like one whose body ran: whoever resolves it finalizes it in the same transaction.
_RESOLVE = """
UPDATE {schema}.workflow_steps
   SET status = 'in_progress', waiting_since = NULL, timeout_at = NULL, timeout_left = NULL,
       queue = CAST(:queue AS text), message_id = CAST(:message_id AS bigint),
       read_count = CAST(:read_count AS integer)
 WHERE step_id = CAST(:step_id AS bigint) AND status = 'waiting'
RETURNING step_id
"""

_NOTICE = """
UPDATE {schema}.workflow_steps
   SET late_since = coalesce(late_since, timeout_at), timeout_at = CAST(:timeout_at AS timestamptz)
 WHERE step_id = CAST(:step_id AS bigint) AND status = 'waiting'
RETURNING step_id
"""

#: The moment ahead that lies a whole number of periods after a missed deadline; and one that is ahead.
_NEXT_PERIOD = """
SELECT d.missed + p.period * (1 + floor(extract(epoch FROM clock_timestamp() - d.missed)
                                        / extract(epoch FROM p.period)))
  FROM (SELECT CAST(:missed AS timestamptz) AS missed) d,
       (SELECT make_interval(secs => CAST(:seconds AS double precision)) AS period) p
"""

_AHEAD = "SELECT CAST(:moment AS timestamptz) > clock_timestamp()"

_OVERDUE = """
SELECT 1 FROM {schema}.workflow_steps
 WHERE step_id = CAST(:step_id AS bigint) AND timeout_at <= clock_timestamp()
"""

#: In seconds: a difference in days would be another length where the clocks change in between.
_STOP_CLOCK = """
UPDATE {schema}.workflow_steps
   SET timeout_left = make_interval(secs => extract(epoch FROM timeout_at - clock_timestamp())::double precision),
       timeout_at = NULL
 WHERE step_id = CAST(:step_id AS bigint) AND status = 'waiting' AND timeout_at IS NOT NULL
"""

_RESTART_CLOCK = """
UPDATE {schema}.workflow_steps
   SET timeout_at = clock_timestamp() + timeout_left, timeout_left = NULL
 WHERE step_id = CAST(:step_id AS bigint) AND status = 'waiting' AND timeout_left IS NOT NULL
"""


def moment_in(connection: Connection, length: timedelta) -> datetime:
    """Return the moment this long from now, by the database's clock."""
    ((moment,),) = connection.rows(_IN, seconds=length.total_seconds())
    ahead: datetime = moment
    return ahead


def begin(
    connection: Connection,
    step_id: int,
    *,
    waiting_for: str | None,
    timeout_at: datetime | None,
    batch_id: str | None,
) -> bool:
    """Write what a parked attempt waits for; False when that was done before."""
    row = connection.row(
        _BEGIN,
        step_id=step_id,
        waiting_for=waiting_for,
        timeout_at=timeout_at,
        batch_id=batch_id,
    )
    return row is not None


def hold(connection: Connection, step_id: int, held: Held) -> None:
    """Keep what resume opens: the attempt was parked while its run was paused."""
    connection.rows(_HOLD, step_id=step_id, held=held.encode())


def wake(
    connection: Connection,
    run: RunRow,
    attempt: AttemptRow,
    *,
    queue: str,
    timed_out: bool,
    trace: str | None,
) -> None:
    """Let a waiting attempt be claimed now; that of a paused run when it is resumed."""
    waiting = run.status is RunStatus.WAITING
    transitions.change_attempt(
        connection, _WAKE, attempt, queue=queue, timed_out=timed_out, send=waiting, trace=trace
    )
    if waiting:
        transitions.move_run(connection, run, Move.WAKE, RunStatus.READY)


def resolve(
    connection: Connection,
    run: RunRow,
    attempt: AttemptRow,
    *,
    queue: str,
    message_id: int | None,
    read_count: int | None,
) -> None:
    """Let a waiting attempt be finalized as if its body had just ended, under this message."""
    transitions.change_attempt(
        connection,
        _RESOLVE,
        attempt,
        queue=queue,
        message_id=message_id,
        read_count=read_count,
    )
    if run.status is RunStatus.WAITING:
        transitions.move_run(connection, run, Move.RESOLVE, RunStatus.PERFORMING)


def notice(
    connection: Connection, run: RunRow, attempt: AttemptRow, *, timeout_at: datetime | None
) -> None:
    """Note that the wait is late, and give it its next deadline, if any."""
    transitions.change_attempt(connection, _NOTICE, attempt, timeout_at=timeout_at)
    transitions.move_run(connection, run, Move.NOTICE, RunStatus.WAITING)


def next_period(connection: Connection, missed: datetime, period: timedelta) -> datetime:
    """Return the first moment ahead that is whole periods after a missed deadline."""
    ((moment,),) = connection.rows(_NEXT_PERIOD, missed=missed, seconds=period.total_seconds())
    ahead: datetime = moment
    return ahead


def is_ahead(connection: Connection, moment: datetime) -> bool:
    """Return whether the moment is still to come, by the database's clock."""
    ((ahead,),) = connection.rows(_AHEAD, moment=moment)
    return bool(ahead)


def is_overdue(connection: Connection, attempt: AttemptRow) -> bool:
    """Return whether the attempt waits beyond its deadline."""
    return connection.row(_OVERDUE, step_id=attempt.step_id) is not None


def stop_clock(connection: Connection, attempt: AttemptRow) -> None:
    """Let a wait's deadline stand still: its run is paused."""
    connection.rows(_STOP_CLOCK, step_id=attempt.step_id)


def restart_clock(connection: Connection, attempt: AttemptRow) -> None:
    """Let a wait have as much time left as when its run was paused."""
    connection.rows(_RESTART_CLOCK, step_id=attempt.step_id)
