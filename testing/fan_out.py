"""The end of the batch that a run waits for, brought about without its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.errors import BatchNotFound, StepWaiting
from pgbus.engine.jobs.batch import told
from pgbus.engine.states import AttemptStatus
from pgbus.engine.storage import batches
from pgbus.testing import taking
from pgbus.testing.steps import newest_attempt, refusal
from pgbus.testing.taking import services_of

if TYPE_CHECKING:
    from pgbus.engine.runner.run import Run
    from pgbus.engine.storage.batches import BatchRow
    from pgbus.engine.storage.database import Connection

_QUEUES_OF_OPEN_MEMBERS = """
SELECT DISTINCT queue FROM {schema}.batch_jobs
 WHERE batch_id = CAST(:batch_id AS uuid) AND status = 'open'
"""

#: Archives the members' messages, and counts the first ones as dead-lettered, the others as completed; true
#: for the one that finishes the batch.
_END_MEMBERS = """
SELECT {schema}.end_job(CAST(:queue AS text), m.msg_id, m.message,
                        CASE WHEN m.number <= CAST(:failed AS integer) THEN 'dead_lettered' ELSE 'completed' END)
       IS NOT NULL
  FROM (SELECT q.msg_id, q.message, row_number() OVER (ORDER BY q.msg_id) AS number
          FROM pgmq."q_{queue}" q WHERE q.message -> 'batch' ->> 0 = :batch_id) m
"""

_STEP_QUEUE = "SELECT step_queue FROM {schema}.batches WHERE batch_id = CAST(:batch_id AS uuid)"

_COMPLETION = """
SELECT q.msg_id FROM pgmq."q_{queue}" q WHERE q.message ->> 'batch_id' = :batch_id
"""


def complete_fan_out(run: Run, *, failed: int = 0) -> Run:
    """End the open jobs of the batch that the run waits for, without running them.

    So many `failed` ones count as dead-lettered (their queue gets no dead letters), the others as
    completed. The run goes on to its next step, or as `on_batch_failure` says when one has failed,
    now or before; a paused one stays paused. Raise `InvalidTransition` when it does not wait,
    `StepWaiting` when it waits for a signal or its batch cannot end so, `BatchNotFound` when that was
    deleted, `ValueError` when fewer than `failed` jobs are open.
    """
    attempt = newest_attempt(run)
    if attempt.status is not AttemptStatus.WAITING or attempt.batch_id is None:
        raise refusal(run, attempt)
    with services_of(run).database.transaction() as connection:
        finished = _finish(run, connection, attempt.batch_id, failed)
        payloads = told(connection, attempt.batch_id if finished else None)
    services_of(run).events.emit(*payloads)
    with services_of(run).database.autocommit() as connection:
        queue, message_id = _completion(connection, attempt.batch_id)
    delivery = taking.take(run, queue, message_id)
    if delivery is not None:
        taking.perform(run, delivery)
    return run.reload()


def _finish(run: Run, connection: Connection, batch_id: str, failed: int) -> bool:
    """End the batch; False: it had finished before. Raise, undoing it, when it cannot end."""
    open_jobs = _found(run, connection, batch_id).open_jobs
    if not 0 <= failed <= open_jobs:
        raise ValueError(
            f"failed={failed}: {open_jobs} jobs of batch {batch_id} are open; give 0 to {open_jobs}."
        )
    finished = _end_members(connection, batch_id, failed) or batches.finish(connection, batch_id)
    batch = _found(run, connection, batch_id)
    if batch.open_jobs:
        raise StepWaiting(
            f"Run {run.workflow_id} waits for batch {batch_id}, and the messages of {batch.open_jobs} "
            f"of its {batch.total_jobs} jobs are gone: delete none, or go on with run.skip() or "
            "run.cancel()."
        )
    if batch.finished_at is None:
        raise StepWaiting(
            f"Run {run.workflow_id} waits for batch {batch_id}, which another transaction keeps "
            "locked: commit the session that added to it first."
        )
    return finished


def _found(run: Run, connection: Connection, batch_id: str) -> BatchRow:
    batch = batches.find(connection, batch_id)
    if batch is None:
        raise BatchNotFound(
            f"Run {run.workflow_id} waits for batch {batch_id}, which was deleted: go on with "
            "run.skip() or run.cancel()."
        )
    return batch


def _end_members(connection: Connection, batch_id: str, failed: int) -> bool:
    """Return whether that finished the batch."""
    finished: list[bool] = []
    for (queue,) in connection.rows(_QUEUES_OF_OPEN_MEMBERS, batch_id=batch_id):
        rows = connection.rows(
            _END_MEMBERS.replace("{queue}", queue),
            queue=queue,
            batch_id=batch_id,
            failed=failed - len(finished),
        )
        finished += [finishes for (finishes,) in rows]
    return any(finished)


def _completion(connection: Connection, batch_id: str) -> tuple[str, int | None]:
    ((queue,),) = connection.rows(_STEP_QUEUE, batch_id=batch_id)
    rows = connection.rows(_COMPLETION.replace("{queue}", queue), batch_id=batch_id)
    return queue, rows[0][0] if rows else None
