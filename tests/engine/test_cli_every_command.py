"""What a script can rely on of every command: JSON, who asks, and the exit codes."""

from __future__ import annotations

import json

import click
import pytest

from pgbus.engine.cli import main

#: They run until they are ended, and print no answer.
SERVERS = {"start", "worker", "dispatcher", "dashboard", "mcp"}


def commands(group=main, *path):
    """Every command by the words that call it."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        elif name not in SERVERS:
            yield (*path, name), command


EVERY = pytest.mark.parametrize(
    ("path", "command"),
    list(commands()),
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
VALUES = {"workflow_id": "01900000-0000-7000-8000-000000000000", "at": "2030-01-31T09:00Z"}


def words(path, command):
    """A call with all that the command cannot do without."""
    options = {word for parameter in command.params for word in parameter.opts}
    for flag in ("--all", "--yes", "--check", "--json"):
        if flag in options:
            path += (flag,)
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and parameter.required:
            number = isinstance(parameter.type, click.IntRange)
            path += ("1" if number else VALUES.get(parameter.name, "some"),)
    return (*path, "--app", "shop:make")


@EVERY
def test_it_prints_json_and_a_verb_takes_who_asks_and_why(path, command):
    options = {word: parameter for parameter in command.params for word in parameter.opts}
    assert "--json" in options
    assert ("--reason" in options) == ("--actor" in options)
    if "--actor" in options:
        assert options["--actor"].default().startswith("cli:")


@EVERY
def test_wrong_usage_is_2_a_schema_that_is_not_there_1_and_a_database_that_is_away_3(
    pgbus, empty_database, monkeypatch, tmp_path, path, command
):
    def error(code, *more):
        return json.loads(pgbus(*words(path, command), *more, expect=code).stderr)["error"]

    assert "No such option" in error(2, "--nothing")
    monkeypatch.setenv("PGBUS_DATABASE_URL", f"postgresql:///shop?host={tmp_path}")
    assert error(3).startswith("PostgreSQL does not answer: ")
    monkeypatch.setenv("PGBUS_DATABASE_URL", empty_database.url)
    if path in (("migrate",), ("doctor",)):  # they are there to tell
        pgbus(*words(path, command), expect=1)
    else:
        assert "pgbus migrate" in error(1)
