"""The command line of pgbus, as the documents may show it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from unittest import mock

import click

from pgbus.engine.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator


def taken(words: list[str]) -> tuple[str, ...]:
    """Let click parse what follows `pgbus`; return the path of the command."""
    command: click.Command = main
    path: list[str] = []
    with mock.patch.dict(os.environ, {"PGBUS_APP": "shop.app:bus"}):
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name, *words = words
            path.append(name)
            found = command.get_command(click.Context(command), name)
            assert found, f"there is no pgbus {' '.join(path)}"
            command = found
        command.make_context(path[-1], words)
    return tuple(path)


def paths(group: click.Group = main, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each command that is no group."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from paths(command, (*above, name))
        else:
            yield (*above, name)
