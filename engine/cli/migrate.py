"""`pgbus migrate`."""

from __future__ import annotations

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.failures import Refused


@click.command()
@app_option()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 with the reasons to migrate.")
@click.option("--sql", is_flag=True, help="Change nothing; print a new schema's script for psql.")
@click.pass_context
def migrate(ctx: click.Context, app: str | None, *, check: bool, sql: bool) -> None:
    """Bring the database to the schema that this pgbus needs.

    Safe to run again, and from many processes at once.
    """
    from pgbus.engine.storage import migrate as storage  # noqa: PLC0415 (Alembic is slow to import)

    if check and sql:
        raise click.UsageError("--check and --sql exclude each other.")
    with opened(app) as bus:
        schema = bus.settings.schema
        if sql:
            click.echo(storage.migration_sql(schema), nl=False)
        elif not check:
            bus.migrate()
            click.echo(f"Schema {schema} is current.")
        elif reasons := storage.pending(bus.services.database.engine, schema):
            click.echo("\n".join(reasons))
            ctx.exit(Refused.exit_code)
        else:
            click.echo(f"Schema {schema} is current.")
