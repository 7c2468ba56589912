"""Every page under axe, in both themes, wide and narrow, its dialogs open; nothing scrolls sideways."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from parcels import fill, hold_back
from playwright.sync_api import expect
from support.refunds import REFUND, a_day

RULES = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
#: What a theme can change.
COLOURS = {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]}
#: What a language can change.
WORDING = {**RULES, "rules": {rule: {"enabled": False} for rule in COLOURS["runOnly"]}}
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture
def look(open_page):
    """Opens an address without the transitions that would mix the colours of two themes."""

    def look(address):
        return open_page(address, reduced_motion="reduce", viewport=WIDE)

    return look


@pytest.fixture
def runs(bus, driver, database):
    hold_back(bus, driver, database)
    found = fill(bus, driver, database)
    database.rows(
        "INSERT INTO pgbus.processes (process_id, kind, host, pid, revision, details, started_at, heartbeat_at)"
        " SELECT gen_random_uuid(), 'worker', 'worker-' || n, n, 'b81d07e', '{\"queues\": [], \"listening\": false}',"
        " now() - interval '1 hour', now()"
        " - n * interval '1 minute' FROM generate_series(0, 3) n"
    )
    return found


def violations(page, where, rules, within=None):
    """What axe has against the page, each with the first element that has it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    ask = "([within, rules]) => axe.run(within ?? document, rules)"
    found = page.evaluate(ask, [within, rules])["violations"]
    return [
        (where, one["id"], node["target"], node["failureSummary"])
        for one in found
        for node in one["nodes"][:1]
    ]


def looked_at(page, where, within=None):
    """What is wrong with what the page shows, in each theme and width."""
    wrong = violations(page, where, RULES, within)
    page.emulate_media(color_scheme="dark")
    wrong += violations(page, f"{where}, dark", COLOURS, within)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(NARROW)
    wrong += violations(page, f"{where}, narrow", RULES, within) + sideways(page, where)
    page.set_viewport_size(WIDE)
    return wrong


def told(wrong):
    return "\n".join(map(str, wrong))


def sideways(page, where):
    """Whether the page is wider than its window, and by what."""
    return page.evaluate(
        """where => {
            const room = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= room) return [];
            const wide = [...document.querySelectorAll("main *, header *, footer *")]
                .filter((one) => one.getBoundingClientRect().right > room + 1);
            return [[where, "scrolls sideways", wide.slice(0, 3).map((one) => one.outerHTML.slice(0, 120))]];
        }""",
        where,
    )


def test_lists_and_overviews_are_for_everybody(runs, console, look):
    (batch,) = {a.batch_id for a in runs["batch"].steps if a.batch_id}
    page, wrong = look(console), []
    for path in (
        "/",
        "/workflows?status=all",
        "/workflows?error_class=Nobody",
        "/workflows/attention",
        "/batches?status=all",
        f"/batches/{batch}",
        "/queues",
        "/queues/held_back",
        "/jobs",
        "/jobs?show=failed",
        "/messages/pgbus_held_back/1",
        "/processes",
        "/dead-letters",
        "/dead-letters/pgbus_given_up_dlq/1",
    ):
        page.goto(f"{console}{path}")
        if details := page.locator("summary").all():
            details[0].click()
        wrong += looked_at(page, path)
    assert not wrong, told(wrong)


def test_insights_are_for_everybody(bus, console, look):
    a_day(bus)
    page, wrong = look(console), []
    for path in ("/workflows/definitions", f"/workflows/definitions/{REFUND}"):
        page.goto(f"{console}{path}")
        for details in page.locator("main summary").all():
            details.click()
        if "." in path:
            page.locator("#durations .plot-container").wait_for()
        wrong += looked_at(page, path)
    assert not wrong, told(wrong)


def test_the_dialogs_of_groups_are_for_everybody(runs, console, look):
    page, wrong = look(f"{console}/workflows/attention"), []
    for label in ("Resume 1", "Cancel 1", "Run 1 now"):
        page.get_by_role("button", name=label).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        wrong += looked_at(page, label, "dialog:modal")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
    assert not wrong, told(wrong)


def test_the_dialogs_of_the_bus_are_for_everybody(runs, console, look):
    page, wrong = look(console), []
    for path, label in (
        ("/jobs?show=failed", "Retry…"),
        ("/dead-letters", "Discard all…"),
        ("/queues", "Purge…"),
    ):
        page.goto(f"{console}{path}")
        page.get_by_role("button", name=label).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        wrong += looked_at(page, label, "dialog:modal")
    page.get_by_label("Type").fill("another")
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect(page.get_by_role("dialog")).to_contain_text("to purge it.")
    wrong += looked_at(page, "another name", "dialog:modal")
    assert not wrong, told(wrong)


@pytest.mark.parametrize("kind", ["failed", "waiting", "finished", "later"])
def test_a_run_and_its_dialogs_are_for_everybody(runs, console, look, kind):
    page = look(f"{console}/workflows/{runs[kind].workflow_id}")
    page.locator("#timeline-chart .plot-container").wait_for()
    wrong = looked_at(page, kind)
    for offer in page.locator("a[data-dialog]").all():
        name = offer.inner_text()
        offer.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        wrong += looked_at(page, f"{kind}, {name}", "dialog:modal")
        page.keyboard.press("Escape")
    assert not wrong, told(wrong)


def test_a_refused_form_and_a_toast_are_for_everybody(runs, console, look):
    page = look(f"{console}/workflows/{runs['waiting'].workflow_id}")
    page.get_by_label("Payload").fill("[")
    page.get_by_role("button", name="Send the signal").click()
    expect(page.get_by_role("alert")).to_be_visible()
    wrong = looked_at(page, "a refused form")
    page.get_by_label("Signal", exact=True).fill("noticed")
    page.get_by_label("Payload").fill("{}")
    page.get_by_role("button", name="Send the signal").click()
    expect(page.locator(".toast")).to_be_visible()
    wrong += looked_at(page, "a toast")
    assert not wrong, told(wrong)


def test_the_parts_of_a_run_are_for_everybody(runs, console, look):
    address = f"{console}/workflows/{runs['failed'].workflow_id}"
    page, wrong = look(address), []
    (attempt,) = runs["failed"].steps
    for path in (f"attempts/{attempt.step_id}", "signals", "events", "arguments"):
        page.goto(f"{address}/{path}")
        wrong += looked_at(page, path)
    assert not wrong, told(wrong)


def test_pages_that_say_no_are_for_everybody(console, look, serve, monkeypatch):
    from pgbus.engine import errors
    from pgbus.engine.insights import reading

    page, wrong = look(console), []
    for path in (
        "/workflows/01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58",
        "/workflows?created_from=yesterday",
    ):
        page.goto(f"{console}{path}")
        wrong += looked_at(page, path)

    def away(_services):
        raise errors.DatabaseAway("gone")

    monkeypatch.setattr(reading, "reading", away)
    page.goto(f"{console}/workflows")
    wrong += looked_at(page, "away")
    with serve(auth=None) as closed:
        page.goto(closed)
        wrong += looked_at(page, "not let in")
    assert not wrong, told(wrong)


def test_an_empty_console_is_for_everybody(console, look):
    page, wrong = look(console), []
    for path in (
        *("/", "/workflows", "/workflows/attention", "/workflows/definitions", "/batches"),
        *("/queues", "/jobs", "/processes", "/dead-letters"),
    ):
        page.goto(f"{console}{path}")
        wrong += looked_at(page, f"empty {path}")
    assert not wrong, told(wrong)


def test_nothing_scrolls_sideways_in_a_language_of_long_words(runs, console, open_page):
    page, wrong = open_page(console, locale="de-DE", viewport=NARROW), []
    (batch,) = {attempt.batch_id for attempt in runs["batch"].steps if attempt.batch_id}
    insights = ("/workflows/definitions", "/workflows/definitions/parcels.Parcel")
    lists = (
        "/",
        "/workflows?status=all",
        "/workflows/attention",
        *insights,
        "/batches",
        f"/batches/{batch}",
        *("/queues", "/queues/held_back", "/jobs?show=failed", "/processes", "/dead-letters"),
    )
    for path in (*lists, *(f"/workflows/{run.workflow_id}" for run in runs.values())):
        page.goto(f"{console}{path}")
        assert page.locator("html").get_attribute("lang") == "de"
        wrong += sideways(page, path)
    assert not wrong, told(wrong)


def test_pages_in_another_language_are_for_everybody(runs, console, open_page):
    page = open_page(console, locale="de-DE", reduced_motion="reduce", viewport=WIDE)
    wrong = []
    for path in (
        "/",
        "/workflows?status=all",
        "/workflows/attention",
        "/workflows/definitions/parcels.Parcel",
        f"/workflows/{runs['failed'].workflow_id}",
    ):
        page.goto(f"{console}{path}")
        expect(page.locator("html")).to_have_attribute("lang", "de")
        wrong += violations(page, path, WORDING)
    assert not wrong, told(wrong)
