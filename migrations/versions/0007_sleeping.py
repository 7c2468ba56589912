"""A lane of their own for the runs that sleep until the timer sends their step."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_LANE = (
    "CASE WHEN sleeps_until IS NOT NULL THEN 'sleeping'"
    " WHEN status IN ('ready', 'performing') THEN 'moving' ELSE status END"
)

#: Those whose message the timer has yet to send.
_SLEEPERS = """
UPDATE {runs} w SET sleeps_until = s.send_at
  FROM {attempts} s
 WHERE s.step_id = w.step_id AND w.status = 'ready' AND s.send_at IS NOT NULL
"""

_LISTED = ["lane", "created_at", "workflow_id", "settled_step", "settled_error"]


def upgrade() -> None:
    """Add the column, and make the lane anew, with the indexes that name it."""
    schema = op.get_context().version_table_schema
    preparer = op.get_bind().dialect.identifier_preparer
    workflows, attempts = (
        preparer.format_table(sa.table(name, schema=schema))
        for name in ("workflows", "workflow_steps")
    )
    op.add_column("workflows", sa.Column("sleeps_until", sa.DateTime(timezone=True)), schema=schema)
    op.execute(_SLEEPERS.format(runs=workflows, attempts=attempts))
    # Dropping a column drops its indexes.
    op.execute(
        f"ALTER TABLE {workflows} DROP COLUMN lane,"
        f" ADD COLUMN lane text GENERATED ALWAYS AS ({_LANE}) STORED NOT NULL"
    )
    for name, columns, condition in (
        ("lane", _LISTED, None),
        ("class", ["workflow_class", *_LISTED], None),
        (
            "paused",
            ["workflow_class", "settled_step", "paused_at", "settled_attempt", "settled_error"],
            "lane = 'paused'",
        ),
        (
            "error",
            ["settled_error", "lane", "created_at", "workflow_id"],
            "lane = 'paused' OR settled_error <> ''",
        ),
        (
            "ended_at",
            ["ended_at", "lane", "workflow_class", "created_at"],
            "ended_at IS NOT NULL",
        ),
        ("sleeps_until", ["sleeps_until", "workflow_id"], "sleeps_until IS NOT NULL"),
    ):
        op.create_index(
            f"workflows_{name}",
            "workflows",
            columns,
            schema=schema,
            postgresql_where=None if condition is None else sa.text(condition),
        )
