"""At the keyboard, without JavaScript, and what the chart says."""

from __future__ import annotations

import re

import pytest
from parcels import Pickup, jam
from playwright.sync_api import expect

NARROW = {"width": 360, "height": 740}


def page_of(console, run):
    return f"{console}/workflows/{run.workflow_id}"


def tab_to(page, name, most=80):
    """Presses Tab until what is called so has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        said = page.evaluate(
            "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText ?? '').trim()"
        )
        if re.match(name, said):
            return
    raise AssertionError(f"{most} times Tab did not reach {name}")


def test_the_keyboard_alone_skips_the_head_acts_and_comes_back(bus, driver, console, open_page):
    (run,) = jam(bus, driver)
    page = open_page(page_of(console, run))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    for key in ("Enter", " "):
        tab_to(page, "Retry weigh") if key == "Enter" else None
        opener = page.locator("a[data-dialog]:focus")
        page.keyboard.press(key)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        assert dialog.evaluate("dialog => dialog.contains(document.activeElement)")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("by hand")
    tab_to(page, "Retry weigh", most=2)
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("The run goes on")
    assert [e.reason for e in run.events if str(e.event) == "resumed"] == ["by hand"]


def test_the_focus_stays_within_a_dialog_and_returns_to_the_row_that_asked(
    bus, driver, console, open_page
):
    jam(bus, driver)
    page = open_page(f"{console}/workflows/attention")
    tab_to(page, "Cancel 1")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    for _ in range(3):
        assert dialog.evaluate("dialog => dialog.contains(document.activeElement)")
        page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Cancel 1")).to_be_focused()


def test_a_toast_is_announced_and_goes_when_it_is_dismissed(bus, driver, console, open_page):
    run = bus.start(Pickup)
    driver.drain()
    page = open_page(page_of(console, run))
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    status = page.get_by_role("status")
    expect(status).to_contain_text("Done.")
    page.get_by_role("button", name="Dismiss").click()
    expect(status).to_have_text("")


@pytest.fixture
def plain(open_page):
    """Opens an address in a narrow window without JavaScript."""

    def plain(address):
        return open_page(address, java_script_enabled=False, viewport=NARROW)

    return plain


def test_without_javascript_runs_are_listed_filtered_and_cancelled(bus, driver, console, plain):
    bus.start(Pickup)
    (run,) = jam(bus, driver)
    page = plain(f"{console}/workflows")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Current step").fill("weigh")
    page.get_by_role("button", name="Show runs").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Paused on weigh").click()
    page.locator("a[href='#d-cancel']").click()
    dialog = page.locator("#d-cancel")
    expect(dialog).to_be_visible()
    expect(page.locator("#d-resume")).to_be_hidden()
    dialog.get_by_text("Back, change nothing").click()
    expect(dialog).to_be_hidden()
    page.locator("a[href='#d-cancel']").click()
    dialog.get_by_label("Reason").fill("no script, no parcel")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.locator(".toast")).to_contain_text("Cancelled")
    expect(page.locator(".trail")).to_contain_text("no script, no parcel")
    expect(page.locator("[data-live-switch], [data-copy]").first).to_be_hidden()
    assert run.reload().status == "cancelled"


def test_without_javascript_a_signal_is_sent_after_it_was_refused(bus, driver, console, plain):
    run = bus.start(Pickup)
    driver.drain()
    page = plain(page_of(console, run))
    page.get_by_label("Signal", exact=True).fill("collected")
    page.get_by_label("Payload").fill("{'by': 'Ann'}")
    page.get_by_role("button", name="Send the signal").click()
    expect(page.get_by_role("alert")).to_contain_text("not sent")
    expect(page.get_by_label("Payload")).to_have_value("{'by': 'Ann'}")
    page.get_by_label("Payload").fill('{"by": "Ann"}')
    page.get_by_role("button", name="Send the signal").click()
    expect(page.locator(".toast")).to_contain_text("Signal collected is sent")
    assert [signal.payload for signal in run.signals] == [{"by": "Ann"}]


def test_without_javascript_a_group_is_resumed_and_a_dialog_left(bus, driver, console, plain):
    runs = jam(bus, driver, 2)
    page = plain(f"{console}/workflows/attention")
    page.get_by_role("link", name="Cancel 2").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("link", name="Back, change nothing").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("link", name="Resume 2").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.locator(".toast")).to_contain_text("Resumed 2")
    expect(page.locator("main")).to_contain_text("Nothing needs you")
    assert {run.reload().status for run in runs} == {"ready"}


def test_a_refused_action_is_mended_without_javascript(bus, driver, console, plain):
    (run,) = jam(bus, driver)
    page = plain(page_of(console, run))
    page.locator("a[href='#d-resume_at']").click()
    dialog = page.locator("#d-resume_at")
    dialog.get_by_label("Reason").fill("weighed by hand")
    dialog.get_by_label("Step").select_option("deliver")
    dialog.get_by_role("button").last.click()
    expect(page.locator(".toast")).to_contain_text("deliver")
    assert run.reload().current_step == "deliver"
