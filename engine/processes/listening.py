"""The LISTEN connection of a worker, and the one wait that everything can interrupt."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy.engine import make_url

if TYPE_CHECKING:
    from pgbus.engine.settings import Settings

_log = logging.getLogger("pgbus.worker")

#: Seconds within which a notification to oneself must arrive, else LISTEN does not work here.
_ECHO_WITHIN = 5.0
_LONGEST_PAUSE = 5.0
#: A half-open connection is found in half a minute.
_KEEPALIVES: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


class Listening:
    """Waits for notifications of one bus; `wake` ends the wait from any thread.

    Without a working LISTEN (the connection is lost, or a transaction pooler swallows it)
    the wait simply lasts its time: callers poll. `works` tells.
    """

    def __init__(self, settings: Settings) -> None:
        url = make_url(settings.listen_url or settings.database_url)
        self._conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._channel = settings.schema
        self._connection: psycopg.Connection[Any] | None = None
        self._pause = 0.0
        self._try_again_at = 0.0
        self._echo = f"echo {os.urandom(8).hex()}"
        self._echo_due: float | None = None
        self.works = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    def wake(self) -> None:
        """Ends the present or the next wait; safe in a signal handler."""
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._wake_write, b".")

    def wait(self, seconds: float) -> set[str]:
        """Waits at most this long; returns the queues that were notified of."""
        self._ensure_connected()
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._connection is not None:
            poll.register(self._connection.fileno(), select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        self._drain_wake_ups()
        return self._notified()

    def close(self) -> None:
        """Closes the connection."""
        self._drop()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _drain_wake_ups(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        while poll.poll(0):
            os.read(self._wake_read, 4096)

    def _notified(self) -> set[str]:
        if self._connection is None:
            return set()
        try:
            payloads = {notify.payload for notify in self._connection.notifies(timeout=0)}
        except psycopg.Error as error:
            self._lost(error)
            return set()
        if self._echo in payloads:
            payloads.discard(self._echo)
            self._echo_due = None
            self._set_works(works=True)
        elif self._echo_due is not None and time.monotonic() > self._echo_due:
            self._echo_due = None
            self._set_works(works=False)
        return payloads

    def _ensure_connected(self) -> None:
        if self._connection is not None or time.monotonic() < self._try_again_at:
            return
        try:
            connection = psycopg.connect(
                self._conninfo, autocommit=True, application_name="pgbus listen",
                connect_timeout=5, **_KEEPALIVES,
            )  # fmt: skip
            self._connection = connection
            connection.execute(f'LISTEN "{self._channel}"')
            connection.execute("SELECT pg_notify(%s, %s)", [self._channel, self._echo])
        except psycopg.Error as error:
            self._lost(error)
            return
        self._echo_due = time.monotonic() + _ECHO_WITHIN
        self._pause = 0.0

    def _lost(self, error: psycopg.Error) -> None:
        self._drop()
        self._pause = min(max(self._pause * 2, 0.1), _LONGEST_PAUSE)
        self._try_again_at = time.monotonic() + self._pause
        if self.works:
            _log.warning("LISTEN is gone (%s); polling until it is back.", error)
        self.works = False

    def _set_works(self, *, works: bool) -> None:
        if works and not self.works:
            _log.info("LISTEN works on channel %s.", self._channel)
        if not works:
            _log.warning(
                "Notifications do not arrive (a transaction pooler?): work is found by polling. "
                "Set listen_url to a direct connection."
            )
        self.works = works

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
