"""Insights in a real browser: from a class to its runs and back, through another window, a regression seen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from support.refunds import REFUND, a_day
from support.waiting import eventually


@pytest.fixture
def shop(bus):
    a_day(bus)


def lede(page):
    return page.locator(".lede")


def drawn(page):
    """Waits until both charts are drawn; returns the colours of their bars."""
    for figure in ("#throughput", "#durations"):
        page.locator(f"{figure} .bars .point path").first.wait_for(state="attached")
    found = page.eval_on_selector_all(
        "figure .bars .point path", "all => all.map((one) => getComputedStyle(one).fill)"
    )
    return {colour for colour in found if colour != "none"}


def test_from_the_workflows_to_a_class_to_the_runs_at_a_step_and_back(shop, console, open_page):
    page = open_page(f"{console}/workflows")
    page.get_by_role("link", name="Insights by class").click()
    page.get_by_role("link", name=REFUND).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(REFUND)
    sitting = page.locator("tr", has_text="waits for goods_returned").get_by_role("link")
    number = sitting.inner_text().split()[0]
    sitting.click()
    expect(page.locator(".tabs [aria-current] .count")).to_have_text(number)
    expect(page.locator("tbody tr")).to_have_count(int(number))
    page.locator("tbody tr").first.locator(".hero a").click()
    page.get_by_role("list").get_by_role("link", name=REFUND).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(REFUND)
    page.get_by_role("link", name="All runs of this class").click()
    expect(page.locator(".tabs [aria-current]")).to_contain_text("All 203")


def test_a_regression_after_a_deploy_is_seen_and_the_window_switched(shop, console, open_page):
    page = open_page(f"{console}/workflows/definitions/{REFUND}")
    expect(lede(page)).to_contain_text("of the attempts of pay now fail")
    expect(lede(page)).to_contain_text("It began with revision b81d07e")
    expect(page.locator(".badge", has_text="Regression")).to_have_count(1)
    page.get_by_text("How these are counted").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("an error was recorded, whatever followed")).to_be_visible()

    page.get_by_role("link", name="7 d", exact=True).click()
    expect(page).to_have_url(re.compile(r"\?window=7d$"))
    expect(page.get_by_role("link", name="7 d", exact=True)).to_have_attribute(
        "aria-current", "page"
    )
    expect(page.locator(".card", has_text="Started")).to_contain_text("203")
    page.get_by_role("list").get_by_role("link", name="Insights by class").click()
    expect(page.locator("tr", has_text="RefundWorkflow")).to_contain_text("a removed step")


def test_charts_are_drawn_from_their_tables_in_the_colours_of_each_theme(shop, console, open_page):
    page = open_page(f"{console}/workflows/definitions/{REFUND}", color_scheme="light")
    light = drawn(page)
    assert len(light) == 4, "started, finished, cancelled, and how long they took"
    bars = page.locator("#durations .bars .point path").count()
    assert bars == page.locator("#durations tbody tr").count()
    expect(page.locator("#durations .annotation")).to_have_text(["p50", "p95"])
    end = page.locator("#durations tbody").get_attribute("data-end")
    expect(page.locator("#durations .xtick").last).to_have_text(end)
    page.get_by_role("button", name="Dark").click()
    eventually(lambda: drawn(page).isdisjoint(light))
    assert page.evaluate("window.moved") < 0.01


def test_a_class_follows_what_happens_and_keeps_what_was_opened(
    shop, console, open_page, refresh, database
):
    page = open_page(f"{console}/workflows/definitions/{REFUND}?window=1h", clock=True)
    page.clock.run_for(1_000)
    page.locator("#throughput summary").click()
    database.rows("DELETE FROM pgbus.workflows WHERE ended_at IS NULL")
    page.clock.run_for(12_000)
    refresh(page)
    expect(page.locator(".card", has_text="Ongoing now")).to_contain_text("0")
    assert page.locator("#throughput-table").evaluate("one => one.open")
