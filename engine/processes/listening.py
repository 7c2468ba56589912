"""The LISTEN connection of a worker, and the one wait that everything can interrupt."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from concurrent import futures
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy.engine import make_url

from pgbus.engine.storage import messages

if TYPE_CHECKING:
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Database

_log = logging.getLogger("pgbus.worker")

#: Seconds within which a notification to oneself must arrive, else LISTEN does not work here.
_ECHO_WITHIN = 5.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
#: Seconds that closing leaves a connection that is being made, before it is abandoned.
_LAST_WAIT = 1.0
#: A half-open connection is found in half a minute; the URL's own values win.
_OPTIONS: dict[str, Any] = {
    "application_name": "pgbus listen",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


class Listening:
    """Waits for notifications of one bus; `wake` ends the wait from any thread.

    Without a working LISTEN (the connection is lost, or a transaction pooler swallows it)
    the wait simply lasts its time: callers poll. `works` tells. Connecting is a thread's
    work, so that a server that does not answer keeps nobody from polling.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        url = make_url(settings.listen_url or settings.database_url)
        self._conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._options = {name: _OPTIONS[name] for name in _OPTIONS.keys() - url.query.keys()}
        self._database = database
        self._channel = settings.schema
        self._connection: psycopg.Connection[Any] | None = None
        self._connecting: Future[psycopg.Connection[Any]] | None = None
        self._pause = 0.0
        self._try_again_at = 0.0
        self._echo = f"echo {os.urandom(8).hex()}"
        self._echo_due: float | None = None
        self._said_broken = False
        self.works = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.settimeout(0)
        self._wake_write.settimeout(0)

    def wake(self) -> None:
        """End the present or the next wait; safe in a signal handler."""
        with contextlib.suppress(OSError):  # full of wake-ups already, or closed
            self._wake_write.send(b".")

    def wait(self, seconds: float) -> set[str]:
        """Wait at most this long, and return the queues that were notified of."""
        self._keep_connected()
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._connection is not None:
            poll.register(self._connection.fileno(), select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        self._drain_wake_ups()
        return self._notified()

    def close(self) -> None:
        """Close the connection."""
        if self._connecting is not None:
            futures.wait([self._connecting], timeout=_LAST_WAIT)
            self._connecting.add_done_callback(_close_result)
        self._drop()
        self._wake_read.close()
        self._wake_write.close()

    def _drain_wake_ups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_read.recv(4096):
                pass

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
            self._heard()
        elif self._echo_due is not None and time.monotonic() > self._echo_due:
            self._heard_nothing()
        return payloads

    def _keep_connected(self) -> None:
        if self._connecting is not None:
            if self._connecting.done():
                self._adopt(self._connecting)
        elif self._connection is None and time.monotonic() >= self._try_again_at:
            connecting: Future[psycopg.Connection[Any]] = Future()
            self._connecting = connecting
            threading.Thread(
                target=self._connect_for, args=[connecting], name="pgbus-listen", daemon=True
            ).start()

    def _adopt(self, connecting: Future[psycopg.Connection[Any]]) -> None:
        self._connecting = None
        if error := connecting.exception():
            self._lost(error)
            return
        self._connection = connecting.result()
        self._echo_due = time.monotonic() + _ECHO_WITHIN
        self._pause = 0.0

    def _connect_for(self, connecting: Future[psycopg.Connection[Any]]) -> None:
        try:
            connecting.set_result(self._connect())
        except BaseException as error:  # noqa: BLE001 (the taking thread asks for it)
            connecting.set_exception(error)
        self.wake()

    def _connect(self) -> psycopg.Connection[Any]:
        """Return a connection that listens; another has sent what proves that it hears.

        A session's own notification comes back even through a transaction pooler.
        """
        connection = psycopg.connect(self._conninfo, autocommit=True, **self._options)
        try:
            connection.execute(f'LISTEN "{self._channel}"')
            with self._database.autocommit() as other:
                messages.notify(other, self._channel, self._echo)
        except BaseException:
            connection.close()
            raise
        return connection

    def _lost(self, error: BaseException) -> None:
        self._drop()
        self._echo_due = None
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._try_again_at = time.monotonic() + self._pause
        if not self._said_broken:
            _log.warning("LISTEN does not work (%s); polling until it does.", error)
        self._said_broken = True
        self.works = False

    def _heard(self) -> None:
        self._echo_due = None
        if not self.works:
            _log.info("LISTEN works on channel %s.", self._channel)
        self._said_broken = False
        self.works = True

    def _heard_nothing(self) -> None:
        self._echo_due = None
        if not self._said_broken:
            _log.warning(
                "Notifications do not arrive (a transaction pooler?): work is found by polling. "
                "Set listen_url to a direct connection."
            )
        self._said_broken = True
        self.works = False

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _close_result(connecting: Future[psycopg.Connection[Any]]) -> None:
    if connecting.exception() is None:
        connecting.result().close()
