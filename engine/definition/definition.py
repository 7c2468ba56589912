"""A class's definition: its ordered steps, its guards and policies, and the digest of a version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pgbus.engine.definition.policy import Policy, nearest
from pgbus.engine.errors import DefinitionError, StepNotDefined
from pgbus.engine.subjects import SubjectReference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbus.engine.definition.guard import Guard
    from pgbus.engine.definition.signal import TypedSignal
    from pgbus.engine.definition.step import Step
    from pgbus.engine.definition.workflow import Workflow


@dataclass(frozen=True)
class Definition:
    """What a workflow class declares; `name` is its dotted name, `module.Qualname`.

    `subject_class` is `Order` of `Workflow[Order]`, `None` for an untyped class.
    `steps` are in order, gravestones among them; `cancel_guards` and `policies` (those of the
    class) have the bases' first. `signal_types` are those its steps wait for, by name.
    """

    name: str
    workflow_class: type[Workflow[Any]]
    subject_class: type | None
    steps: tuple[Step, ...]
    cancel_guards: tuple[Guard, ...]
    policies: tuple[Policy, ...]
    signal_types: Mapping[str, TypedSignal[Any]]

    def step(self, name: str) -> Step:
        """Return the step of this name, a gravestone too; `StepNotDefined` when there is none."""
        return self.steps[self._place(name)]

    def step_after(self, name: str) -> Step | None:
        """Return the next step in order, `None` after the last.

        It may be a gravestone: the runner moves a run past those, and says so on the trail.
        """
        following = self._place(name) + 1
        return self.steps[following] if following < len(self.steps) else None

    def guarded(self, step: Step) -> bool:
        """Tell whether something must be asked, awaited or skipped before this step's body runs."""
        asked = bool(self.cancel_guards) or step.skip_if is not None
        return asked or step.wait_for is not None or step.removed

    def policy_for(self, step: Step, error: BaseException) -> Policy | None:
        """Return the policy that decides about this error in this step, `None` for none.

        The step's own go before the class's. Among each, the one that names the class nearest
        the error's wins, of several the last declared (a subclass's after its base's), and
        blanket ones come last.
        """
        return nearest(step.policies, error) or nearest(self.policies, error)

    def check_startable(self) -> None:
        """Raise `DefinitionError` for a class without steps, which only serves as a base."""
        if not self.steps:
            raise DefinitionError(f"{self.name} declares no step; start a subclass that does")

    def check_subject(self, subject: object) -> None:
        """Raise `TypeError` for a record of another class than the workflow's type names."""
        expected = self.subject_class
        if expected is not None and not isinstance(subject, (expected, SubjectReference)):
            raise TypeError(
                f"{self.name} is about {expected.__qualname__}, and {subject!r} is a "
                f"{type(subject).__qualname__}; start it with the record"
            )

    @property
    def removed(self) -> tuple[str, ...]:
        """The names of the gravestones."""
        return tuple(step.name for step in self.steps if step.removed)

    @cached_property
    def step_list(self) -> list[dict[str, Any]]:
        """The steps as a JSON-able list; the order counts."""
        return [step.listing() for step in self.steps]

    @cached_property
    def digest(self) -> str:
        """The SHA-256, in hex, of the step list's canonical JSON: it names this version."""
        canonical = json.dumps(self.step_list, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @cached_property
    def _places(self) -> dict[str, int]:
        return {step.name: place for place, step in enumerate(self.steps)}

    def _place(self, name: str) -> int:
        try:
            return self._places[name]
        except KeyError:
            raise StepNotDefined(
                f"{self.name} declares no step {name!r} (it has {', '.join(self._places)}); "
                "declare it, or leave a removed_step() in its place"
            ) from None
