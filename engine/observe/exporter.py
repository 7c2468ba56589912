"""What a supervisor's children count, served together on a port of its own.

child ─► files of its own in a private folder ───┐
process that ended ─► added to one file for all ─┴─► sums, whenever Prometheus asks
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

_log = logging.getLogger("pgbus.supervisor")


class Exporter(Collector):
    """Serves the sums until it is closed; `variables` are for the environment of each child."""

    def __init__(self, port: int) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="pgbus-metrics-", ignore_cleanup_errors=True
        )
        self.variables = {"PROMETHEUS_MULTIPROC_DIR": self._folder.name}
        self._lock = threading.Lock()
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = start_http_server(port, registry=registry)

    def collect(self) -> Iterable[Metric]:
        """Return the sums over all children there were."""
        with self._lock:
            self._fold()
            collected: Iterable[Metric] = MultiProcessCollector(None, self._folder.name).collect()
            return collected

    def child_ended(self, pid: int) -> None:
        """Keep what the child counted, and give its files up."""
        with self._lock:
            self._fold(pid)

    def discard(self) -> None:
        """Remove the folder of a process that ends at once; safe in a signal handler."""
        self._folder.cleanup()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._folder.cleanup()

    def _fold(self, ended: int | None = None) -> None:
        """Add up what processes counted that are gone, those too that a body forked."""
        for file in list(Path(self._folder.name).glob("*_*.db")):
            kind, _, pid = file.stem.rpartition("_")
            if pid.isdecimal() and (int(pid) == ended or not _runs(int(pid))):
                if not kind.startswith("gauge"):
                    _add(file, to=file.with_name(f"{kind}_ended.db"))
                file.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, which has the number by now
        pass
    return True


def _add(file: Path, *, to: Path) -> None:
    try:
        with closing(MmapedDict(str(to))) as sums:
            for key, value, timestamp, _ in MmapedDict.read_all_values_from_file(str(file)):
                sums.write_value(key, sums.read_value(key)[0] + value, timestamp)
    except Exception:  # noqa: BLE001 (a process killed amid a write leaves anything; the others count on)
        _log.exception("What process %s counted last is lost.", file.stem)
