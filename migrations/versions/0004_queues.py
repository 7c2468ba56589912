"""The queues that are paused, and the order in which failed jobs are listed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and the index."""
    schema = op.get_context().version_table_schema
    op.create_table(
        "queues",
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=False),
        schema=schema,
    )
    op.create_index(
        "failed_jobs_failed_at",
        "failed_jobs",
        ["failed_at", "queue", "message_id"],
        schema=schema,
    )
