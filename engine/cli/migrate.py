"""`pgbus migrate`."""

from __future__ import annotations

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.failures import Refused
from pgbus.engine.cli.options import json_option


@click.command()
@app_option()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 with the reasons to migrate.")
@click.option("--sql", is_flag=True, help="Change nothing; print a new schema's script for psql.")
@json_option
@click.pass_context
def migrate(ctx: click.Context, app: str | None, *, check: bool, sql: bool, as_json: bool) -> None:
    """Bring the database to the schema that this pgbus needs.

    Safe to run again, and from many processes at once.
    """
    from pgbus.engine.storage import migrate as storage  # noqa: PLC0415 (Alembic is slow to import)

    if sql and (check or as_json):
        raise click.UsageError("--sql and --check, or --json, exclude each other.")
    with opened(app) as bus:
        schema = bus.settings.schema
        if sql:
            click.echo(storage.migration_sql(schema), nl=False)
            return
        if not check:
            bus.migrate()
        reasons = storage.pending(bus.services.database.engine, schema) if check else []
    if as_json:
        click.echo(document({"schema": schema, "pending": reasons}))
    else:
        click.echo("\n".join(reasons) or f"Schema {schema} is current.")
    if reasons:
        ctx.exit(Refused.exit_code)
