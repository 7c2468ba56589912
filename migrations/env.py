"""Runs the revisions on the connection, or into the script, of `pgbus.engine.storage.migrate`."""

from alembic import context

from pgbus.engine.storage.revision import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    dialect_name="postgresql",
    version_table=VERSION_TABLE,
    version_table_schema=context.config.attributes["schema"],
)
context.run_migrations()
