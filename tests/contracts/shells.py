"""The shell blocks of the documents, run by bash with stand-ins for the programs they name."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Whatever else a block names, bash does not find.
PROGRAMS = ("createdb", "curl", "docker", "flask", "make", "pgbus", "pip", "promtool", "python", "ssh",
            "systemctl", "uvicorn")  # fmt: skip
#: What the documents leave to their reader.
READERS = {
    "RUN": "01890a5d-ac96-774b-bcce-b302099a8057",
    "REVISION": "3f2c1ab",
    "HOSTS": "shop1 shop2",
}

#: Notes its arguments; a program on standard input is compiled.
_STAND_IN = f"""#!/bin/bash
printf '%s\\0' "$#" "${{0##*/}}" "$@" >> "$CALLS"
if [[ ${{1-}} == - ]]; then {sys.executable} -c 'compile(open(0).read(), "stdin", "exec")'; fi
"""


@cache
def calls(code: str) -> list[list[str]]:
    """Return the programs that a block calls, with their arguments; fail as bash does."""
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder, ".venv", "bin")
        programs.mkdir(parents=True)
        for name in PROGRAMS:
            (programs / name).write_text(_STAND_IN)
            (programs / name).chmod(0o755)
        noted = Path(folder, "calls")
        noted.touch()
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", code],
            cwd=folder,
            env=READERS | {"RELEASE": folder, "CALLS": str(noted), "PATH": str(programs)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return list(_split(noted.read_text().split("\0")[:-1]))


def _split(words: list[str]) -> Iterator[list[str]]:
    while words:
        count = int(words[0])
        yield words[1 : count + 2]
        words = words[count + 2 :]
