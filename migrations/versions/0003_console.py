"""The indexes by which the console finds runs among a million."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_LISTED = ["lane", "created_at", "workflow_id", "settled_step", "settled_error"]

_COLUMNS = {
    "lane": "text GENERATED ALWAYS AS"
    " (CASE WHEN status IN ('ready', 'performing') THEN 'moving' ELSE status END) STORED NOT NULL",
    "settled_step": "text GENERATED ALWAYS AS"
    " (CASE WHEN status NOT IN ('ready', 'performing') THEN current_step END) STORED",
    "settled_attempt": "bigint GENERATED ALWAYS AS"
    " (CASE WHEN status NOT IN ('ready', 'performing') THEN step_id END) STORED",
    "settled_error": "text",
}


#: That of the newest attempt.
_ERRORS = """
UPDATE {runs} w SET settled_error = coalesce(s.error_class, '')
  FROM {attempts} s
 WHERE s.step_id = w.step_id AND w.status IN ('paused', 'finished', 'cancelled')
"""


def upgrade() -> None:
    """Add the columns and the indexes; those of waits and of the timer get more.

    A lane tells what `moving` did, and what is ongoing.
    """
    schema = op.get_context().version_table_schema
    # Each statement of its own would write the whole table anew.
    added = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in _COLUMNS.items())
    preparer = op.get_bind().dialect.identifier_preparer
    workflows, attempts = (
        preparer.format_table(sa.table(name, schema=schema))
        for name in ("workflows", "workflow_steps")
    )
    op.execute(f"ALTER TABLE {workflows} {added}, DROP COLUMN moving")
    op.execute(_ERRORS.format(runs=workflows, attempts=attempts))
    op.drop_index("workflows_ongoing", "workflows", schema=schema)
    for name in ("send_at", "waiting_since"):
        op.drop_index(f"workflow_steps_{name}", "workflow_steps", schema=schema)
    for table, name, columns, condition in (
        ("workflows", "lane", _LISTED, None),
        ("workflows", "class", ["workflow_class", *_LISTED], None),
        (
            "workflows",
            "paused",
            ["workflow_class", "settled_step", "paused_at", "settled_attempt", "settled_error"],
            "lane = 'paused'",
        ),
        (
            "workflows",
            "error",
            ["settled_error", "lane", "created_at", "workflow_id"],
            "lane = 'paused' OR settled_error <> ''",
        ),
        ("workflows", "subject_id", ["subject_id"], "subject_id IS NOT NULL"),
        (
            "workflows",
            "ended_at",
            ["ended_at", "lane", "workflow_class", "created_at"],
            "ended_at IS NOT NULL",
        ),
        ("workflow_steps", "send_at", ["send_at", "workflow_id"], "send_at IS NOT NULL"),
        ("workflow_steps", "held", ["step_id"], "held IS NOT NULL"),
        (
            "workflow_steps",
            "waiting_since",
            ["waiting_since", "timeout_at"],
            "waiting_since IS NOT NULL",
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
