"""What a supervisor's children count, served together on a port of its own.

child ─► a file of its own in a private folder ─┐
child that ended ─► added to one file for all ──┴─► sums, whenever Prometheus asks
"""

from __future__ import annotations

import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

_log = logging.getLogger("pgbus.supervisor")

_SUMMED = ("counter", "histogram", "summary")


class Exporter(Collector):
    """Serves the sums until it is closed; `variables` are for the environment of each child."""

    def __init__(self, port: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pgbus-metrics-")
        self.variables = {"PROMETHEUS_MULTIPROC_DIR": self._folder.name}
        self._lock = threading.Lock()
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = start_http_server(port, registry=registry)

    def collect(self) -> Iterable[Metric]:
        """Return the sums over all children there were."""
        with self._lock:
            collected: Iterable[Metric] = MultiProcessCollector(None, self._folder.name).collect()
            return collected

    def child_ended(self, pid: int) -> None:
        """Keep what the child counted, and give its files up."""
        with self._lock:
            mark_process_dead(pid, self._folder.name)
            for kind in _SUMMED:
                file = Path(self._folder.name, f"{kind}_{pid}.db")
                if file.exists():
                    _add(file, to=file.with_name(f"{kind}_ended.db"))
                    file.unlink()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._folder.cleanup()


def _add(file: Path, *, to: Path) -> None:
    sums = MmapedDict(str(to))
    try:
        for key, value, timestamp, _ in MmapedDict.read_all_values_from_file(str(file)):
            sums.write_value(key, sums.read_value(key)[0] + value, timestamp)
    except RuntimeError:  # the child was killed amid a write
        _log.exception("What process %s counted last is lost.", file.stem)
    finally:
        sums.close()
