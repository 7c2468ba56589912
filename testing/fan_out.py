"""The end of the batch that a run waits for, brought about without its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.jobs.batch import told
from pgbus.engine.observe import emission
from pgbus.engine.states import AttemptStatus
from pgbus.testing import taking
from pgbus.testing.steps import newest_attempt, refusal
from pgbus.testing.taking import services_of

if TYPE_CHECKING:
    from pgbus.engine.runner.run import Run
    from pgbus.engine.storage.database import Connection

_QUEUES_OF_OPEN_MEMBERS = """
SELECT DISTINCT queue FROM {schema}.batch_jobs
 WHERE batch_id = CAST(:batch_id AS uuid) AND status = 'open'
"""

#: Archives the members' messages and counts each as completed; the last one's row names the batch.
_COMPLETE_MEMBERS = """
SELECT {schema}.end_job(CAST(:queue AS text), q.msg_id, q.message, 'completed')::text
  FROM pgmq."q_{queue}" q WHERE q.message -> 'batch' ->> 0 = :batch_id
"""

_STEP_QUEUE = "SELECT step_queue FROM {schema}.batches WHERE batch_id = CAST(:batch_id AS uuid)"

_COMPLETION = """
SELECT q.msg_id FROM pgmq."q_{queue}" q WHERE q.message ->> 'batch_id' = :batch_id
"""


def complete_fan_out(run: Run) -> Run:
    """End the open jobs of the batch that the run waits for as completed, without running them.

    The run goes on to its next step, or as `on_batch_failure` says when some had failed before; a
    paused one stays paused. Raise `StepWaiting` when it waits for a signal, `InvalidTransition` when
    it does not wait.
    """
    attempt = newest_attempt(run)
    if attempt.status is not AttemptStatus.WAITING or attempt.batch_id is None:
        raise refusal(run, attempt)
    with services_of(run).database.transaction() as connection:
        payloads = told(connection, _complete_members(connection, attempt.batch_id))
    emission.emit(*payloads)
    with services_of(run).database.autocommit() as connection:
        queue, message_id = _completion(connection, attempt.batch_id)
    delivery = taking.take(run, queue, message_id)
    if delivery is not None:
        taking.perform(run, delivery)
    return run.reload()


def _complete_members(connection: Connection, batch_id: str) -> str | None:
    """Return the id of the batch if that finished it."""
    ended = [
        finished
        for (queue,) in connection.rows(_QUEUES_OF_OPEN_MEMBERS, batch_id=batch_id)
        for (finished,) in connection.rows(
            _COMPLETE_MEMBERS.replace("{queue}", queue), queue=queue, batch_id=batch_id
        )
    ]
    return next(filter(None, ended), None)


def _completion(connection: Connection, batch_id: str) -> tuple[str, int | None]:
    ((queue,),) = connection.rows(_STEP_QUEUE, batch_id=batch_id)
    rows = connection.rows(_COMPLETION.replace("{queue}", queue), batch_id=batch_id)
    return queue, rows[0][0] if rows else None
