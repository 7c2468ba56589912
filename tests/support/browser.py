"""The Chromium that the browser tests drive: one that is installed, else Playwright's own.

Run as a program it sees to it that there is one, as far as this machine allows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

#: As root, in containers, without a screen.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MEND = (
    "No Chromium was found. Install your system's chromium, or run "
    ".venv/bin/python -m playwright install chromium."
)


def executable() -> str | None:
    """Returns the path of a Chromium; None when this machine has none."""
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def main() -> int:
    """Installs a Chromium where there is none, and says loudly when that fails."""
    attempts = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "--yes", "--quiet", "chromium"]
        attempts = [["apt-get", "update", "--quiet"], install, *attempts]
    for attempt in attempts:
        if executable():
            return 0
        subprocess.run(attempt, check=False, stdin=subprocess.DEVNULL)
    if executable():
        return 0
    sys.stderr.write(f"\n*** {MEND} The browser tests are skipped. ***\n\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
