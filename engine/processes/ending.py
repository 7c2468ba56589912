"""How a process is told to end: by a signal, or by its supervisor's death."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_EVERY = 1.0


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` at the first SIGTERM or SIGINT; a second one ends the process at once."""
    seen: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def stop_with_supervisor(stop: Callable[[], None]) -> None:
    """Calls `stop` when the process that started this one is gone (killed, it cannot say so)."""
    supervisor = os.getppid()

    def watch() -> None:
        tick = threading.Event()
        while os.getppid() == supervisor:
            tick.wait(_LOOK_EVERY)
        stop()

    threading.Thread(target=watch, name="pgbus-supervised", daemon=True).start()
