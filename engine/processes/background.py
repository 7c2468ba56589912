"""A worker and a dispatcher inside the host's own process, for development and small sites."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from pgbus.engine.processes.dispatcher import Dispatcher
from pgbus.engine.processes.worker import Worker

if TYPE_CHECKING:
    from pgbus.engine.bus import Pgbus


class Background:
    """What `bus.run_in_background()` returns; `stop` it, or use it as a context manager."""

    def __init__(self, bus: Pgbus) -> None:
        bus.check_schema()
        self._parts: tuple[Worker | Dispatcher, ...] = (Worker(bus), Dispatcher(bus))
        self._threads = [
            threading.Thread(
                target=part.run, name=f"pgbus-{type(part).__name__.lower()}", daemon=True
            )
            for part in self._parts
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take nothing more and wait for what runs, at most `shutdown_timeout`."""
        for part in self._parts:
            part.stop()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
