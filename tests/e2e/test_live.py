"""A page that keeps itself up to date, and leaves whoever reads it alone."""

from __future__ import annotations

import pytest
from parcels import Pickup, Reminder, Scale, jam
from playwright.sync_api import expect

#: How much of the window may move by itself, of 1: less than an eye notices.
STILL = 0.01


@pytest.fixture
def many(bus):
    return [bus.start(Reminder, order=number) for number in range(20)]


@pytest.fixture
def away(console, database):
    """Makes every answer an outage, and back."""

    def away(page, *, answers):
        pattern = f"{console}/**"
        page.unroute(pattern)
        if not answers:
            page.route(pattern, lambda route: route.fulfill(status=503, body="away"))

    return away


@pytest.fixture
def asked():
    """Returns the list of a page's requests for a newer page, which grows."""

    def asked(page):
        found = []
        page.on(
            "request",
            lambda request: found.append(request) if "x-pgbus-live" in request.headers else None,
        )
        return found

    return asked


def live_line(page):
    return page.locator("[data-live-line] span")


def test_rows_change_under_a_reader_who_keeps_scroll_focus_and_opened_parts(
    bus, many, console, open_page, refresh
):
    page = open_page(f"{console}/workflows", clock=True)
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Current step").fill("half a word")
    link = page.locator(f'tr[data-key="{many[9].workflow_id}"]').get_by_role("link").first
    link.focus()
    page.evaluate("scrollTo(0, 600)")
    place = link.bounding_box()["y"]
    for number in range(3):
        many[3 + number].cancel()
        bus.start(Reminder, order=100 + number)
        refresh(page)
        expect(page.locator("tbody tr")).to_have_count(20)
    expect(page.locator(f'tr[data-key="{many[3].workflow_id}"]')).to_have_count(0)
    expect(link).to_be_focused()
    expect(page.locator("#filter")).to_have_attribute("open", "")
    expect(page.get_by_label("Current step")).to_have_value("half a word")
    # Rows were added above: what is read stays where it is, not the number.
    assert abs(link.bounding_box()["y"] - place) < 2


def test_a_selection_and_a_field_with_the_cursor_in_it_hold_the_page_still(
    bus, driver, console, open_page
):
    run = bus.start(Pickup)
    driver.drain()
    page = open_page(f"{console}/workflows/{run.workflow_id}", clock=True)
    title = page.get_by_role("heading", level=1)
    title.select_text()
    selected = page.evaluate("String(getSelection())")
    run.pause()
    page.clock.run_for(12_000)
    expect(live_line(page)).to_have_text("Updates wait until you are done")
    assert page.evaluate("String(getSelection())") == selected
    page.evaluate("getSelection().removeAllRanges()")
    page.get_by_label("Payload").fill('{"by":')
    page.clock.run_for(12_000)
    expect(title).to_contain_text("Waiting")
    expect(page.get_by_label("Payload")).to_be_focused()
    page.get_by_label("Payload").blur()
    page.clock.run_for(12_000)
    expect(title).to_contain_text("Paused")
    expect(page.get_by_label("Payload")).to_have_value('{"by":')


def test_the_key_of_a_half_filled_signal_form_outlasts_refreshes(
    bus, driver, console, open_page, refresh
):
    run = bus.start(Pickup)
    driver.drain()
    page = open_page(f"{console}/workflows/{run.workflow_id}", clock=True)
    key = page.locator("[name=idempotency_key]").input_value()
    page.get_by_label("Signal", exact=True).fill("collected")
    page.get_by_label("Signal", exact=True).blur()
    refresh(page, times=3)
    expect(page.locator("[name=idempotency_key]")).to_have_value(key)
    expect(page.get_by_label("Signal", exact=True)).to_have_value("collected")


def test_nothing_is_asked_while_a_dialog_is_open(bus, driver, console, open_page, refresh, asked):
    (run,) = jam(bus, driver)
    page = open_page(f"{console}/workflows/{run.workflow_id}", clock=True)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("half a")
    requests = asked(page)
    page.clock.run_for(30_000)
    expect(live_line(page)).to_have_text("Updates wait until you are done")
    assert requests == []
    page.keyboard.press("Escape")
    refresh(page)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog").get_by_label("Reason")).to_have_value("half a")


def test_nothing_is_asked_while_the_window_is_hidden(console, open_page, many, asked):
    page = open_page(f"{console}/workflows", clock=True)
    become = """state => {
        Object.defineProperty(document, "hidden", { value: state === "hidden", configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    requests = asked(page)
    page.evaluate(become, "hidden")
    page.clock.run_for(60_000)
    assert requests == []
    page.evaluate(become, "visible")
    page.wait_for_function("() => window.refreshes === 1")
    assert len(requests) == 1


def test_updates_are_stopped_and_go_on_when_asked(console, open_page, many, asked):
    page = open_page(f"{console}/workflows", clock=True)
    requests = asked(page)
    page.get_by_role("button", name="Stop updates").click()
    expect(live_line(page)).to_have_text("Updates are stopped")
    page.clock.run_for(60_000)
    assert requests == []
    many[0].cancel()
    page.get_by_role("button", name="Resume updates").click()
    expect(page.locator("tbody tr")).to_have_count(19)
    expect(page.get_by_role("button", name="Stop updates")).to_be_focused()


def test_an_outage_is_said_and_ends_by_itself(console, open_page, many, away, refresh):
    page = open_page(f"{console}/workflows", clock=True)
    away(page, answers=False)
    page.clock.run_for(6_000)
    expect(live_line(page)).to_have_text("The server does not answer; trying again")
    expect(page.locator("tbody tr")).to_have_count(20)
    away(page, answers=True)
    refresh(page)
    expect(live_line(page)).to_contain_text("Live, last read")


def test_a_server_that_hangs_is_said_too(console, open_page, many):
    page = open_page(f"{console}/workflows", clock=True)
    page.route(f"{console}/**", lambda route: None)
    page.clock.run_for(6_000)
    page.clock.run_for(60_000)
    expect(live_line(page)).to_have_text("The server does not answer; trying again")
    page.unroute_all(behavior="ignoreErrors")


@pytest.mark.parametrize("kind", ["list", "run", "attention"])
def test_nothing_moves_while_a_page_loads_and_refreshes(
    bus, driver, console, open_page, refresh, kind
):
    (run, *_others) = jam(bus, driver, 8)
    bus.start(Pickup)
    path = {"list": "", "run": f"/{run.workflow_id}", "attention": "/attention"}[kind]
    page = open_page(f"{console}/workflows{path}", clock=True)
    if kind == "run":
        page.locator("#timeline-chart .plot-container").wait_for()
    Scale.works = True
    refresh(page, times=3)
    assert page.evaluate("window.moved") < STILL


def test_a_dialog_that_an_address_opens_stays_closed_once_it_was_left(
    bus, driver, console, open_page, refresh
):
    jam(bus, driver)
    page = open_page(f"{console}/workflows/attention")
    address = page.get_by_role("button", name="Cancel 1").get_attribute("href")
    page = open_page(console.removesuffix("/pgbus") + address, clock=True)
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    refresh(page, times=2)
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.url == f"{console}/workflows/attention"


def test_a_group_that_grew_is_shown_without_a_reload(bus, driver, console, open_page, refresh):
    jam(bus, driver)
    page = open_page(f"{console}/workflows/attention", clock=True)
    expect(page.get_by_role("button", name="Resume 1")).to_be_visible()
    jam(bus, driver)
    refresh(page)
    expect(page.get_by_role("button", name="Resume 2")).to_be_visible()
    expect(page.get_by_role("navigation", name="Main")).to_contain_text("2")
