"""Processes of pgbus that a test starts, aims at and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from support.database import Database

APP = "support.apps:make_bus"
_TESTS = Path(__file__).parents[1]


class Child:
    """A Python module that runs in a process of its own, with the settings in its environment."""

    def __init__(
        self,
        url: str,
        module: Sequence[str],
        settings: Mapping[str, Any],
        *,
        variables: Mapping[str, str] | None = None,
        path: Sequence[Path] = (),
    ) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by end())
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("PGBUS_")},
            "PGBUS_DATABASE_URL": url,
            "PYTHONPATH": os.pathsep.join(
                [*map(str, [*path, _TESTS]), os.environ.get("PYTHONPATH", "")]
            ),
            **{f"PGBUS_{name.upper()}": str(value) for name, value in settings.items()},
            **(variables or {}),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", *module],
            env=environment,
            cwd=_TESTS,
            stdin=subprocess.DEVNULL,
            stderr=self._output,
            start_new_session=True,
        )
        self._last_words = ""
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """What it and its children have logged."""
        if self._output.closed:
            return self._last_words
        return os.pread(self._output.fileno(), 10_000_000, 0).decode()

    def says(self, text: str, *, times: int = 1, within: float = 15) -> None:
        """Returns once its log has the text this often."""
        try:
            eventually(lambda: self.log.count(text) >= times, within=within)
        except AssertionError:
            raise AssertionError(f"{text!r} is not {times} times in:\n{self.log}") from None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def interrupt_group(self) -> None:
        """What Ctrl-C does: SIGINT to the foreground group."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self, within: float = 15) -> int:
        """Its exit status, once it has ended."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"Process {self.pid} does not end:\n{self.log}") from None

    def stop(self) -> None:
        """Ends it in order."""
        self.signal(signal.SIGTERM)
        status = self.wait()
        assert status == 0, f"status {status}:\n{self.log}"

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children() if self.alive else []

    def cpu_seconds(self) -> float:
        """Seconds of processor time it has used."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def end(self) -> None:
        """Kills what is left of it, stopped or not."""
        left = [self._process, *self.children()]
        for process in left:
            process.kill()
        for process in left:
            process.wait()
        self._last_words = self.log
        self._output.close()


class Process(Child):
    """`pgbus worker`, `dispatcher` or `start` on the application `support.apps`."""

    def __init__(
        self,
        url: str,
        kind: str,
        settings: Mapping[str, Any],
        *,
        aimed_at: str = "",
        options: Sequence[str] = (),
    ) -> None:
        command = ["pgbus.engine.cli", kind, "--app", APP, *options]
        super().__init__(url, command, settings, variables={"AIMED_AT": aimed_at})


@contextmanager
def running(
    database: Database | str, kind: str = "worker", *, aimed_at: str = "", **settings: Any
) -> Iterator[Process]:
    """A process that has started to serve; killed at the end if it is still there."""
    url = database if isinstance(database, str) else database.url
    process = Process(url, kind, settings, aimed_at=aimed_at)
    try:
        if kind == "worker":
            process.says("serves with")
        yield process
    finally:
        process.end()


class Stage:
    """The database of a test as its scene: notes that bodies leave, gates they stop at."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.rows(
            "CREATE TABLE noted (n bigserial, what text, pid integer,"
            " at timestamptz DEFAULT clock_timestamp())"
        )

    @property
    def notes(self) -> list[str]:
        return [what for (what,) in self.database.rows("SELECT what FROM noted ORDER BY n")]

    def pids(self, what: str) -> list[int]:
        return [
            pid
            for (pid,) in self.database.rows(
                "SELECT pid FROM noted WHERE what = %s ORDER BY n", what
            )
        ]

    @contextmanager
    def closed(self, gate: str) -> Iterator[None]:
        """Within it, nobody passes the gate."""
        with self.database.connection(autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [gate])
            yield

    def waiting_at(self, gate: str) -> int:
        """How many wait at the gate."""
        return self.database.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = %s AND wait_event = 'advisory'",
            f"gate {gate}",
        )

    def arrived_at(self, gate: str, *, number: int = 1, within: float = 15) -> None:
        """Returns once so many wait at the gate."""
        eventually(lambda: self.waiting_at(gate) >= number, within=within)

    def redeliver(self, queue: str = "workflows") -> None:
        """Lets every message be read at once, as after a visibility timeout."""
        self.database.rows(
            f"UPDATE pgmq.q_pgbus_{queue} SET vt = clock_timestamp() - interval '1 ms'"
        )

    def read_count(self) -> int:
        """How often the one message of the workflows' queue was delivered."""
        return self.database.value("SELECT read_ct FROM pgmq.q_pgbus_workflows")

    def kept_invisible_for(self, *, seconds: float, queue: str = "workflows") -> None:
        """Returns once the queue's one message is invisible for so much longer than now."""

        def visible_at() -> datetime:
            return self.database.value(f"SELECT vt FROM pgmq.q_pgbus_{queue}")

        first = visible_at()
        eventually(lambda: visible_at() - first > timedelta(seconds=seconds))

    def status(self, run: Any) -> str:
        return self.database.value(
            "SELECT status FROM pgbus.workflows WHERE workflow_id = %s", run.workflow_id
        )

    def finished(self, *runs: Any, within: float = 20) -> None:
        """Returns once all the runs are finished."""
        ids = [run.workflow_id for run in runs]

        def all_finished() -> bool:
            return not self.database.value(
                "SELECT count(*) FROM pgbus.workflows"
                " WHERE workflow_id = ANY (%s::uuid[]) AND status <> 'finished'",
                ids,
            )

        try:
            eventually(all_finished, within=within)
        except AssertionError:
            raise AssertionError(f"Not finished:\n{self.trails(*runs)}") from None

    def attempts(self, run: Any) -> list[tuple[str, int, str]]:
        """Step, attempt and status of each attempt, in order."""
        return self.database.rows(
            "SELECT step_name, attempt, status FROM pgbus.workflow_steps"
            " WHERE workflow_id = %s ORDER BY step_id",
            run.workflow_id,
        )

    def events(self, run: Any) -> list[str]:
        return [
            event
            for (event,) in self.database.rows(
                "SELECT event FROM pgbus.workflow_events WHERE workflow_id = %s ORDER BY event_id",
                run.workflow_id,
            )
        ]

    def trails(self, *runs: Any) -> str:
        return "\n".join(
            f"{run.workflow_id} {self.status(run)} {self.attempts(run)} {self.events(run)}"
            for run in runs
        )
