"""The tables of runs, attempts, events, definitions, failed jobs and processes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables, in the schema that holds the version table."""
    schema = op.get_context().version_table_schema
    _workflows(schema)
    _workflow_steps(schema)
    _workflow_events(schema)
    _workflow_definitions(schema)
    _failed_jobs(schema)
    _processes(schema)


def _workflows(schema: str | None) -> None:
    op.create_table(
        "workflows",
        sa.Column("workflow_id", sa.Uuid, primary_key=True),
        sa.Column("workflow_class", sa.Text, nullable=False),
        sa.Column("definition_digest", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("subject_type", sa.Text),
        sa.Column("subject_id", sa.Text),
        sa.Column("arguments", JSONB, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("current_step", sa.Text, nullable=False),
        sa.Column("step_id", sa.BigInteger, nullable=False),
        sa.Column("rerun_of", sa.Uuid),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.Column("paused_at", _MOMENT),
        sa.Column("ended_at", _MOMENT),
        sa.CheckConstraint(
            "status IN ('ready', 'performing', 'waiting', 'paused', 'finished', 'cancelled')",
            name="workflows_status_known",
        ),
        schema=schema,
        postgresql_with={"fillfactor": 80},
    )
    op.create_index(
        "workflows_ongoing_subject_key",
        "workflows",
        ["workflow_class", "subject_type", "subject_id"],
        unique=True,
        schema=schema,
        postgresql_where=sa.text("ended_at IS NULL AND subject_id IS NOT NULL"),
    )
    op.create_index(
        "workflows_idempotency_key",
        "workflows",
        ["workflow_class", "idempotency_key"],
        unique=True,
        schema=schema,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index(
        "workflows_ongoing",
        "workflows",
        ["workflow_id"],
        schema=schema,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "workflows_rerun_of",
        "workflows",
        ["rerun_of"],
        schema=schema,
        postgresql_where=sa.text("rerun_of IS NOT NULL"),
    )


def _workflow_steps(schema: str | None) -> None:
    op.create_table(
        "workflow_steps",
        sa.Column("step_id", sa.BigInteger, sa.Identity(always=False), primary_key=True),
        sa.Column("workflow_id", sa.Uuid, nullable=False),
        sa.Column("step_name", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("message_id", sa.BigInteger),
        sa.Column("read_count", sa.Integer),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("scheduled_at", _MOMENT, nullable=False),
        sa.Column("send_at", _MOMENT),
        sa.Column("started_at", _MOMENT),
        sa.Column("finished_at", _MOMENT),
        sa.Column("worker", sa.Text),
        sa.Column("revision", sa.Text),
        sa.Column("output", JSONB),
        sa.Column("error_class", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.Column("error", JSONB),
        sa.Column("reattempted_by", sa.Text),
        sa.Column("held", JSONB),
        sa.CheckConstraint(
            "status IN ('scheduled', 'waiting', 'in_progress', 'completed', 'failed', "
            "'cancelled', 'skipped')",
            name="workflow_steps_status_known",
        ),
        schema=schema,
        postgresql_with={"fillfactor": 80},
    )
    op.create_index(
        "workflow_steps_attempt_key",
        "workflow_steps",
        ["workflow_id", "step_name", "attempt"],
        unique=True,
        schema=schema,
    )
    op.create_index(
        "workflow_steps_send_at",
        "workflow_steps",
        ["send_at"],
        schema=schema,
        postgresql_where=sa.text("send_at IS NOT NULL"),
    )


def _workflow_events(schema: str | None) -> None:
    op.create_table(
        "workflow_events",
        sa.Column("workflow_id", sa.Uuid, nullable=False),
        sa.Column("event_id", sa.BigInteger, sa.Identity(always=False), nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("step_name", sa.Text),
        sa.Column("attempt", sa.Integer),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("from_status", sa.Text),
        sa.Column("to_status", sa.Text, nullable=False),
        sa.Column("details", JSONB),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", "event_id"),
        schema=schema,
    )


def _workflow_definitions(schema: str | None) -> None:
    op.create_table(
        "workflow_definitions",
        sa.Column("workflow_class", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("steps", JSONB, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        schema=schema,
    )


def _failed_jobs(schema: str | None) -> None:
    op.create_table(
        "failed_jobs",
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("message_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("read_count", sa.Integer, nullable=False),
        sa.Column("error_class", sa.Text, nullable=False),
        sa.Column("error_message", sa.Text, nullable=False),
        sa.Column("error", JSONB),
        sa.Column("failed_at", _MOMENT, nullable=False),
        schema=schema,
    )


def _processes(schema: str | None) -> None:
    op.create_table(
        "processes",
        sa.Column("process_id", sa.Uuid, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("revision", sa.Text),
        sa.Column("details", JSONB, nullable=False),
        sa.Column("started_at", _MOMENT, nullable=False),
        sa.Column("heartbeat_at", _MOMENT, nullable=False),
        schema=schema,
    )
