"""How the loaded classes fit the ongoing runs: the question before a deployment."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.storage.runs import IS_ONGOING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True)
class RunsOnStep:
    """How many ongoing runs of a class are on a step; both by their stored names."""

    workflow_class: str
    step_name: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfits:
    """Where the loaded classes and the ongoing runs do not fit.

    `not_loaded`: no loaded module declares the class. `undeclared`: the class does not declare the
    step. `moved`: the step is anonymous, and its name stood at another place among the named ones
    when these runs began. `removed`: every gravestone; the line of one with 0 runs can go.
    """

    not_loaded: tuple[RunsOnStep, ...]
    undeclared: tuple[RunsOnStep, ...]
    moved: tuple[RunsOnStep, ...]
    removed: tuple[RunsOnStep, ...]


#: A class and one of its steps, by their names.
_Place = tuple[str, str]

_ONGOING = f"""
SELECT workflow_class, definition_digest, current_step, count(*)
  FROM {{schema}}.workflows WHERE {IS_ONGOING} GROUP BY 1, 2, 3
"""

#: The step lists of the versions on which ongoing runs began.
_VERSIONS = f"""
SELECT d.workflow_class, d.digest, d.steps::text
  FROM {{schema}}.workflow_definitions d
 WHERE EXISTS (SELECT FROM {{schema}}.workflows w
                WHERE w.workflow_class = d.workflow_class AND w.{IS_ONGOING}
                  AND w.definition_digest = d.digest)
"""


def misfits(connection: Connection) -> Misfits:
    """Compare the loaded classes with the ongoing runs, and with the versions those began on."""
    of_versions: Counter[tuple[str, str, str]] = Counter()
    on_steps: Counter[_Place] = Counter()
    for name, digest, step, runs in connection.rows(_ONGOING):
        of_versions[name, digest, step] += runs
        on_steps[name, step] += runs
    moved: Counter[_Place] = Counter()
    for name, digest, text in connection.rows(_VERSIONS):
        for step in _moved(registry.find(name), _names(json.loads(text))):
            moved[name, step] += of_versions[name, digest, step]
    return Misfits(
        not_loaded=_counted(on_steps, (place for place in on_steps if not registry.find(place[0]))),
        undeclared=_counted(on_steps, (place for place in on_steps if _is_undeclared(*place))),
        moved=_counted(moved, moved),
        removed=_counted(on_steps, _gravestones()),
    )


def _counted(counts: Counter[_Place], places: Iterable[_Place]) -> tuple[RunsOnStep, ...]:
    return tuple(RunsOnStep(*place, counts[place]) for place in sorted(places))


def _is_undeclared(workflow_class: str, step: str) -> bool:
    definition = registry.find(workflow_class)
    return definition is not None and step not in _names(definition.step_list)


def _gravestones() -> list[_Place]:
    return [(one.name, step) for one in registry.definitions() for step in one.removed]


def _moved(definition: Definition | None, before: Sequence[str]) -> list[str]:
    """Return the anonymous steps that stand after other named ones than `before`.

    A named step that only one of the two versions has is no landmark.
    """
    if definition is None:
        return []
    now = _names(definition.step_list)
    anonymous = _anonymous(definition)
    landmarks = ({*before} & {*now}) - anonymous
    return [
        step
        for step in now
        if step in anonymous
        and step in before
        and landmarks & {*before[: before.index(step)]} != landmarks & {*now[: now.index(step)]}
    ]


def _anonymous(definition: Definition) -> set[str]:
    """Return the names that were given to the steps called `_`."""
    declared = (vars(cls).get("_own_steps", {}) for cls in definition.workflow_class.__mro__)
    return {name for steps in declared for name, step in steps.items() if step.anonymous}


def _names(steps: Iterable[dict[str, str]]) -> list[str]:
    return [step["name"] for step in steps]
