"""What is said of the host's metrics and traces when they fail: little, since each step would say it."""

from __future__ import annotations

import logging
import time

_log = logging.getLogger("pgbus.observe")

_EVERY_SECONDS = 60.0


class Complaint:
    """Logs the exception at hand, once a minute."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._due_at = 0.0

    def __call__(self) -> None:
        """Log it, unless it was said within the minute."""
        now = time.monotonic()
        if now >= self._due_at:
            self._due_at = now + _EVERY_SECONDS
            _log.exception(self._message)
