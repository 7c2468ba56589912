"""What an operator does at the console, from the page they open to the end of it."""

from __future__ import annotations

import re

import pytest
from parcels import Pickup, Scale, jam
from playwright.sync_api import expect
from support.waiting import eventually


@pytest.fixture
def at_work(bus):
    """Workers that take what there is."""
    with bus.run_in_background():
        yield


def events(run):
    return [(str(event.event), event.actor, event.reason) for event in run.events]


def page_of(console, run):
    return f"{console}/workflows/{run.workflow_id}"


def press(page, opens, answers, reason=None):
    """Opens an action's dialog, gives the reason, and confirms."""
    page.get_by_role("button", name=opens).click()
    dialog = page.get_by_role("dialog")
    if reason is not None:
        dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=answers).click()


def toast(page):
    return page.locator(".toast p")


def title(page):
    return page.get_by_role("heading", level=1)


def test_a_stuck_run_is_found_by_filter_understood_resumed_and_seen_finishing(
    bus, driver, console, open_page, request
):
    Scale.works = True
    bus.start(Pickup)
    (run,) = jam(bus, driver)
    page = open_page(f"{console}/workflows")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Error class").fill("parcels.ScaleJammedError")
    page.get_by_role("button", name="Show runs").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Paused on weigh").click()
    expect(title(page)).to_contain_text("Paused on weigh: ScaleJammedError")
    expect(page.locator("main")).to_contain_text("the scale in hall 3 does not answer")
    expect(page.locator("main")).to_contain_text("could not convert string to float")

    request.getfixturevalue("at_work")
    Scale.works = True
    press(page, "Retry weigh", "Retry weigh", "scale switched on")
    expect(toast(page)).to_contain_text("The run goes on")
    page.evaluate("window.same = true")
    expect(title(page)).to_contain_text("Finished")
    assert page.evaluate("window.same"), "without a reload"
    expect(page.locator("[data-live]")).to_have_count(0)
    assert ("resumed", "dashboard:alice", "scale switched on") in events(run)


def test_a_refused_payload_is_kept_as_typed_and_the_mended_one_reaches_the_run(
    bus, driver, console, open_page, request
):
    run = bus.start(Pickup)
    driver.drain()
    page = open_page(page_of(console, run))
    page.get_by_role("link", name="Send a signal").click()
    page.get_by_label("Signal", exact=True).fill("collected")
    page.get_by_label("Payload").fill('{"by": "Ann",\n "parcels": }')
    page.locator("#send").get_by_label("Reason").fill("she phoned")
    page.get_by_role("button", name="Send the signal").click()
    expect(page.get_by_role("alert")).to_contain_text("The signal was not sent")
    expect(page.get_by_label("Payload")).to_be_focused()
    expect(page.get_by_label("Payload")).to_have_accessible_description(
        re.compile("Line 2, column")
    )
    expect(page.get_by_label("Signal", exact=True)).to_have_value("collected")
    expect(page.get_by_label("Payload")).to_have_value('{"by": "Ann",\n "parcels": }')
    assert run.signals == []

    page.get_by_label("Payload").fill('{"by": "Ann", "parcels": 9007199254740993123}')
    page.get_by_role("button", name="Send the signal").click()
    expect(toast(page)).to_contain_text("Signal collected is sent")
    (sent,) = run.signals
    assert sent.payload == {"by": "Ann", "parcels": 9007199254740993123}
    assert (sent.actor, sent.reason) == ("dashboard:alice", "she phoned")
    request.getfixturevalue("at_work")
    expect(title(page)).to_contain_text("Finished")
    expect(page.locator("main")).to_contain_text("9007199254740993123")


def test_a_group_is_resumed_as_it_was_shown_and_is_gone(bus, driver, console, open_page):
    runs = jam(bus, driver, 3)
    page = open_page(f"{console}/workflows/attention")
    expect(page.locator(".lede")).to_contain_text("3 share one cause")
    page.get_by_role("button", name="Resume 3").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("parcels.ScaleJammedError")
    runs[0].cancel()
    Scale.works = True
    dialog.get_by_label("Reason").fill("scale mended")
    dialog.get_by_role("button", name="Resume").click()
    expect(toast(page)).to_contain_text("Resumed 2")
    expect(toast(page)).to_contain_text("1 had already moved on")
    expect(page.locator("main")).to_contain_text("Nothing needs you")
    driver.drain()
    assert [run.reload().status for run in runs] == ["cancelled", "finished", "finished"]
    assert ("resumed", "dashboard:alice", "scale mended") in events(runs[1])


def test_the_count_of_a_group_leads_to_exactly_its_runs(bus, driver, console, open_page):
    runs = jam(bus, driver, 2)
    bus.start(Pickup).pause()
    page = open_page(f"{console}/workflows/attention")
    page.get_by_role("link", name="2 runs, show them").click()
    for run in runs:
        expect(page.locator(f'tr[data-key="{run.workflow_id}"]')).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(2)


def test_a_run_is_cancelled_with_a_reason_that_stands_on_its_trail(bus, driver, console, open_page):
    run = bus.start(Pickup)
    driver.drain()
    page = open_page(page_of(console, run))
    press(page, "Cancel", "Cancel", "customer moved away")
    expect(title(page)).to_contain_text("Cancelled")
    trail = page.get_by_role("region", name="Audit trail").get_by_role("listitem")
    expect(trail.filter(has_text="customer moved away")).to_contain_text("dashboard:alice")
    assert run.reload().status == "cancelled"


def test_opening_a_dialog_and_leaving_it_changes_nothing(bus, driver, console, open_page):
    (run,) = jam(bus, driver)
    before = events(run)
    page = open_page(page_of(console, run))
    for offer in page.locator("a[data-dialog]").all():
        offer.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        dialog.get_by_role("button", name="Back, change nothing").or_(
            dialog.get_by_role("link", name="Back, change nothing")
        ).click()
        expect(dialog).to_have_count(0)
    page.goto(f"{console}/workflows/attention")
    page.get_by_role("button", name="Cancel 1").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert events(run) == before


def test_who_presses_second_is_told_that_the_run_moved_on(bus, driver, console, open_page):
    (run,) = jam(bus, driver)
    first, second = (open_page(page_of(console, run)) for _ in range(2))
    second.get_by_role("button", name="Retry weigh").click()
    press(first, "Skip weigh", "Skip", "weighed by hand")
    expect(toast(first)).to_contain_text("weigh is skipped")
    before = events(run)
    second.get_by_role("dialog").get_by_role("button", name="Retry weigh").click()
    expect(toast(second)).to_contain_text("Nothing was done: dashboard:alice skipped the step")
    assert events(run) == before


def test_reload_and_back_after_an_action_do_nothing_again(bus, driver, console, open_page):
    (run,) = jam(bus, driver)
    page = open_page(page_of(console, run))
    press(page, "Retry weigh", "Retry weigh")
    expect(toast(page)).to_be_visible()
    driver.drain()
    before = events(run)
    assert len([event for event in before if event[0] == "resumed"]) == 1
    page.reload()
    expect(toast(page)).to_have_count(0)
    page.go_back()
    expect(title(page)).to_contain_text("Paused on weigh")
    page.go_forward()
    expect(title(page)).to_contain_text("Paused on weigh")
    assert events(run) == before


def test_a_reload_of_a_refused_form_comes_back_to_the_run(bus, driver, console, open_page):
    run = bus.start(Pickup)
    driver.drain()
    page = open_page(page_of(console, run))
    page.get_by_label("Signal", exact=True).fill("collected")
    page.get_by_label("Payload").fill("[]")
    page.get_by_role("button", name="Send the signal").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.goto(page.url)
    assert page.url == page_of(console, run)


@pytest.mark.parametrize("kind", ["signal", "bulk"])
def test_a_double_click_sends_once(bus, driver, console, open_page, kind):
    if kind == "signal":
        run = bus.start(Pickup)
        driver.drain()
        page = open_page(page_of(console, run))
        page.get_by_label("Signal", exact=True).fill("collected")
        button = page.get_by_role("button", name="Send the signal")
    else:
        (run,) = jam(bus, driver)
        page = open_page(f"{console}/workflows/attention")
        page.get_by_role("button", name="Resume 1").click()
        button = page.get_by_role("dialog").get_by_role("button", name="Resume")
    posts = []
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else 0)
    button.dblclick()
    expect(toast(page)).to_be_visible()
    assert len(posts) == 1
    assert len(events(run)) == len(set(events(run)))


def test_a_run_is_found_by_its_id_from_any_page(bus, driver, console, open_page):
    (run, _other) = jam(bus, driver, 2)
    page = open_page(f"{console}/batches")
    page.get_by_role("searchbox").fill(f" {run.workflow_id} ")
    page.get_by_role("searchbox").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody tr").get_by_role("link").first.click()
    eventually(lambda: page.url == page_of(console, run))
