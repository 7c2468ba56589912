"""What becomes of an error: one line on standard error (with --json a document), and an exit code."""

from __future__ import annotations

import json
from typing import Any

import click

from pgbus.engine import errors
from pgbus.engine.cli.tables import printable
from pgbus.engine.errors import InvalidSetting, PgbusError
from pgbus.engine.storage.database import cause_of, is_passing


class Failure(click.ClickException):
    """An error that its one line says all about."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message.strip()))


class Refused(Failure):
    """The run's state, or that of the schema, does not allow what was asked."""

    exit_code = 1


class BadSetting(Failure):
    """A setting is unknown or has a bad value."""

    exit_code = 2


class DatabaseAway(Failure):
    """PostgreSQL cannot be reached, or does not answer in time."""

    exit_code = 3


class Incomplete(Failure):
    """Of many things that were to be done, some failed or were not begun."""

    exit_code = 4


class Commands(click.Group):
    """A group whose commands end in a `Failure` where pgbus or the database says no."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; note whether JSON is wanted, also where the rest is wrong usage."""
        ctx.obj = {"as_json": "--json" in args}
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Return what the command returns; errors of any other kind keep their traceback."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            failure = _failure(error)
            if failure is None:
                raise
            if not ctx.obj["as_json"]:
                raise failure from error
            click.echo(json.dumps({"error": failure.format_message()}), err=True)
            ctx.exit(failure.exit_code)


def _failure(error: Exception) -> click.ClickException | None:
    match error:
        case click.ClickException():
            return error
        case InvalidSetting():
            return BadSetting(str(error))
        case errors.DatabaseAway() | errors.ReadTimeout():
            return DatabaseAway(str(error))
        case PgbusError():
            return Refused(str(error))
    if is_passing(error):
        return DatabaseAway(f"PostgreSQL does not answer: {cause_of(error)}")
    return None
