"""The guide's page on testing, run as the suite that it shows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from contracts.documents import GUIDE, blocks, blocks_in


@pytest.fixture
def shop(tmp_path):
    """The guide's shop, and in tests/ what its page on testing shows."""
    for block in blocks_in(sorted(GUIDE.glob("*.md")), "python"):
        if block.module:
            write(tmp_path / block.module, block.code)
    for block in blocks(GUIDE / "testing.md"):
        if block.language == "python" and not block.module:
            write(tmp_path / "tests" / "test_orders.py", block.code)
    return tmp_path


def write(path, code):
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as module:
        module.write(code + "\n\n")


def test_the_guides_suite_passes(shop):
    environment = {name: text for name, text in os.environ.items() if "PGBUS" not in name}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(
        command, cwd=shop, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"{shown_tests(shop)} passed" in done.stdout


def shown_tests(shop):
    return (shop / "tests" / "test_orders.py").read_text().count("\ndef test_")
