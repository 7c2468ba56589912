"""The indexes by which the console finds runs among a million."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_LISTED = ["lane", "created_at", "workflow_id", "settled_step"]


def upgrade() -> None:
    """Add the columns and the indexes; those of waits and of the timer get more."""
    schema = op.get_context().version_table_schema
    for column in (
        sa.Column(
            "lane",
            sa.Text,
            sa.Computed(
                "CASE WHEN status IN ('ready', 'performing') THEN 'moving' ELSE status END",
                persisted=True,
            ),
            nullable=False,
        ),
        sa.Column(
            "settled_step",
            sa.Text,
            sa.Computed(
                "CASE WHEN status NOT IN ('ready', 'performing') THEN current_step END",
                persisted=True,
            ),
        ),
        sa.Column(
            "paused_attempt",
            sa.BigInteger,
            sa.Computed("CASE WHEN status = 'paused' THEN step_id END", persisted=True),
        ),
    ):
        op.add_column("workflows", column, schema=schema)
    for name in ("send_at", "waiting_since"):
        op.drop_index(f"workflow_steps_{name}", "workflow_steps", schema=schema)
    for table, name, columns, condition in (
        ("workflows", "lane", _LISTED, None),
        ("workflows", "class", ["workflow_class", *_LISTED], None),
        (
            "workflows",
            "paused",
            ["workflow_class", "settled_step", "paused_at", "paused_attempt"],
            "lane = 'paused'",
        ),
        ("workflows", "subject_id", ["subject_id"], "subject_id IS NOT NULL"),
        ("workflows", "ended_at", ["ended_at", "lane"], "ended_at IS NOT NULL"),
        ("workflow_steps", "send_at", ["send_at", "workflow_id"], "send_at IS NOT NULL"),
        ("workflow_steps", "held", ["step_id"], "held IS NOT NULL"),
        (
            "workflow_steps",
            "waiting_since",
            ["waiting_since", "timeout_at"],
            "waiting_since IS NOT NULL",
        ),
        (
            "workflow_steps",
            "error_class",
            ["error_class", "workflow_id", "step_id"],
            "error_class IS NOT NULL AND (reattempted_by IS NULL OR held IS NOT NULL)",
        ),
    ):
        op.create_index(
            f"{table}_{name}",
            table,
            columns,
            schema=schema,
            postgresql_where=None if condition is None else sa.text(condition),
        )
