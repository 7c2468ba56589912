"""Forms on a page that keeps itself up to date: what nobody touched follows the run, what was typed stays."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from parcels import Pickup, Reminder
from playwright.sync_api import expect

from pgbus import Workflow, step

TEN, TWO = (datetime.fromisoformat(f"2031-05-01T{hour}:00Z") for hour in ("10", "14"))


class Relay(Workflow):
    @step(wait_for="first", wait_timeout=timedelta(days=2))
    def run_first(self): ...

    @step(wait_for="second")
    def run_second(self): ...


@pytest.fixture
def later(bus):
    return bus.start(Reminder).reschedule(TEN)


@pytest.fixture
def follow(console, open_page):
    def follow(run):
        return open_page(f"{console}/workflows/{run.workflow_id}", clock=True, timezone_id="UTC")

    return follow


def moment(page):
    return page.locator("#at-moment")


def test_a_time_that_a_colleague_moved_is_the_one_that_the_dialog_begins_with(
    later, follow, refresh
):
    page = follow(later)
    expect(moment(page)).to_have_value("2031-05-01T10:00")
    later.reschedule(TWO)
    refresh(page)
    page.get_by_role("button", name="Reschedule").click()
    expect(moment(page)).to_have_value("2031-05-01T14:00")
    page.get_by_role("dialog").get_by_role("button", name="Reschedule").click()
    expect(page.locator(".toast")).to_contain_text("is moved to")
    assert later.steps[-1].scheduled_at == TWO


def test_a_time_that_somebody_typed_stays(later, follow, refresh):
    page = follow(later)
    page.get_by_role("button", name="Reschedule").click()
    moment(page).fill("2031-05-02T08:00")
    page.keyboard.press("Escape")
    later.reschedule(TWO)
    refresh(page)
    expect(moment(page)).to_have_value("2031-05-02T08:00")


def test_the_signal_s_name_is_that_of_the_wait_there_is_and_what_was_typed_stays(
    bus, driver, follow, refresh
):
    run = bus.start(Relay)
    driver.drain()
    page = follow(run)
    name = page.get_by_label("Signal", exact=True)
    expect(name).to_have_value("first")
    run.signal("first", {})
    driver.drain()
    refresh(page)
    expect(name).to_have_value("second")


def test_a_chosen_step_stays_chosen_while_the_others_get_other_words(bus, driver, follow, refresh):
    run = bus.start(Relay).pause()
    page = follow(run)
    steps = page.locator("#at-step")
    page.get_by_role("button", name="Resume at").click()
    steps.select_option("run_second")
    page.keyboard.press("Escape")
    run.resume()
    driver.drain()
    run.reload().pause()
    refresh(page)
    expect(steps.locator("option")).to_have_text(
        ["Choose a step", "run_first, waiting, here now", "run_second, not tried yet"]
    )
    expect(steps).to_have_value("run_second")


@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
def test_the_folded_form_is_opened_by_its_action_and_the_cursor_is_in_it(
    later, console, open_page, script
):
    page = open_page(f"{console}/workflows/{later.workflow_id}", java_script_enabled=script)
    name = page.get_by_label("Signal", exact=True)
    expect(name).to_be_hidden()
    page.get_by_role("link", name="Send a signal").click()
    expect(name).to_be_visible()
    expect(name).to_be_focused()


def test_the_form_stands_open_while_the_run_waits_for_a_signal(bus, driver, follow):
    run = bus.start(Pickup)
    driver.drain()
    expect(follow(run).get_by_label("Signal", exact=True)).to_be_visible()


def test_a_page_that_refused_a_form_goes_on_following_the_run(bus, driver, follow, refresh):
    run = bus.start(Relay)
    driver.drain()
    page = follow(run)
    page.get_by_label("Payload").fill("{")
    page.get_by_role("button", name="Send the signal").click()
    expect(page.get_by_role("alert")).to_contain_text("The signal was not sent")
    page.get_by_role("heading", level=1).click()
    page.evaluate("document.activeElement.blur()")
    run.cancel(actor="bob")
    refresh(page)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Cancelled")
