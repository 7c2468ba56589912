"""What several commands are told in the same way."""

from __future__ import annotations

import getpass
import os
from typing import Any

import click


class Count(click.IntRange):
    """A whole number from 1 on."""

    def __init__(self, most: int) -> None:
        super().__init__(1, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; say which ones there are when it is none of them."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a whole number from 1 to {self.max}.", param, ctx)


def _default_actor() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"cli:{user}"


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
reason_option = click.option("--reason", metavar="TEXT", help="Why; it is kept with what is done.")
actor_option = click.option(
    "--actor",
    default=_default_actor,
    metavar="NAME",
    help="Who asks, kept with what is done; else cli: and your user name.",
)
