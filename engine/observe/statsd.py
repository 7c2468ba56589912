"""Metrics as StatsD datagrams with DogStatsD's tags; durations are timers in milliseconds."""

from __future__ import annotations

import re
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbus.engine.settings import Settings

#: What would end a tag or the datagram's line.
_BREAKING = re.compile(r"[,|\s]")

#: After a failure, samples are dropped for so long: to look a host up may take seconds each time.
_PAUSE_SECONDS = 10.0


class StatsD:
    """A backend that sends a datagram for each value, and waits for nobody."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._open_at = 0.0

    def count(self, name: str, labels: Mapping[str, str]) -> None:
        """Add 1 to a counter."""
        self._send(f"{name}:1|c", labels)

    def observe(self, name: str, seconds: float, labels: Mapping[str, str]) -> None:
        """Add a duration to a timer, whose name tells its unit."""
        self._send(f"{name.removesuffix('_seconds')}_ms:{seconds * 1000:.3f}|ms", labels)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Set a gauge."""
        self._send(f"{name}:{value}|g", labels)

    def _send(self, sample: str, labels: Mapping[str, str]) -> None:
        used = self._socket or self._opened()
        if used is None:
            return
        tags = ",".join(f"{label}:{_BREAKING.sub('_', value)}" for label, value in labels.items())
        try:
            used.send(f"{sample}|#{tags}".encode())
        except BlockingIOError:  # its buffer is full just now
            raise
        except OSError:
            # The next one looks the host up anew: it may have moved.
            self._open_at = time.monotonic() + _PAUSE_SECONDS
            self.close()
            raise

    def _opened(self) -> socket.socket | None:
        """Return a socket; None soon after a failure, and while another thread looks the host up."""
        if time.monotonic() < self._open_at or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._socket is None:
                self._socket = self._connected()
        except OSError:
            self._open_at = time.monotonic() + _PAUSE_SECONDS
            raise
        else:
            return self._socket
        finally:
            self._lock.release()

    def _connected(self) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(
            *self._address, type=socket.SOCK_DGRAM
        )[0]
        connected = socket.socket(family, kind, protocol)
        connected.settimeout(0)
        connected.connect(address)
        return connected

    def close(self) -> None:
        """Give the socket back; the next sample opens another."""
        with self._lock:
            used, self._socket = self._socket, None
        if used is not None:
            used.close()


def backend(settings: Settings) -> StatsD:
    """Return a backend that sends where the settings say."""
    return StatsD(settings.statsd_host, settings.statsd_port)
