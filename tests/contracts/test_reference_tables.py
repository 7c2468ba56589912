"""Tables and trees that list what the code has."""

import re
from dataclasses import MISSING, fields

import pytest
from contracts.documents import GUIDE, table_after
from contracts.tables import transition_tables, written_tables

from pgbus.engine import errors
from pgbus.engine.observe import emission
from pgbus.engine.settings import Settings

SETTINGS = {
    name.strip("`"): cell.strip("`")
    for name, cell, _ in table_after(GUIDE / "workers.md", "## Settings")
}


def test_the_guides_transitions_are_those_of_the_engine():
    assert written_tables() == transition_tables(), "run .venv/bin/python tests/contracts/tables.py"


def test_the_guide_lists_the_settings_in_their_order():
    assert list(SETTINGS) == [field.name for field in fields(Settings)]


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_a_settings_default_is_the_one_in_the_guide(field):
    told = SETTINGS[field.name]
    if field.default is MISSING:
        assert told == "required"
    elif field.default in (None, ()):
        assert told == "none"
    else:
        environ = {"PGBUS_DATABASE_URL": "postgresql://", f"PGBUS_{field.name.upper()}": told}
        assert getattr(Settings.load(environ), field.name) == field.default


def test_the_tree_of_errors_is_the_one_of_their_classes():
    tree = {}
    path = []
    for line in errors.__doc__.splitlines():
        names = re.match(r"([│ ├└─]*)(\w+(?:, \w+)*)(?: {2,}|$)", line)
        if line.startswith(("│", "├", "└")) and names:
            depth = len(names[1]) // 4
            path[depth - 1 :] = [names[2].split(", ")[-1]]
            parent = path[depth - 2] if depth > 1 else "PgbusError"
            tree |= dict.fromkeys(names[2].split(", "), parent)
    classes = {
        name: value.__base__.__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PgbusError)
    }
    assert tree | {"PgbusError": "Exception"} == classes


def test_the_guide_lists_the_signals_and_the_fields_of_their_events():
    told = {
        name.strip("`"): re.findall(r"`(\w+)`", members)
        for name, members in table_after(GUIDE / "operating.md", "## Events")
    }
    emitted = {
        signal.name: [field.name for field in fields(payload)]
        for payload, signal in emission._SIGNALS.items()
    }
    assert told == emitted
