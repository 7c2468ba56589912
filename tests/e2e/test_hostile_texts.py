"""Hostile texts in every field of every page are texts: in the real browser nothing of them comes to life."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import pytest
from corpus import CORPUS, as_json, queue_of, write

#: What no text may have become; and whether the page shows it as it is.
_LOOK = """texts => {
    const alive = [...document.querySelectorAll("*")].filter((one) =>
        one.matches("script:not([src]), iframe, object, embed, img, base, meta[http-equiv], style:not(:empty)")
        || [...one.attributes].some(({ name, value }) => name.startsWith("on")
            || ["href", "src", "action", "formaction", "xlink:href"].includes(name)
                && !/^(#|\\/pgbus|$)/.test(value)));
    const shown = document.body.textContent;
    return {
        alive: alive.map((one) => one.outerHTML.slice(0, 200)),
        missing: texts.filter((text) => !shown.includes(text)),
        wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    };
}"""


@pytest.fixture
def written(bus, driver, database):
    return write(bus, driver, database)


@pytest.fixture
def console(serve):
    """The console of a host that makes a subject's address of whatever it is."""
    with serve(subject_url=lambda _type, identifier: identifier) as address:
        yield address


def beginning(text, length=80):
    """As much of a text as a page shows that cuts long ones."""
    return text[:length]


def takes(address):
    """Whether the console takes the address: a parameter of a thousand characters it refuses."""
    return CORPUS["long"][:1001] not in address


def expect_texts(page, address, *texts):
    """Opens the page; nothing in it may live, and it has to show the texts."""
    assert page.goto(address).status == 200
    found = page.evaluate(_LOOK, list(texts))
    assert found == {"alive": [], "missing": [], "wide": False}, (address, found)


def test_lists_show_hostile_texts_as_they_are(written, console, open_page):
    page = open_page("about:blank")
    beginnings = [beginning(text) for text in CORPUS.values()]
    for path in (
        "/workflows?status=all",
        "/workflows/attention",
        "/workflows/definitions",
        "/batches?status=all",
        "/queues",
        "/jobs",
        "/jobs?show=failed",
        "/dead-letters",
    ):
        expect_texts(page, f"{console}{path}", *beginnings)
    for address in (console, f"{console}/processes"):
        expect_texts(page, address, *(beginning(text, 20) for text in CORPUS.values()))


def test_the_pages_of_a_run_and_its_batch_show_hostile_texts_as_they_are(
    written, console, open_page
):
    page = open_page("about:blank", viewport={"width": 360, "height": 740})
    for name, (run, batch) in written.items():
        text, (attempt,) = CORPUS[name], run.reload().steps
        (signal,) = run.signals
        address = f"{console}/workflows/{run.workflow_id}"
        expect_texts(page, address, beginning(text), beginning(as_json(text)))
        if "<" in text:
            page.locator("#timeline-chart .plot-container").wait_for()
        expect_texts(page, f"{address}/attempts/{attempt.step_id}", text, as_json(text))
        expect_texts(page, f"{address}/signals/{signal.signal_id}", as_json(text))
        expect_texts(page, f"{address}/arguments", as_json(text))
        expect_texts(page, f"{address}/events", beginning(text))
        of_class = f"{console}/workflows/definitions/{quote(text, safe='')}"
        expect_texts(page, of_class, text)
        expect_texts(page, f"{console}/batches/{batch}", beginning(text), beginning(as_json(text)))
        expect_texts(page, f"{console}/messages/{queue_of(name)}/1", as_json(text))
        expect_texts(page, f"{console}/dead-letters/{queue_of(name)}_dlq/1", text, as_json(text))


def test_queues_of_others_with_odd_names_do_no_harm_to_home(database, console, open_page):
    names = ["<b>bold</b>", 'obrien"', "{schema} {table}", "%s %(x)s :name", "\u202eabc"]
    for name in names:
        database.rows("SELECT pgmq.create(%s)", name)
    page = open_page("about:blank")
    expect_texts(page, console)


def test_dialogs_and_toasts_show_hostile_texts_as_they_are(written, console, open_page):
    page = open_page("about:blank")
    for path, label in (("/workflows/attention", "Cancel"), ("/dead-letters", "Retry…")):
        page.goto(f"{console}{path}")
        asks = page.get_by_role("button", name=label)
        addresses = asks.evaluate_all("links => links.map((one) => one.href)")
        assert len(addresses) >= len(CORPUS)
        for address in filter(takes, addresses):
            expect_texts(page, address)
            page.get_by_role("dialog").wait_for()
    run, _batch = written["format"]
    page.goto(f"{console}/workflows/{run.workflow_id}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_label("Reason").fill(CORPUS["script"])
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.locator(".toast").wait_for()
    assert page.evaluate(_LOOK, [CORPUS["script"]])["alive"] == []


def test_every_link_of_a_list_of_hostile_names_leads_somewhere(written, console, open_page):
    page = open_page("about:blank")
    for path in (
        "/workflows?status=all",
        "/workflows/attention",
        "/workflows/definitions",
        "/batches?status=all",
        "/jobs?show=failed",
        "/dead-letters",
    ):
        page.goto(f"{console}{path}")
        links = page.eval_on_selector_all(
            "main a[href]", "links => [...new Set(links.map((one) => one.href))]"
        )
        refused = [link for link in filter(takes, links) if page.request.get(link).status != 200]
        assert refused == []


def test_a_filter_repeats_hostile_texts_as_they_are(console, open_page):
    page = open_page("about:blank")
    for text in CORPUS.values():
        asked = {"current_step": text[:500], "error_class": text[:500], "subject_id": text[:500]}
        expect_texts(page, f"{console}/workflows?{urlencode(asked)}", text[:500])
        assert page.locator("#f-step").input_value() == text[:500]
