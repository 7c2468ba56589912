"""mypy and pyright, both strict, over user code that must pass and user code that must not."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ACCEPTED = HERE / "accepted.py"
REFUSED = HERE / "refused.py"


def mypy_errors():
    output = _run(sys.executable, "-m", "mypy", "--strict", ACCEPTED, REFUSED).stdout
    found = re.findall(r"^(\S+?):(\d+): error: (.*)$", output, re.MULTILINE)
    return {(Path(path).name, int(line)): message for path, line, message in found}


def pyright_errors():
    pyright = shutil.which("pyright", path=Path(sys.executable).parent)
    works = pyright and _run(pyright, "--version").returncode == 0
    if not works:
        because = "pyright cannot run here: install pgbus[dev] and node, or let it fetch them"
        pytest.fail(because) if os.environ.get("CI") else pytest.skip(because)
    command = (pyright, "--pythonpath", sys.executable, "--outputjson", ACCEPTED, REFUSED)
    diagnostics = json.loads(_run(*command).stdout)["generalDiagnostics"]
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1): one["message"]
        for one in diagnostics
        if one["severity"] == "error"
    }


def _run(*command):
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(params=[mypy_errors, pyright_errors], scope="module")
def errors(request):
    return request.param()


def test_correct_user_code_is_accepted(errors):
    assert {place: text for place, text in errors.items() if place[0] == ACCEPTED.name} == {}


def test_each_marked_mistake_is_refused_and_nothing_else(errors):
    lines = enumerate(REFUSED.read_text().splitlines(), start=1)
    marked = {number for number, line in lines if line.endswith("# refused")}
    assert {line for name, line in errors if name == REFUSED.name} == marked
