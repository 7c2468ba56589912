"""The dashboard served for real, and a browser to look at it."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import pytest
from flask import Flask
from playwright.sync_api import sync_playwright
from support import browser as chromium
from waitress.server import create_server

from pgbus.dashboard import allow_anyone, create_blueprint

#: Reports to the test what ran that should not, and what the policy kept from running; counts refreshes
#: and how far anything moved by itself.
_WATCH = """
window.alert = window.confirm = window.prompt = (text) => { window.complain(String(text)); };
document.addEventListener("securitypolicyviolation",
    (event) => window.complain(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
window.refreshes = 0;
document.addEventListener("pgbus:live", () => { window.refreshes += 1; });
window.moved = 0;
new PerformanceObserver((list) => list.getEntries().forEach((one) => {
    if (!one.hadRecentInput) window.moved += one.value;
})).observe({ type: "layout-shift", buffered: true });
"""


@pytest.fixture(scope="session")
def chrome():
    """A running Chromium."""
    path = chromium.executable()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(chromium.MEND)
        pytest.skip(chromium.MEND)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=chromium.ARGUMENTS)
        yield running
        running.close()


@contextmanager
def _served(site):
    server = create_server(site, host="127.0.0.1", port=0, threads=8)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.effective_port}"
    finally:
        server.close()
        thread.join(5)


@pytest.fixture
def serve(bus):
    """Serves the dashboard of the test's bus at /pgbus; its keywords are the blueprint's."""

    @contextmanager
    def serve(**settings):
        site = Flask("host")
        site.secret_key = "signs the forms"
        site.register_blueprint(
            create_blueprint(bus, **{"auth": allow_anyone, **settings}), url_prefix="/pgbus"
        )
        with _served(site) as address:
            yield f"{address}/pgbus"

    return serve


@pytest.fixture
def console(serve):
    """The address of the dashboard, alice signed in."""
    with serve(web_actor=lambda _request: "alice") as address:
        yield address


@pytest.fixture
def open_page(chrome):
    """Opens an address in a window of its own; fails when a script of any page, or a policy, complains.

    With `clock` the window's timers go on only as the test lets them.
    """
    windows, complaints = [], []

    def complain(source, text):
        complaints.append(f"{source['page'].url}: {text}")

    def open_page(address, *, clock=False, **options):
        window = chrome.new_context(
            **{"locale": "en-GB", "viewport": {"width": 1440, "height": 900}, **options}
        )
        window.set_default_timeout(10_000)
        window.expose_binding("complain", complain)
        window.add_init_script(_WATCH)
        window.on(
            "weberror", lambda failed: complaints.append(f"{failed.page.url}: {failed.error}")
        )
        windows.append(window)
        page = window.new_page()
        if clock:
            page.clock.install()
        page.goto(address)
        return page

    yield open_page
    for window in windows:
        window.close()
    assert complaints == []


@pytest.fixture
def refresh():
    """Lets the time of a window with a `clock` pass until the page has refreshed itself."""

    def refresh(page, times=1):
        for _ in range(times):
            seen = page.evaluate("window.refreshes")
            page.clock.run_for(12_000)
            page.wait_for_function("seen => window.refreshes > seen", arg=seen)

    return refresh
