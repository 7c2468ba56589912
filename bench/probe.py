"""How a body tells the harness, in another process, the moment at which it ran.

One machine, so one wall clock: the sender stamps `time.time()`, a datagram carries it.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Self

VARIABLE = "BENCH_PROBE"
PATIENCE_SECONDS = 60


def reached() -> None:
    """Report that this line runs now."""
    moment = repr(time.time()).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(moment, os.environ[VARIABLE])


class Probe:
    """The receiving end; `path` goes to the other process as `BENCH_PROBE`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pgbus-probe-")
        self.path = str(Path(self._folder.name) / "socket")
        self._receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._receiver.bind(self.path)
        self._receiver.settimeout(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.close()
        self._folder.cleanup()

    def next(self) -> float:
        """Return the `time.time()` of the next report, waiting for it up to a minute."""
        return float(self._receiver.recv(64))
