"""One task's turn: what it works with, when it is over, and how it survives a run it cannot repair."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgbus.engine.storage import sweeping
from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Worker

_log = logging.getLogger("pgbus.sweep")

#: Seconds that one task may take at a time: the others wait for it.
MAX_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Round:
    """A task's turn; `worker` is who it acts as, `stopping` tells that the process is to end."""

    services: Services
    worker: Worker
    stopping: Callable[[], bool]
    seconds: float = MAX_SECONDS
    _began: float = field(default_factory=time.monotonic)

    def is_over(self) -> bool:
        """Return whether to begin nothing more in it."""
        return self.stopping() or time.monotonic() >= self._began + self.seconds

    def is_half_over(self) -> bool:
        """Return whether to look for no more: the rest of the time is for what was found."""
        return self.stopping() or time.monotonic() >= self._began + self.seconds / 2

    def repair(self, workflow_id: str, act: Callable[[], bool]) -> bool:
        """Return whether `act` did something about the run; one that another has locked is skipped.

        A lock is not waited for: a host that keeps many runs locked would take up every round.
        """
        return self.attempt(f"run {workflow_id}", lambda: self._is_free(workflow_id) and act())

    def attempt(self, what: str, act: Callable[[], bool]) -> bool:
        """Return whether `act` did something; what it raises is logged and stops nothing else.

        An outage passes: it is no fault of the one, and the others would fail as well.
        """
        if self.is_over():
            return False
        try:
            return act()
        except BaseException as error:  # a host's own code is asked, too, whatever it raises
            if is_passing(error):
                raise
            _log.exception("The sweep cannot repair %s; it leaves it and goes on.", what)
            return False

    def _is_free(self, workflow_id: str) -> bool:
        with self.services.database.autocommit() as connection:
            free = sweeping.is_free(connection, workflow_id)
        if not free:
            _log.warning(
                "The sweep cannot repair run %s: another transaction has it locked. It tries "
                "again next time.",
                workflow_id,
            )
        return free
