"""What becomes of an error: one line on standard error, and an exit code."""

from __future__ import annotations

from typing import Any

import click

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
    """PostgreSQL cannot be reached."""

    exit_code = 3


class Commands(click.Group):
    """A group whose commands end in a `Failure` where pgbus or the database says no."""

    def invoke(self, ctx: click.Context) -> Any:
        """What the command returns; errors of any other kind keep their traceback."""
        try:
            return super().invoke(ctx)
        except InvalidSetting as error:
            raise BadSetting(str(error)) from error
        except PgbusError as error:
            raise Refused(str(error)) from error
        except Exception as error:
            if not is_passing(error):
                raise
            raise DatabaseAway(f"PostgreSQL does not answer: {cause_of(error)}") from error
