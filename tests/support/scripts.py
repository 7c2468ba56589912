"""A workflow whose steps do what the test says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgbus import Workflow, step

if TYPE_CHECKING:
    from collections.abc import Callable

_script: dict[str, Callable[[Any], object]] = {}


class Scripted(Workflow):
    """`first`, then `second`: each runs what the test gave for it."""

    @step
    def first(self):
        return play(self)

    @step
    def second(self):
        return play(self)


class Transactional(Workflow):
    """`first` commits with the session's writes; then `second`."""

    @step(transactional=True)
    def first(self):
        return play(self)

    @step
    def second(self):
        return play(self)


def play(workflow: Workflow) -> object:
    """Runs what the test gave for the step that runs; nothing when it gave nothing."""
    body = _script.get(workflow.step_name)
    return body and body(workflow)


def script(**bodies: Callable[[Any], object]) -> None:
    """Gives the steps their bodies, instead of those they had."""
    _script.clear()
    _script.update(bodies)
