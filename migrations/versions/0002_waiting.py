"""What runs wait for: signals, deadlines, batches of jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables and add the columns."""
    schema = op.get_context().version_table_schema
    _workflows(schema)
    _workflow_steps(schema)
    _workflow_signals(schema)
    _batches(schema)
    _batch_counters(schema)
    _batch_jobs(schema)


def _workflows(schema: str | None) -> None:
    op.add_column(
        "workflows",
        sa.Column(
            "moving",
            sa.Boolean,
            sa.Computed("status IN ('ready', 'performing')", persisted=True),
            nullable=False,
        ),
        schema=schema,
    )
    op.create_index(
        "workflows_moving",
        "workflows",
        ["workflow_id"],
        schema=schema,
        postgresql_where=sa.text("moving"),
    )


def _workflow_steps(schema: str | None) -> None:
    for column in (
        sa.Column("waiting_for", sa.Text),
        sa.Column("waiting_since", _MOMENT),
        sa.Column("timeout_at", _MOMENT),
        sa.Column("timeout_left", sa.Interval),
        sa.Column("late_since", _MOMENT),
        sa.Column("timed_out", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("batch_id", sa.Uuid),
    ):
        op.add_column("workflow_steps", column, schema=schema)
    for name, indexed, condition in (
        ("waiting_since", "waiting_since", "waiting_since IS NOT NULL"),
        ("waiting_batch", "batch_id", "waiting_since IS NOT NULL AND batch_id IS NOT NULL"),
        ("timeout_at", "timeout_at", "timeout_at IS NOT NULL"),
    ):
        op.create_index(
            f"workflow_steps_{name}",
            "workflow_steps",
            [indexed],
            schema=schema,
            postgresql_where=sa.text(condition),
        )


def _workflow_signals(schema: str | None) -> None:
    op.create_table(
        "workflow_signals",
        sa.Column("workflow_id", sa.Uuid, nullable=False),
        sa.Column("signal_id", sa.BigInteger, sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("payload", JSONB),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("step_name", sa.Text),
        sa.Column("step_id", sa.BigInteger),
        sa.Column("received_at", _MOMENT, nullable=False),
        sa.Column("claimed_at", _MOMENT),
        sa.Column("consumed_at", _MOMENT),
        sa.PrimaryKeyConstraint("workflow_id", "signal_id", name="workflow_signals_pkey"),
        sa.CheckConstraint(
            "status IN ('pending', 'claimed', 'consumed')", name="workflow_signals_status_known"
        ),
        schema=schema,
    )
    op.create_index(
        "workflow_signals_idempotency_key",
        "workflow_signals",
        ["workflow_id", "idempotency_key"],
        schema=schema,
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )


def _batches(schema: str | None) -> None:
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.Uuid, primary_key=True),
        sa.Column("description", sa.Text),
        sa.Column("properties", JSONB, nullable=False),
        sa.Column("on_complete", JSONB),
        sa.Column("on_success", JSONB),
        sa.Column("on_failure", JSONB),
        sa.Column("workflow_id", sa.Uuid),
        sa.Column("step_id", sa.BigInteger),
        sa.Column("step_queue", sa.Text),
        sa.Column("total_jobs", sa.Integer, nullable=False),
        sa.Column("counters", sa.Integer, nullable=False),
        sa.Column("completed_jobs", sa.Integer),
        sa.Column("discarded_jobs", sa.Integer),
        sa.Column("dead_lettered_jobs", sa.Integer),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("finished_at", _MOMENT),
        sa.Column("withdrawn_at", _MOMENT),
        sa.Column("resolved_at", _MOMENT),
        schema=schema,
    )
    for name, column, condition in (
        ("open", "batch_id", "finished_at IS NULL"),
        ("finished", "finished_at", "finished_at IS NOT NULL"),
        (
            "unresolved",
            "finished_at",
            "step_id IS NOT NULL AND finished_at IS NOT NULL AND resolved_at IS NULL",
        ),
    ):
        op.create_index(
            f"batches_{name}",
            "batches",
            [column],
            schema=schema,
            postgresql_where=sa.text(condition),
        )


def _batch_counters(schema: str | None) -> None:
    op.create_table(
        "batch_counters",
        sa.Column("batch_id", sa.Uuid, nullable=False),
        sa.Column("counter", sa.Integer, nullable=False),
        sa.Column("open", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("discarded", sa.Integer, nullable=False),
        sa.Column("dead_lettered", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "counter", name="batch_counters_pkey"),
        schema=schema,
        postgresql_with={"fillfactor": 50},
    )


def _batch_jobs(schema: str | None) -> None:
    op.create_table(
        "batch_jobs",
        sa.Column("batch_id", sa.Uuid, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("counter", sa.Integer, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("ended_at", _MOMENT),
        sa.PrimaryKeyConstraint("batch_id", "number", name="batch_jobs_pkey"),
        sa.CheckConstraint(
            "status IN ('open', 'completed', 'discarded', 'dead_lettered')",
            name="batch_jobs_status_known",
        ),
        schema=schema,
        postgresql_with={"fillfactor": 80},
    )
