"""Texts that a page must show as they are, and runs every field of which is such a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from pgbus import Batch, Workflow, job, step

if TYPE_CHECKING:
    from support.database import Database
    from support.driving import Driver

    from pgbus import Pgbus, Run

CORPUS = {
    "script": "<script>alert(1)</script>",
    "breaks out of an attribute": "\"'><img src=x onerror=alert(2)>",
    "closes what surrounds it": "</code></bdi></title></textarea></script><svg onload=alert(3)>",
    "address": "javascript:alert(4)//",
    "template": "{{7*7}}${7*7}{% raw %}{# #}",
    "format": "%s %(name)s %d %% {0} {name} %",
    "chart markup": '<b>bold</b><br><a href="javascript:alert(5)">x</a> %{x} %{hovertext}',
    "entities": "&lt;script&gt;alert(6)&lt;/script&gt; &amp; &#39; &nbsp",
    "style": "x{}</style><style>*{display:none}</style>;background:url(//evil.example)",
    "sections": "]]> <![CDATA[ --> <!-- <?php ?>",
    "right to left": "\u202egnp.exe\u2066 \u05e9\u05dc\u05d5\u05dd",
    "control characters": "a\x01b\x08c\x1b[31m\x7f\u2028d\u200be\ufefff",
    "emoji": "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 é̀̂",
    "quotes": "` \\ \" ' “ ” \\u0022 \\",
    "long": "x" * 10_000,
    "path": "../../..//evil.example/\\evil",
}


class Printed(Workflow):
    @step
    def print(self):
        raise RuntimeError("out of ink")


@job
def proof(number): ...


_RUN = """
UPDATE pgbus.workflows SET workflow_class = %(text)s, current_step = %(text)s, subject_type = %(text)s,
       subject_id = %(text)s, arguments = %(document)s, idempotency_key = %(text)s
 WHERE workflow_id = %(id)s
"""
_ATTEMPT = """
UPDATE pgbus.workflow_steps SET step_name = %(text)s, queue = %(text)s, worker = %(text)s, revision = %(text)s,
       output = %(document)s, error_class = %(text)s, error_message = %(text)s, error = %(error)s,
       batch_id = %(batch)s
 WHERE workflow_id = %(id)s
"""
_DEFINITION = """
INSERT INTO pgbus.workflow_definitions (workflow_class, digest, steps, created_at)
SELECT %(text)s, definition_digest, jsonb_build_array(CAST(%(text)s AS text)), now()
  FROM pgbus.workflows WHERE workflow_id = %(id)s
"""
_EVENT = """
INSERT INTO pgbus.workflow_events (workflow_id, event, step_name, attempt, actor, reason, from_status, to_status,
                                   details, created_at)
SELECT %(id)s, event, %(text)s, 1, %(text)s, %(text)s, 'paused', 'paused', %(document)s, now()
  FROM unnest(ARRAY['paused', 'late_notice', 'resumed', 'signal_received', %(text)s]) event
"""
_SIGNAL = """
INSERT INTO pgbus.workflow_signals (workflow_id, name, payload, idempotency_key, actor, reason, status, step_name,
                                    received_at)
VALUES (%(id)s, %(text)s, %(document)s, left(%(text)s, 200), %(text)s, %(text)s, 'pending', %(text)s, now())
"""
_BATCH = """
UPDATE pgbus.batches SET description = %(text)s, properties = %(document)s,
       on_complete = jsonb_build_object('job', CAST(%(text)s AS text), 'queue', CAST(%(text)s AS text)),
       workflow_id = %(id)s, step_id = (SELECT step_id FROM pgbus.workflows WHERE workflow_id = %(id)s)
 WHERE batch_id = %(batch)s
"""
_MEMBERS = "UPDATE pgbus.batch_jobs SET job = %(text)s, queue = %(text)s WHERE batch_id = %(batch)s"
_FAILED_JOB = """
INSERT INTO pgbus.failed_jobs (queue, message_id, job, read_count, error_class, error_message, error, failed_at)
VALUES (left(%(text)s, 200), 1, %(text)s, 1, %(text)s, %(text)s, %(error)s, now())
"""
_PROCESS = """
INSERT INTO pgbus.processes (process_id, kind, host, pid, revision, details, started_at, heartbeat_at)
VALUES (gen_random_uuid(), 'worker', %(text)s, 1, %(text)s, jsonb_build_object('queues', ARRAY[%(text)s],
        'running', jsonb_build_array(jsonb_build_object('job', CAST(%(text)s AS text), 'message_id', 1, 'seconds', 1,
                                                        'queue', CAST(%(text)s AS text)))), now(), now())
"""
_MADE = "SELECT pgbus.make_queue(%(queue)s), pgbus.make_queue(%(queue)s || '_dlq')"
_PAUSE = "INSERT INTO pgbus.queues VALUES (%(queue)s, %(text)s, %(text)s, now())"
_MESSAGE = """
SELECT pgmq.send(%(queue)s, jsonb_build_object('job', CAST(%(text)s AS text), 'arguments',
                 jsonb_build_object('args', ARRAY[%(text)s], 'kwargs', jsonb_build_object(%(text)s, 1))), 3600)
"""
_DEAD_LETTER = """
SELECT pgmq.send(%(queue)s || '_dlq', %(document)s,
                 jsonb_build_object('dead_letter', jsonb_build_object('queue', CAST(%(text)s AS text), 'error',
                     CAST(%(error)s AS jsonb), 'error_class', CAST(%(text)s AS text),
                     'error_message', CAST(%(text)s AS text), 'read_count', CAST(%(text)s AS text))))
"""
_WRITTEN = (
    *(_RUN, _ATTEMPT, _DEFINITION, _EVENT, _SIGNAL, _BATCH, _MEMBERS, _FAILED_JOB, _PROCESS),
    *(_MADE, _PAUSE, _MESSAGE, _DEAD_LETTER),
)


def write(bus: Pgbus, driver: Driver, database: Database) -> dict[str, tuple[Run, str]]:
    """Writes a run of each text, a batch, a process and a queue with it; returns the runs with their batches."""
    written = {}
    for name, text in CORPUS.items():
        run = bus.start(Printed)
        driver.drain()
        with bus.active(), Batch.open(description="proofs") as batch:
            batch.add(proof, 1)
        entry = {"class": text, "message": text, "backtrace": [text, text]}
        values = {
            "id": run.workflow_id,
            "queue": queue_of(name),
            "batch": batch.batch_id,
            "text": text,
            "document": Jsonb({text[:200]: text, "list": [text, {"": text}]}),
            "error": Jsonb({**entry, "causes": [entry]}),
        }
        with database.connection(autocommit=True) as connection:
            for statement in _WRITTEN:
                connection.execute(statement, values)
        written[name] = (run, str(batch.batch_id))
    return written


def queue_of(name: str) -> str:
    """The queue that holds the message of a text; what was given up is in its `_dlq`."""
    return f"pgbus_proof{list(CORPUS).index(name):02}"


def as_json(text: str) -> str:
    """The text as it stands within a document."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
