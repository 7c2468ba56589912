"""A process's row in the database: who it is, and that it lives."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any

from pgbus.engine.storage import processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.storage.database import Connection, Database

_log = logging.getLogger("pgbus.processes")

#: Seconds between two beats.
BEAT_EVERY = 5.0


class Presence:
    """One process as others see it; `details` gives what it does just now."""

    def __init__(
        self, kind: str, revision: str | None, details: Callable[[], dict[str, Any]]
    ) -> None:
        self.process_id = str(uuid.uuid4())
        self.host = socket.gethostname()
        self.kind = kind
        self._revision = revision
        self._details = details
        self._beat_at: float | None = None

    @property
    def name(self) -> str:
        """`hostname:pid`."""
        return f"{self.host}:{os.getpid()}"

    def due_in(self) -> float:
        """Return the seconds until the next beat is due; 0 or less: it is."""
        return 0.0 if self._beat_at is None else self._beat_at + BEAT_EVERY - time.monotonic()

    def parameters(self) -> dict[str, object]:
        """Return the parameters of `processes.BEAT` as of now; the caller is about to run it."""
        self._beat_at = time.monotonic()
        return {
            "process_id": self.process_id,
            "kind": self.kind,
            "host": self.host,
            "pid": os.getpid(),
            "process_revision": self._revision,
            "process_details": json.dumps({**self._details(), "clock": time.time()}),
        }

    def beat_when_due(self, connection: Connection) -> None:
        """Beat if it is time to."""
        if self.due_in() <= 0:
            processes.beat(connection, **self.parameters())

    def leave_if_possible(self, database: Database) -> None:
        """Take the row away: the process ends in order. Where that fails, the row is reaped."""
        try:
            with database.autocommit() as connection:
                processes.leave(connection, self.process_id)
        except Exception as error:  # noqa: BLE001 (it ends all the same)
            _log.warning("The row of the %s stays until it is reaped: %s", self.kind, error)
