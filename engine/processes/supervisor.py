"""The supervisor: keeps n workers and a dispatcher running, each a process of its own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.observe.emission import ProcessReplaced
from pgbus.engine.processes.ending import stop_on_signals
from pgbus.engine.processes.presence import Presence
from pgbus.engine.processes.readiness import wait_until_ready

if TYPE_CHECKING:
    from pgbus.engine.bus import Pgbus
    from pgbus.engine.observe.exporter import Exporter
    from pgbus.engine.settings import Settings

_log = logging.getLogger("pgbus.supervisor")

_LOOK_EVERY = 0.2
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
#: A child that lived this long starts again without a pause.
_LIVED = 30.0
#: Seconds beyond `shutdown_timeout` before a child that does not end is killed.
_GRACE = 5.0


@dataclass(slots=True)
class _Child:
    """One process that is kept running."""

    kind: str
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    pause: float = _FIRST_PAUSE


class Supervisor:
    """Starts the children, starts those again that die, and takes them along when it stops."""

    def __init__(self, bus: Pgbus, app: str) -> None:
        self._bus = bus
        self._app = app
        self._stopping = threading.Event()
        self._children = [_Child("worker") for _ in range(bus.settings.workers)]
        self._children.append(_Child("dispatcher"))
        self._exporter: Exporter | None = None
        self._presence = Presence("supervisor", bus.settings.app_revision, self._details)

    def run(self) -> None:
        """Supervise until `stop`; then end the children in order."""
        wait_until_ready(self._bus, stop=self._stopping)
        self._exporter = _exporter(self._bus.settings)
        try:
            while not self._stopping.is_set():
                for child in self._children:
                    self._look_after(child)
                self._beat()
                self._stopping.wait(_LOOK_EVERY)
        finally:
            self._end()

    def stop(self) -> None:
        """Let `run` end the children and return."""
        self._stopping.set()

    def kill(self) -> None:
        """Kill the children, and leave no files; safe in a signal handler."""
        for child in self._children:
            if child.process is not None:
                child.process.kill()
        if self._exporter is not None:
            self._exporter.discard()

    def _look_after(self, child: _Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if now >= child.start_at:
                self._start(child, now)
            return
        status = child.process.poll()
        if status is None:
            return
        lived = now - child.started_at
        child.pause = _FIRST_PAUSE if lived > _LIVED else min(child.pause * 2, _LONGEST_PAUSE)
        child.start_at = now if lived > _LIVED else now + child.pause
        _log.warning(
            "The %s with pid %d ended (%s); another starts in %.1f s.",
            child.kind,
            child.process.pid,
            _words(status),
            child.start_at - now,
        )
        ended, child.process = child.process, None
        if self._exporter is not None:
            self._exporter.child_ended(ended.pid)
        replaced = ProcessReplaced(child.kind, ended.pid, _words(status), lived)
        self._bus.services.events.emit(replaced)

    def _start(self, child: _Child, now: float) -> None:
        command = [sys.executable, "-m", "pgbus.engine.cli", child.kind, "--app", self._app]
        # A session of its own: Ctrl-C reaches the supervisor alone, which passes one signal on.
        child.process = subprocess.Popen(  # noqa: S603 (our own command line)
            [*command, "--supervisor", str(os.getpid())],
            env=os.environ | (self._exporter.variables if self._exporter else {}),
            start_new_session=True,
        )
        child.started_at = now
        _log.info("The %s runs with pid %d.", child.kind, child.process.pid)

    def _end(self) -> None:
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._bus.settings.shutdown_timeout.total_seconds() + _GRACE
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.warning("Process %d does not end; it is killed.", process.pid)
                process.kill()
                process.wait()
        if self._exporter is not None:
            self._exporter.close()
        self._presence.leave_if_possible(self._bus.services.database)

    def _beat(self) -> None:
        if self._presence.due_in() > 0:
            return
        try:
            with self._bus.services.database.autocommit() as connection:
                self._presence.beat_when_due(connection)
        except Exception as error:  # noqa: BLE001 (children are looked after whatever the database does)
            _log.debug("The supervisor's heartbeat failed: %s", error)

    def _details(self) -> dict[str, object]:
        return {
            "children": [
                {"kind": child.kind, "pid": child.process.pid}
                for child in self._children
                if child.process is not None
            ]
        }


def supervise(bus: Pgbus, app: str) -> int:
    """Run workers and a dispatcher until SIGTERM or SIGINT; a second one kills them all."""
    supervisor = Supervisor(bus, app)
    stop_on_signals(supervisor.stop, stop_at_once=supervisor.kill)
    supervisor.run()
    return 0


def _exporter(settings: Settings) -> Exporter | None:
    """Return what serves the children's metrics, None when nothing is to; their work matters more."""
    if settings.metrics_port is None or not settings.metrics_enabled:
        return None
    from pgbus.engine.observe.exporter import Exporter  # noqa: PLC0415 (only where it is wanted)

    try:
        return Exporter(settings.metrics_port)
    except OSError as problem:
        _log.error("No metrics on port %d: %s", settings.metrics_port, problem)
        return None


def _words(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
