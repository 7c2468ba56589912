"""The verbs that end a step's body on the spot, as the exceptions they travel in.

They derive from `BaseException`, so that `except Exception` in a body does not swallow them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class StepVerb(BaseException):
    """A body's decision about its step; `reason` goes on the audit trail."""

    wait = timedelta()

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        # A lazy translation, say: what is stored must be text.
        self.reason = None if reason is None else str(reason)


class CancelRun(StepVerb):
    """The run is cancelled."""


class PauseRun(StepVerb):
    """The step completes and the run pauses."""


class FinishRun(StepVerb):
    """The step completes and the run finishes now."""


class SkipStep(StepVerb):
    """The step is skipped and the run moves on."""


class ReattemptStep(StepVerb):
    """The attempt ends without an error; a new one is due after `wait`."""

    def __init__(self, wait: timedelta, reason: str | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


#: Which of several verbs wins: the one that leaves the least to happen by itself.
_PRECEDENCE = (CancelRun, PauseRun, FinishRun, SkipStep, ReattemptStep)


def find_verb(error: BaseException) -> StepVerb | None:
    """Return the verb that `error` is or, raised in a task group, holds; else `None`.

    Of several in one group, cancel goes before pause, finish, skip and reattempt; of one kind,
    the first in the group.
    """
    verbs = list(_verbs(error))
    return min(verbs, key=lambda verb: _PRECEDENCE.index(type(verb)), default=None)


def _verbs(error: BaseException) -> Iterator[StepVerb]:
    if isinstance(error, StepVerb):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _verbs(member)
