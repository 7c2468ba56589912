"""How a process is told to end: by a signal, or by its supervisor's death."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.processes.dispatcher import Dispatcher
    from pgbus.engine.processes.worker import Worker

_LOOK_EVERY = 1.0


def run_until_told(process: Worker | Dispatcher, supervisor: int | None) -> int:
    """Run the process until a signal, or the death of the supervisor with this pid, ends it."""
    stop_on_signals(process.stop)
    if supervisor is not None:
        _stop_with_supervisor(process.stop, supervisor)
    process.run()
    return 0


def stop_on_signals(
    stop: Callable[[], None], *, stop_at_once: Callable[[], None] = lambda: None
) -> None:
    """Call `stop` at the first SIGTERM or SIGINT; a second one ends the process at once.

    `stop_at_once` is called before that, in the signal handler.
    """
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    seen: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if seen:
            stop_at_once()
            os._exit(128 + number)
        seen.append(number)
        told.put(number)

    def wait() -> None:
        told.get()
        stop()

    # Not in the handler: what it interrupts may hold the very lock that an Event needs.
    threading.Thread(target=wait, name="pgbus-signals", daemon=True).start()
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def _stop_with_supervisor(stop: Callable[[], None], supervisor: int) -> None:
    """Call `stop` when the process with this pid, the parent, is gone: killed, it cannot say so."""

    def watch() -> None:
        while os.getppid() == supervisor:
            time.sleep(_LOOK_EVERY)  # noqa: TID251 (a daemon thread: the process's end is its stop)
        stop()

    threading.Thread(target=watch, name="pgbus-supervised", daemon=True).start()
