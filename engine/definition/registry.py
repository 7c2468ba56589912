"""The loaded workflow classes by their dotted names; a name from data is only looked up here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgbus.engine.definition.definition import Definition

_definitions: dict[str, Definition] = {}


def register(definition: Definition) -> None:
    """Make a definition known; a class created again under the same name takes its place."""
    _definitions[definition.name] = definition


def find(name: str) -> Definition | None:
    """Return the definition of this dotted name, `None` when no loaded module declares it."""
    return _definitions.get(name)


def definitions() -> list[Definition]:
    """Return every loaded definition, by name."""
    return sorted(_definitions.values(), key=lambda definition: definition.name)
