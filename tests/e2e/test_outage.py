"""An open page whose PostgreSQL is stopped: it says so, keeps what it shows, and goes on by itself."""

from __future__ import annotations

import pytest
from parcels import Pickup
from playwright.sync_api import expect
from support.database import Database

from pgbus.engine.storage.migrate import migrate


@pytest.fixture
def database(crashable_server):
    """A migrated database on a server that the test may stop and start."""
    database = Database(crashable_server)
    migrate(database.engine, "pgbus")
    database.engine.dispose()
    return database


def test_an_open_run_outlasts_a_stop_of_postgresql(database, bus, driver, console, open_page):
    run = bus.start(Pickup)
    driver.drain()
    page = open_page(f"{console}/workflows/{run.workflow_id}", clock=True)
    main, line = page.locator("main"), page.locator("[data-live-line] span")
    database.server.stop()
    page.clock.run_for(6_000)
    expect(line).to_have_text("The server does not answer; trying again")
    shown = main.inner_text()
    assert "Waiting for signal collected" in shown
    with page.expect_response(lambda answer: answer.status == 503):
        page.clock.run_for(12_000)
    assert main.inner_text() == shown
    database.server.start()
    run.pause()
    page.clock.run_for(24_000)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Paused")
    expect(line).to_contain_text("Live, last read")
