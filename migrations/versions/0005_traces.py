"""The trace that each attempt belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    schema = op.get_context().version_table_schema
    op.add_column("workflow_steps", sa.Column("trace", sa.Text), schema=schema)
