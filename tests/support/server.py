"""PostgreSQL servers that the tests own: the embedded one's programs, or those on PATH."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psutil
from support.waiting import eventually

#: Not for servers that a test crashes.
UNSAFE_BUT_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")

_ROOM = 4 * 2**30


class NoServerError(Exception):
    """This machine lacks the programs of the server that was asked for."""


class Server:
    """A server known by the URL of any of its databases, with a role that may create more."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str) -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))

    @property
    def admin_url(self) -> str:
        return self._url


class Cluster(Server):
    """A server with data of its own in a temporary folder, reached by Unix socket only."""

    def __init__(self, kind: str, *, settings: tuple[str, ...] = ()) -> None:
        self.home = make_home()
        self.data_dir = self.home / "data"
        self.data_dir.mkdir()
        self._settings = settings
        self._user: str | None = None
        super().__init__(f"postgresql://postgres@/postgres?host={self.data_dir}")
        try:
            self._bin_dir = {"embedded": self._make_embedded, "path": self._make_from_path}[kind]()
        except BaseException:
            self.remove()
            raise

    def start(self) -> None:
        settings = (
            "listen_addresses=",
            f"unix_socket_directories={self.data_dir}",
            "max_connections=200",
            *self._settings,
        )
        options = " ".join(f"-c {setting}" for setting in settings)
        log = self.data_dir / "log"
        try:
            self._run("pg_ctl", "-w", "-D", self.data_dir, "-l", log, "-o", options, "start")
        except subprocess.CalledProcessError:
            raise AssertionError(f"The server did not start:\n{log.read_text()}") from None

    def stop(self, mode: str = "fast") -> None:
        """Stop as `pg_ctl stop -m` does: `smart`, `fast` or `immediate` (a crash)."""
        self._run("pg_ctl", "-w", "-D", self.data_dir, "-m", mode, "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL the postmaster, and return when none of its processes is left."""
        pid_file = self.data_dir / "postmaster.pid"
        postmaster = psutil.Process(int(pid_file.read_text().split()[0]))
        processes = [postmaster, *postmaster.children(recursive=True)]
        postmaster.send_signal(signal.SIGKILL)
        eventually(lambda: all(_has_ended(process) for process in processes))
        # A zombie that nobody reaps would look like a running server.
        for mark in (pid_file, *self.data_dir.glob(".s.PGSQL.*.lock")):
            mark.unlink(missing_ok=True)

    @property
    def running(self) -> bool:
        return (self.data_dir / "postmaster.pid").exists()

    def remove(self) -> None:
        if self.running:
            self.stop("immediate")
        shutil.rmtree(self.home)

    def _make_embedded(self) -> Path:
        from pgbus.engine.embedded import PostgresServer

        embedded = PostgresServer(self.data_dir)
        embedded.ensure_pgdata_inited()
        self._user = embedded.system_user
        return embedded.bin_path

    def _make_from_path(self) -> Path:
        self._bin_dir = _installed_programs()
        if os.geteuid() == 0:
            self._user = _unprivileged_user()
            self.home.chmod(0o755)
            shutil.chown(self.data_dir, self._user)
        self._run(
            "initdb", "--auth=trust", "--username=postgres", "--encoding=utf8", "--locale=C.UTF-8",
            "--no-sync", "-D", self.data_dir,
        )  # fmt: skip
        return self._bin_dir

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self._bin_dir / program, *arguments],
            user=self._user,
            group=pwd.getpwnam(self._user).pw_gid if self._user else None,
            extra_groups=[] if self._user else None,
            cwd=self.data_dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )


def make_home() -> Path:
    """A new folder for a server's data: in memory where there is room, since a database is
    350 files; not pytest's own, which for root the server's user may not enter.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM
    return Path(tempfile.mkdtemp(prefix="pgbus-test-", dir=memory if roomy else "/tmp"))


def _installed_programs() -> Path:
    found = [shutil.which("initdb")]
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=True)
        found.append(f"{answer.stdout.strip()}/initdb")
    found += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), reverse=True)
    for initdb in found:
        if initdb and Path(initdb).exists():
            return Path(initdb).resolve().parent
    raise NoServerError("no initdb on PATH, beside pg_config, or in /usr/lib/postgresql")


def _unprivileged_user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    raise NoServerError(
        "PostgreSQL refuses to run as root, and there is no user postgres or nobody"
    )


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
