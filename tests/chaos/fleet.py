"""The processes of the chaos test, each started anew when it has ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.app import SETTINGS
from support.waiting import eventually
from support.workers import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CLOCK = Path(__file__).parent / "clock"

WORKERS = ("worker", "other worker", "worker with a wrong clock")
CLOCK_AHEAD = 120

#: In order; or before it knew how, while it was starting.
_TOLD = {0, -signal.SIGTERM}


class Fleet:
    """Workers, one of which believes it is two minutes later, a dispatcher and the customers."""

    def __init__(self, url: str, *, seed: int, pace: float) -> None:
        self._url = url
        worker = self._pgbus("worker")
        wrong_clock = self._pgbus(
            "worker", variables={"CLOCK_AHEAD": str(CLOCK_AHEAD)}, path=[_CLOCK]
        )
        customers = self._module(
            ["chaos.customers"], variables={"CHAOS_SEED": str(seed), "CHAOS_PACE": str(pace)}
        )
        self._makers = {
            **dict(zip(WORKERS, (worker, worker, wrong_clock), strict=True)),
            "dispatcher": self._pgbus("dispatcher"),
            "customers": customers,
        }
        self.crew = {name: make() for name, make in self._makers.items()}
        #: Exit statuses that are all right, of those that were told or made to end.
        self._expected: dict[int, set[int]] = {}
        self._ended: list[tuple[str, Child]] = []

    def kill(self, name: str) -> None:
        child = self.crew[name]
        self._expected.setdefault(child.pid, set()).add(-signal.SIGKILL)
        child.kill()

    def stop(self, name: str) -> None:
        """Tell it to stop; it ends in its own time."""
        child = self.crew[name]
        self._expected.setdefault(child.pid, set()).update(_TOLD)
        child.signal(signal.SIGTERM)

    def tend(self) -> None:
        """Start anew what has ended; fail when it ended by itself, or not as it was told."""
        for name, child in self.crew.items():
            if not child.alive:
                self._bury(name, child)
                self.crew[name] = self._makers[name]()

    def finish_business(self, within: float) -> None:
        """Have the customers do what is left, and return when they have."""
        customers = self.crew["customers"]
        self.stop("customers")
        eventually(lambda: not customers.alive, within=within)
        del self.crew["customers"]
        self._bury("customers", customers)

    def end(self) -> None:
        for _, child in self.logged():
            child.end()

    def complaints(self) -> list[str]:
        """What was logged as an error."""
        return [
            f"{name} (pid {child.pid}) logged: {line}"
            for name, child in self.logged()
            for line in child.log.splitlines()
            if " ERROR " in line or "A bug in pgbus" in line
        ]

    def logged(self) -> list[tuple[str, Child]]:
        """Every process there was, by what it is."""
        return [*self._ended, *self.crew.items()]

    def _bury(self, name: str, child: Child) -> None:
        self._ended.append((name, child))
        status = child.wait()
        assert status in self._expected.get(child.pid, ()), (
            f"{name} (pid {child.pid}) ended with status {status}:\n{child.log[-3000:]}"
        )

    def _pgbus(
        self, kind: str, *, variables: dict[str, str] | None = None, path: Sequence[Path] = ()
    ) -> Callable[[], Child]:
        command = ["pgbus.engine.cli", kind, "--app", "chaos.app:make_bus"]
        return self._module(command, variables=variables, path=path)

    def _module(
        self,
        module: list[str],
        *,
        variables: dict[str, str] | None = None,
        path: Sequence[Path] = (),
    ) -> Callable[[], Child]:
        return lambda: Child(self._url, module, SETTINGS, variables=variables, path=path)
