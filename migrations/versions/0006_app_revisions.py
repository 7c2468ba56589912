"""Since when workers run each app revision."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_FILL = """
INSERT INTO {seen} (revision, first_seen_at)
SELECT revision, min(started_at) FROM {processes}
 WHERE kind = 'worker' AND revision IS NOT NULL GROUP BY revision
"""


def upgrade() -> None:
    """Create the table, with the revisions of the workers that are known."""
    schema = op.get_context().version_table_schema
    op.create_table(
        "app_revisions",
        sa.Column("revision", sa.Text, primary_key=True),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        schema=schema,
    )
    preparer = op.get_bind().dialect.identifier_preparer
    seen, processes = (
        preparer.format_table(sa.table(name, schema=schema))
        for name in ("app_revisions", "processes")
    )
    op.execute(_FILL.format(seen=seen, processes=processes))
