"""What an operator does with queues, jobs and dead letters, from the page they open to the end of it."""

from __future__ import annotations

import pytest
from parcels import Scale, hold_back
from playwright.sync_api import expect
from support.waiting import eventually


@pytest.fixture
def held_back(bus, driver, database):
    hold_back(bus, driver, database)


@pytest.fixture
def at_work(bus):
    """Workers that take what there is."""
    with bus.run_in_background():
        yield


def press(page, opens, answers, **fields):
    """Opens a dialog, fills in its fields, and confirms."""
    page.get_by_role("button", name=opens).first.click()
    dialog = page.get_by_role("dialog")
    for label, text in fields.items():
        dialog.get_by_label(label).fill(text)
    dialog.get_by_role("button", name=answers).click()


def toast(page):
    return page.locator(".toast p")


def test_a_queue_goes_on_and_its_failed_job_is_retried_and_seen_done(
    held_back, console, open_page, database, request
):
    page = open_page(console)
    expect(page.locator("main")).to_contain_text("Paused")
    page.get_by_role("link", name="held_back").click()
    expect(page.locator("main")).to_contain_text("by dashboard:bo: scale is mended")
    press(page, "Resume…", "Resume the queue")
    expect(toast(page)).to_contain_text("held_back goes on")
    page.get_by_role("link", name="Jobs").click()
    expect(page.locator(".lede")).to_contain_text("1 job has failed")
    page.get_by_role("link", name="Failed").click()
    expect(page.locator("tbody")).to_contain_text("the scale in hall 3 does not answer")

    request.getfixturevalue("at_work")
    Scale.works = True
    press(page, "Retry…", "Run it now", Reason="scale switched on")
    expect(toast(page)).to_contain_text("weigh_again runs as soon as a worker is free.")
    page.evaluate("window.same = true")
    expect(page.locator(".lede")).to_contain_text("No job has failed", timeout=20_000)
    assert page.evaluate("window.same"), "without a reload"
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_held_back") == 1, "the one for later"


def test_a_dead_letter_goes_back_and_is_seen_done(held_back, console, open_page, database, request):
    page = open_page(f"{console}/workflows")
    page.get_by_role("link", name="Dead letters 1").click()
    page.get_by_role("link", name="parcels.find_owner").click()
    expect(page.locator("main")).to_contain_text("no address on parcel 7")
    page.go_back()
    Scale.works = True
    request.getfixturevalue("at_work")
    press(page, "Retry…", "Send it back", Reason="address found")
    expect(toast(page)).to_contain_text("find_owner is in its queue again")
    expect(page.locator("main")).to_contain_text("Nothing was given up")
    expect(page.get_by_role("link", name="Dead letters", exact=True)).to_be_visible()
    eventually(lambda: database.value("SELECT count(*) FROM pgmq.q_pgbus_given_up") == 0)
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_given_up_dlq") == 0


def test_a_queue_is_paused_and_purged_only_with_its_name(held_back, console, open_page, database):
    page = open_page(f"{console}/queues")
    row = page.get_by_role("row").filter(has_text="given_up")
    row.get_by_role("button", name="Pause…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("owner on holiday")
    dialog.get_by_role("button", name="Pause the queue").click()
    expect(row).to_contain_text("by dashboard:alice: owner on holiday")

    row = page.get_by_role("row").filter(has_text="held_back")
    row.get_by_role("button", name="Purge…").click()
    dialog.get_by_label("Type").fill("held back")
    dialog.get_by_label("Reason").fill("parcels are lost")
    dialog.get_by_role("button", name="Purge the queue").click()
    expect(dialog).to_contain_text("Type held_back to purge it.")
    expect(dialog.get_by_label("Reason")).to_have_value("parcels are lost")
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_held_back") == 2
    dialog.get_by_label("Type").fill("held_back")
    dialog.get_by_role("button", name="Purge the queue").click()
    expect(toast(page)).to_contain_text("2 jobs of held_back were discarded.")
    assert database.value("SELECT count(*) FROM pgmq.q_pgbus_held_back") == 0
    assert database.value("SELECT count(*) FROM pgbus.failed_jobs") == 0
