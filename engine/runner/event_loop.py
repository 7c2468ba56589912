"""The event loop on which a worker runs `async def` bodies, guards excepted."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class EventLoop:
    """One loop in a thread of its own, started when the first coroutine arrives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine in the caller's context and return or raise what it does."""
        loop = self._started()
        ended: list[asyncio.Task[Any]] = []
        done = threading.Event()

        def begin() -> None:
            task = loop.create_task(coroutine, context=context)
            ended.append(task)
            task.add_done_callback(lambda _task: done.set())

        context = contextvars.copy_context()
        loop.call_soon_threadsafe(begin)
        done.wait()
        return ended[0].result()

    def close(self) -> None:
        """Stop the loop; a coroutine that still runs is abandoned with its worker."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_until_stopped,
                    args=[self._loop],
                    name="pgbus-event-loop",
                    daemon=True,
                ).start()
            return self._loop


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            # asyncio lets these through as well as telling the task's caller: it concerns that one only.
            continue
        break
    loop.close()
