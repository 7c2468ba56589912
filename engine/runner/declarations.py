"""What this process's code declares for an attempt that the database knows by names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.definition import registry
from pgbus.engine.errors import StepNotDefined

if TYPE_CHECKING:
    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.step import Step


def declared(workflow_class: str, step_name: str) -> tuple[Definition, Step]:
    """Return the class's definition and its step, or raise `StepNotDefined`."""
    definition = registry.find(workflow_class)
    if definition is None:
        raise StepNotDefined(
            f"{workflow_class} is not loaded in this worker; import its module from "
            "the one that --app names (a class in a script's __main__ is found by no other "
            "process: move it into a module)."
        )
    return definition, definition.step(step_name)
