"""Running a contender: a module with a `main(url)` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 600


def environment(url: str, **extra: str) -> dict[str, str]:
    """Return this process's environment, pointed at the contender's database."""
    return {**os.environ, "PGBUS_DATABASE_URL": url, **extra}


def measure(module: str, url: str, *arguments: str) -> dict[str, float]:
    """Run `python -m bench.<module>` to its end and return the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{module}", url, *arguments],
        cwd=ROOT,
        env=environment(url),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def running(*command: str, url: str, **extra: str) -> Iterator[subprocess.Popen[bytes]]:
    """Keep `python -m <command>` running inside the block; fail when it ended by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment(url, **extra)
    )
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"{' '.join(command)} ended early with {process.returncode}")
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def worker(url: str, **extra: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Return the block inside which one pgbus worker with 8 threads runs."""
    command = ("pgbus.engine.cli", "worker", "--app", "bench.pgbus_app:bus")
    return running(*command, url=url, PGBUS_THREADS="8", **extra)
