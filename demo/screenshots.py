"""`python -m demo.screenshots FOLDER`: the guide's pictures, taken of the console in the demo.

The tests' folder must be on the path, which knows where a Chromium is: `make screenshots`.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from playwright.sync_api import expect, sync_playwright
from support import browser as chromium
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Locator, Page

_PROJECT = Path(__file__).resolve().parent.parent
_DESK = {"width": 1440, "height": 800}
_PHONE = {"width": 390, "height": 844}
_STARTING = 60
#: A bank that is away pauses three runs, and a misspelt address three others, within two minutes.
_GROUP = re.compile(r"[3-9]|\d\d")
_FILLING = 180


def main(folder: Path) -> None:
    """Take the pictures, once orders of every sort are under way."""
    with _demo() as shop, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.executable(), args=chromium.ARGUMENTS
        )
        console = f"{shop}/pgbus"
        _wait_for_groups(browser, console)
        for theme in ("light", "dark"):
            for name, turn_to in _PAGES.items():
                picture = folder / f"{name}-{theme}.png"
                _take(browser, console, turn_to, picture, color_scheme=theme)
        for name, turn_to in _BUS_PAGES.items():
            _take(browser, console, turn_to, folder / f"{name}-light.png")
        _take(browser, console, _timeline, folder / "timeline-light.png")
        _take(browser, console, _workflows, folder / "workflows-german.png", locale="de-DE")
        _take(browser, console, _workflows, folder / "workflows-phone.png", viewport=_PHONE)


@contextmanager
def _demo() -> Iterator[str]:
    """Run the demo on data of its own; give the shop's address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="pgbus-screenshots-") as data:
        demo = subprocess.Popen(  # noqa: S603 (our own command line)
            [sys.executable, "-m", "demo", "--data", data, "--port", str(port), "--rate", "0.5"],
            cwd=_PROJECT,
            stdout=subprocess.DEVNULL,
        )
        try:
            shop = f"http://127.0.0.1:{port}"
            eventually(lambda: _answers(f"{shop}/orders"), within=_STARTING)
            yield shop
        finally:
            demo.terminate()
            demo.wait()


def _answers(address: str) -> bool:
    try:
        urlopen(address).close()  # noqa: S310 (the demo's own address)
    except OSError:
        return False
    return True


def _wait_for_groups(browser: Browser, console: str) -> None:
    page = browser.new_page()
    page.goto(f"{console}/workflows/attention")
    groups = page.locator("td.num")
    for group in (groups.nth(0), groups.nth(1)):
        expect(group).to_have_text(_GROUP, timeout=_FILLING * 1000)
    page.close()


def _take(
    browser: Browser,
    console: str,
    turn_to: Callable[[Page, str], Page | Locator],
    picture: Path,
    **window: Any,
) -> None:
    page = browser.new_page(**{"viewport": _DESK, "locale": "en-GB", **window})
    turn_to(page, console).screenshot(path=picture)
    page.close()


def _home(page: Page, console: str) -> Page:
    page.goto(f"{console}/")
    return page


def _workflows(page: Page, console: str) -> Page:
    page.goto(f"{console}/workflows")
    return page


def _paused_run(page: Page, console: str) -> Page:
    page.goto(f"{console}/workflows?status=paused&current_step=charge")
    page.locator("tbody tr").first.locator("a").last.click()
    page.locator("#timeline .main-svg").first.wait_for()
    return page


def _timeline(page: Page, console: str) -> Locator:
    return _paused_run(page, console).get_by_role("region", name="Timeline", exact=True)


def _attention(page: Page, console: str) -> Page:
    page.goto(f"{console}/workflows/attention")
    page.locator("[data-ask]").first.click()
    page.locator("dialog[open]").wait_for()
    return page


def _classes(page: Page, console: str) -> Page:
    page.goto(f"{console}/workflows/definitions")
    return page


def _insights(page: Page, console: str) -> Page:
    _classes(page, console)
    page.get_by_role("link", name="demo.shop.workflows.OrderWorkflow", exact=True).click()
    page.locator("#throughput .main-svg").first.wait_for()
    return page


def _queues(page: Page, console: str) -> Page:
    page.goto(f"{console}/queues")
    page.locator("[data-ask]").first.click()
    page.locator("dialog[open]").wait_for()
    return page


def _jobs(page: Page, console: str) -> Page:
    page.goto(f"{console}/jobs?show=failed")
    return _followed(page, "tbody tr")


def _dead_letters(page: Page, console: str) -> Page:
    page.goto(f"{console}/dead-letters")
    return page


def _processes(page: Page, console: str) -> Page:
    page.goto(f"{console}/processes")
    return _followed(page, "tbody a")


def _followed(page: Page, what: str) -> Page:
    """Let the page keep itself up to date until it shows this."""
    page.locator(what).first.wait_for(timeout=_FILLING * 1000)
    return page


_PAGES = {
    "home": _home,
    "workflows": _workflows,
    "run": _paused_run,
    "attention": _attention,
    "classes": _classes,
    "insights": _insights,
}
_BUS_PAGES = {
    "queues": _queues,
    "jobs": _jobs,
    "dead-letters": _dead_letters,
    "processes": _processes,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
