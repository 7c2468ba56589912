"""Whether runs go on: each ongoing one has something that will move it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pgbus.engine.states import RunStatus
from pgbus.engine.storage import messages
from pgbus.engine.storage.revision import quoted
from pgbus.engine.storage.runs import IS_ONGOING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: A message is sent at most so long before its time.
_SENT_AHEAD = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class BrokenRun:
    """An ongoing run that nothing will move; `missing` says in a sentence what is not there."""

    workflow_id: str
    workflow_class: str
    status: RunStatus
    step_name: str
    attempt: int | None
    missing: str


#: One statement, so one snapshot: a run that moves meanwhile is seen with the message of that moment. A paused
#: run has a person, one that waits for a signal has whoever sends, skips or cancels. A batch that has just
#: finished has its completion on the way.
_BROKEN = f"""
WITH m (queue, message_id, visible_at) AS ({{messages}}),
o AS (
SELECT w.workflow_id, w.workflow_class, w.status, w.current_step, s.attempt,
       CASE
       WHEN s.step_id IS NULL THEN 'its newest attempt does not exist'
       WHEN s.workflow_id <> w.workflow_id OR s.step_name <> w.current_step THEN
           'its newest attempt is of another run or step'
       WHEN w.status = 'paused' THEN NULL
       WHEN s.status <> CASE w.status WHEN 'ready' THEN 'scheduled' WHEN 'performing' THEN 'in_progress'
                                      ELSE 'waiting' END THEN
           'the run is ' || w.status || ', and its newest attempt is ' || s.status
       WHEN w.status = 'ready' AND s.send_at IS NOT NULL THEN NULL
       WHEN w.status IN ('ready', 'performing') AND s.message_id IS NULL THEN
           'it has no message, and the timer has none to send'
       WHEN w.status IN ('ready', 'performing') AND m.message_id IS NULL THEN
           'its message ' || s.message_id || ' is not in the queue ' || s.queue
       WHEN m.visible_at > greatest(clock_timestamp(), s.scheduled_at)
            + make_interval(secs => CAST(:longest_hidden AS double precision)) THEN
           'its message ' || s.message_id || ' in the queue ' || s.queue
           || ' is hidden for longer than a delivery lasts'
       WHEN w.status <> 'waiting' THEN NULL
       WHEN s.waiting_since IS NULL THEN 'its wait was never begun'
       WHEN s.batch_id IS NULL AND s.waiting_for IS NULL THEN 'it waits for nothing'
       WHEN s.batch_id IS NULL THEN NULL
       WHEN b.batch_id IS NULL THEN 'its batch ' || s.batch_id || ' does not exist'
       WHEN b.withdrawn_at IS NOT NULL THEN 'its batch ' || s.batch_id || ' was withdrawn'
       WHEN b.resolved_at IS NOT NULL THEN 'its batch ' || s.batch_id || ' was resolved without it'
       WHEN b.finished_at < clock_timestamp()
            - make_interval(secs => CAST(:stall_threshold AS double precision)) THEN
           'its batch ' || s.batch_id || ' finished, and the completion did not come'
       WHEN b.finished_at IS NULL AND NOT EXISTS (SELECT FROM {{schema}}.batch_counters c
                                                   WHERE c.batch_id = b.batch_id AND c.open > 0) THEN
           'its batch ' || s.batch_id || ' has no open job, and is not finished'
       END AS missing
  FROM {{schema}}.workflows w
  LEFT JOIN {{schema}}.workflow_steps s ON s.step_id = w.step_id
  LEFT JOIN {{schema}}.batches b ON b.batch_id = s.batch_id
  LEFT JOIN m ON m.queue = s.queue AND m.message_id = s.message_id
 WHERE w.{IS_ONGOING})
SELECT workflow_id::text, workflow_class, status, current_step, attempt, missing
  FROM o WHERE missing IS NOT NULL ORDER BY workflow_id
"""

_NO_MESSAGES = "SELECT NULL::text, NULL::bigint, NULL::timestamptz WHERE false"


def broken(connection: Connection, settings: Settings) -> list[BrokenRun]:
    """Return every ongoing run that breaks the invariant, oldest first; it reads all of them."""
    statement = _BROKEN.replace("{messages}", _messages(messages.queues(connection)))
    rows = connection.rows(
        statement,
        longest_hidden=max(_SENT_AHEAD, settings.visibility_timeout).total_seconds(),
        stall_threshold=settings.workflow_stall_threshold.total_seconds(),
    )
    return [_broken(row) for row in rows]


def _table(queue: str) -> str:
    return f"pgmq.{quoted(f'q_{queue}')}"


def _messages(queues: Iterable[str]) -> str:
    """Return the query of all messages that some worker can read."""
    of_queues = [f"SELECT '{queue}', msg_id, vt FROM {_table(queue)}" for queue in sorted(queues)]
    return " UNION ALL ".join([_NO_MESSAGES, *of_queues])


def _broken(row: tuple[Any, ...]) -> BrokenRun:
    workflow_id, workflow_class, status, *rest = row
    return BrokenRun(workflow_id, workflow_class, RunStatus(status), *rest)
