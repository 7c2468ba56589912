"""The indexes by which the console finds runs among a million."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_LISTED = ["lane", "created_at", "workflow_id", "settled_step", "settled_attempt"]

_GENERATED = {
    "lane": "text GENERATED ALWAYS AS"
    " (CASE WHEN status IN ('ready', 'performing') THEN 'moving' ELSE status END) STORED NOT NULL",
    "settled_step": "text GENERATED ALWAYS AS"
    " (CASE WHEN status NOT IN ('ready', 'performing') THEN current_step END) STORED",
    "settled_attempt": "bigint GENERATED ALWAYS AS"
    " (CASE WHEN status NOT IN ('ready', 'performing') THEN step_id END) STORED",
}


def upgrade() -> None:
    """Add the columns and the indexes; those of waits and of the timer get more."""
    schema = op.get_context().version_table_schema
    # Each statement of its own would write the whole table anew.
    added = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in _GENERATED.items())
    preparer = op.get_bind().dialect.identifier_preparer
    workflows = preparer.format_table(sa.table("workflows", schema=schema))
    op.execute(f"ALTER TABLE {workflows} {added}")
    for name in ("send_at", "waiting_since"):
        op.drop_index(f"workflow_steps_{name}", "workflow_steps", schema=schema)
    for table, name, columns, condition in (
        ("workflows", "lane", _LISTED, None),
        ("workflows", "class", ["workflow_class", *_LISTED], None),
        (
            "workflows",
            "paused",
            ["workflow_class", "settled_step", "paused_at", "settled_attempt"],
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
        ("batches", "failed", ["batch_id"], "discarded_jobs + dead_lettered_jobs > 0"),
    ):
        op.create_index(
            f"{table}_{name}",
            table,
            columns,
            schema=schema,
            postgresql_where=None if condition is None else sa.text(condition),
        )
