"""The tables of the pgbus schema.

No index or predicate names a column that changes while a run moves through its
steps (`status`, `step_id`, `current_step`), so those updates stay HOT: nothing is
added to any index. `lane` stands in for the status with ready and performing as one (moving), but for those
that are ready and sleep, `settled_step` and `settled_attempt` for those of a run that is neither,
`settled_error` for that attempt's error class, `send_at` for "waits for the timer", `waiting_since` for "is
waiting". There are no foreign keys: children are written with their run's row locked, deleted before it, and the
check would cost a tenth of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Identity,
    Index,
    Integer,
    Interval,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from pgbus.engine.states import AttemptStatus, MemberStatus, RunStatus, SignalStatus

if TYPE_CHECKING:
    from enum import StrEnum

_ROOM_FOR_UPDATES = {"fillfactor": 80}

#: A run's status, ready and performing as one, but for those that are ready and sleep. PostgreSQL parses what
#: generates a column at every statement that writes a row, so each of these is as short as can be.
_LANE = (
    "CASE WHEN sleeps_until IS NOT NULL THEN 'sleeping'"
    " WHEN status IN ('ready', 'performing') THEN 'moving' ELSE status END"
)

#: The step of a run that is neither ready nor performing.
_SETTLED_STEP = "CASE WHEN status NOT IN ('ready', 'performing') THEN current_step END"

#: The newest attempt of such a run.
_SETTLED_ATTEMPT = "CASE WHEN status NOT IN ('ready', 'performing') THEN step_id END"

#: Runs by lane, in the order of the list.
_LISTED = ("lane", "created_at", "workflow_id", "settled_step", "settled_error")


def _one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    names = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({names})", name=f"{column}_known")


def _moment(name: str, *, nullable: bool = True) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def metadata(schema: str) -> MetaData:
    """Return the tables, in the schema of this name."""
    tables = MetaData(
        schema=schema,
        naming_convention={
            "pk": "%(table_name)s_pkey",
            "ck": "%(table_name)s_%(constraint_name)s",
        },
    )
    _workflows(tables)
    _workflow_steps(tables)
    _workflow_events(tables)
    _workflow_signals(tables)
    _workflow_definitions(tables)
    _batches(tables)
    _batch_counters(tables)
    _batch_jobs(tables)
    _failed_jobs(tables)
    _queues(tables)
    _app_revisions(tables)
    _processes(tables)
    return tables


def _workflows(tables: MetaData) -> None:
    Table(
        "workflows",
        tables,
        Column("workflow_id", Uuid, primary_key=True),
        Column("workflow_class", Text, nullable=False),
        Column("definition_digest", Text, nullable=False),
        Column("status", Text, nullable=False),
        Column("subject_type", Text),
        Column("subject_id", Text),
        Column("arguments", JSONB, nullable=False),
        Column("idempotency_key", Text),
        Column("current_step", Text, nullable=False),
        Column("step_id", BigInteger, nullable=False),
        Column("rerun_of", Uuid),
        _moment("created_at", nullable=False),
        _moment("updated_at", nullable=False),
        _moment("paused_at"),
        _moment("ended_at"),
        Column("lane", Text, Computed(_LANE, persisted=True), nullable=False),
        Column("settled_step", Text, Computed(_SETTLED_STEP, persisted=True)),
        Column("settled_attempt", BigInteger, Computed(_SETTLED_ATTEMPT, persisted=True)),
        # Of that attempt; '' when it has none, NULL while the run is neither paused nor has ended.
        Column("settled_error", Text),
        # While it is ready: when its step is due, if that was more than a minute ahead when it was scheduled.
        _moment("sleeps_until"),
        _one_of("status", RunStatus),
        Index(
            "workflows_ongoing_subject_key",
            "workflow_class",
            "subject_type",
            "subject_id",
            unique=True,
            postgresql_where=text("ended_at IS NULL AND subject_id IS NOT NULL"),
        ),
        Index(
            "workflows_idempotency_key",
            "workflow_class",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        Index("workflows_lane", *_LISTED),
        Index(
            "workflows_sleeps_until",
            "sleeps_until",
            "workflow_id",
            postgresql_where=text("sleeps_until IS NOT NULL"),
        ),
        Index("workflows_class", "workflow_class", *_LISTED),
        Index(
            "workflows_paused",
            "workflow_class",
            "settled_step",
            "paused_at",
            "settled_attempt",
            "settled_error",
            postgresql_where=text("lane = 'paused'"),
        ),
        Index(
            "workflows_error",
            "settled_error",
            "lane",
            "created_at",
            "workflow_id",
            postgresql_where=text("lane = 'paused' OR settled_error <> ''"),
        ),
        Index(
            "workflows_subject_id", "subject_id", postgresql_where=text("subject_id IS NOT NULL")
        ),
        Index(
            "workflows_ended_at",
            "ended_at",
            "lane",
            "workflow_class",
            "created_at",
            postgresql_where=text("ended_at IS NOT NULL"),
        ),
        Index("workflows_rerun_of", "rerun_of", postgresql_where=text("rerun_of IS NOT NULL")),
        postgresql_with=_ROOM_FOR_UPDATES,
    )


def _workflow_steps(tables: MetaData) -> None:
    Table(
        "workflow_steps",
        tables,
        Column("step_id", BigInteger, Identity(always=False), primary_key=True),
        Column("workflow_id", Uuid, nullable=False),
        Column("step_name", Text, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("status", Text, nullable=False),
        Column("outcome", Text),
        Column("queue", Text, nullable=False),
        Column("message_id", BigInteger),
        Column("read_count", Integer),
        _moment("created_at", nullable=False),
        _moment("scheduled_at", nullable=False),
        _moment("send_at"),
        _moment("started_at"),
        _moment("finished_at"),
        Column("worker", Text),
        Column("revision", Text),
        Column("output", JSONB),
        Column("error_class", Text),
        Column("error_message", Text),
        Column("error", JSONB),
        Column("reattempted_by", Text),
        Column("held", JSONB),
        Column("waiting_for", Text),
        _moment("waiting_since"),
        _moment("timeout_at"),
        Column("timeout_left", Interval),
        _moment("late_since"),
        Column("timed_out", Boolean, nullable=False, server_default=text("false")),
        Column("batch_id", Uuid),
        # Where its span belongs; once it waits or was the last, where that of what follows does.
        Column("trace", Text),
        _one_of("status", AttemptStatus),
        Index("workflow_steps_attempt_key", "workflow_id", "step_name", "attempt", unique=True),
        Index("workflow_steps_held", "step_id", postgresql_where=text("held IS NOT NULL")),
        Index(
            "workflow_steps_send_at",
            "send_at",
            "workflow_id",
            postgresql_where=text("send_at IS NOT NULL"),
        ),
        Index(
            "workflow_steps_waiting_since",
            "waiting_since",
            "timeout_at",
            postgresql_where=text("waiting_since IS NOT NULL"),
        ),
        Index(
            "workflow_steps_waiting_batch",
            "batch_id",
            postgresql_where=text("waiting_since IS NOT NULL AND batch_id IS NOT NULL"),
        ),
        Index(
            "workflow_steps_timeout_at",
            "timeout_at",
            postgresql_where=text("timeout_at IS NOT NULL"),
        ),
        postgresql_with=_ROOM_FOR_UPDATES,
    )


def _workflow_events(tables: MetaData) -> None:
    Table(
        "workflow_events",
        tables,
        Column("workflow_id", Uuid, nullable=False),
        Column("event_id", BigInteger, Identity(always=False), nullable=False),
        Column("event", Text, nullable=False),
        Column("step_name", Text),
        Column("attempt", Integer),
        Column("actor", Text, nullable=False),
        Column("reason", Text),
        Column("from_status", Text),
        Column("to_status", Text, nullable=False),
        Column("details", JSONB),
        _moment("created_at", nullable=False),
        PrimaryKeyConstraint("workflow_id", "event_id"),
    )


def _workflow_signals(tables: MetaData) -> None:
    Table(
        "workflow_signals",
        tables,
        Column("workflow_id", Uuid, nullable=False),
        Column("signal_id", BigInteger, Identity(always=False), nullable=False),
        Column("name", Text, nullable=False),
        Column("payload", JSONB),
        Column("idempotency_key", Text),
        Column("actor", Text, nullable=False),
        Column("reason", Text),
        Column("status", Text, nullable=False),
        Column("step_name", Text),
        Column("step_id", BigInteger),
        _moment("received_at", nullable=False),
        _moment("claimed_at"),
        _moment("consumed_at"),
        PrimaryKeyConstraint("workflow_id", "signal_id"),
        _one_of("status", SignalStatus),
        Index(
            "workflow_signals_idempotency_key",
            "workflow_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )


def _batches(tables: MetaData) -> None:
    Table(
        "batches",
        tables,
        Column("batch_id", Uuid, primary_key=True),
        Column("description", Text),
        Column("properties", JSONB, nullable=False),
        Column("on_complete", JSONB),
        Column("on_success", JSONB),
        Column("on_failure", JSONB),
        Column("workflow_id", Uuid),
        Column("step_id", BigInteger),
        Column("step_queue", Text),
        Column("total_jobs", Integer, nullable=False),
        Column("counters", Integer, nullable=False),
        Column("completed_jobs", Integer),
        Column("discarded_jobs", Integer),
        Column("dead_lettered_jobs", Integer),
        _moment("created_at", nullable=False),
        _moment("finished_at"),
        _moment("withdrawn_at"),
        _moment("resolved_at"),
        Index("batches_open", "batch_id", postgresql_where=text("finished_at IS NULL")),
        Index(
            "batches_failed",
            "batch_id",
            postgresql_where=text("discarded_jobs + dead_lettered_jobs > 0"),
        ),
        Index("batches_finished", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
        Index(
            "batches_unresolved",
            "finished_at",
            postgresql_where=text(
                "step_id IS NOT NULL AND finished_at IS NOT NULL AND resolved_at IS NULL"
            ),
        ),
    )


def _batch_counters(tables: MetaData) -> None:
    Table(
        "batch_counters",
        tables,
        Column("batch_id", Uuid, nullable=False),
        Column("counter", Integer, nullable=False),
        Column("open", Integer, nullable=False),
        Column("completed", Integer, nullable=False),
        Column("discarded", Integer, nullable=False),
        Column("dead_lettered", Integer, nullable=False),
        PrimaryKeyConstraint("batch_id", "counter"),
        postgresql_with={"fillfactor": 50},
    )


def _batch_jobs(tables: MetaData) -> None:
    Table(
        "batch_jobs",
        tables,
        Column("batch_id", Uuid, nullable=False),
        Column("number", Integer, nullable=False),
        Column("counter", Integer, nullable=False),
        Column("job", Text, nullable=False),
        Column("queue", Text, nullable=False),
        Column("status", Text, nullable=False),
        _moment("ended_at"),
        PrimaryKeyConstraint("batch_id", "number"),
        _one_of("status", MemberStatus),
        postgresql_with=_ROOM_FOR_UPDATES,
    )


def _workflow_definitions(tables: MetaData) -> None:
    Table(
        "workflow_definitions",
        tables,
        Column("workflow_class", Text, primary_key=True),
        Column("digest", Text, primary_key=True),
        Column("steps", JSONB, nullable=False),
        _moment("created_at", nullable=False),
    )


def _failed_jobs(tables: MetaData) -> None:
    Table(
        "failed_jobs",
        tables,
        Column("queue", Text, primary_key=True),
        Column("message_id", BigInteger, primary_key=True, autoincrement=False),
        Column("job", Text, nullable=False),
        Column("read_count", Integer, nullable=False),
        Column("error_class", Text, nullable=False),
        Column("error_message", Text, nullable=False),
        Column("error", JSONB),
        _moment("failed_at", nullable=False),
        Index("failed_jobs_failed_at", "failed_at", "queue", "message_id"),
    )


def _queues(tables: MetaData) -> None:
    """Those that are paused, with who paused them and why."""
    Table(
        "queues",
        tables,
        Column("queue", Text, primary_key=True),
        Column("actor", Text, nullable=False),
        Column("reason", Text),
        _moment("paused_at", nullable=False),
    )


def _app_revisions(tables: MetaData) -> None:
    Table(
        "app_revisions",
        tables,
        Column("revision", Text, primary_key=True),
        _moment("first_seen_at", nullable=False),
    )


def _processes(tables: MetaData) -> None:
    Table(
        "processes",
        tables,
        Column("process_id", Uuid, primary_key=True),
        Column("kind", Text, nullable=False),
        Column("host", Text, nullable=False),
        Column("pid", Integer, nullable=False),
        Column("revision", Text),
        Column("details", JSONB, nullable=False),
        _moment("started_at", nullable=False),
        _moment("heartbeat_at", nullable=False),
    )
