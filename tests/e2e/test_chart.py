"""A run's timeline, drawn under the page's content security policy."""

from __future__ import annotations

import pytest
from parcels import jam
from support.waiting import eventually

NAME = '<b>bold</b><a href="javascript:alert(1)">&lt;x&gt;</a>'


@pytest.fixture
def drawn(console, open_page):
    """Opens the page of a run, and waits for its chart."""

    def drawn(run, **options):
        page = open_page(f"{console}/workflows/{run.workflow_id}", **options)
        page.locator("#timeline-chart .bars .point path").first.wait_for()
        return page

    return drawn


def fills(page):
    """The colours of the bars, also of those that are hatched."""
    painted = "#timeline-chart .bars .point path, #timeline-chart pattern rect"
    found = page.eval_on_selector_all(
        painted, "all => all.map((one) => getComputedStyle(one).fill)"
    )
    return {colour for colour in found if colour.startswith("rgb")}


def hovered(page):
    """What stands in the note beside a bar."""
    bars = page.locator("#timeline-chart .bars .point path")
    page.locator("#timeline-chart").scroll_into_view_if_needed()
    box = bars.last.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    note = page.locator("#timeline-chart .hovertext")
    note.first.wait_for()
    return note.first.text_content()


def test_a_chart_has_a_bar_for_each_part_of_an_attempt_in_the_colours_of_the_theme(
    bus, driver, drawn
):
    (run,) = jam(bus, driver)
    page = drawn(run, color_scheme="light")
    assert "weigh 1" in page.locator("#timeline-chart .ytick").all_text_contents()
    light = fills(page)
    assert len(light) >= 2, "queued, failed, paused"
    page.get_by_role("button", name="Dark").click()
    eventually(lambda: fills(page).isdisjoint(light))
    assert len(fills(page)) == len(light)


def test_a_bar_tells_in_words_what_it_is(bus, driver, drawn):
    (run,) = jam(bus, driver)
    told = hovered(drawn(run))
    assert "weigh 1" in told


def test_a_name_with_markup_is_drawn_as_it_is(bus, driver, database, drawn):
    (run,) = jam(bus, driver)
    database.rows("UPDATE pgbus.workflow_steps SET step_name = %s", NAME[:29])
    page = drawn(run)
    shown = page.locator("#timeline-chart .ytick").all_text_contents()
    assert any("<b>bold</b>" in label for label in shown), shown
    assert NAME[:29] in hovered(page)
    assert page.locator("#timeline-chart a").count() == 0


def test_the_chart_can_be_reached_and_scrolled_where_it_is_wider_than_the_window(
    bus, driver, drawn
):
    (run,) = jam(bus, driver)
    page = drawn(run, viewport={"width": 360, "height": 740})
    frame = page.get_by_role("region", name="Timeline chart")
    assert frame.evaluate("frame => frame.scrollWidth > frame.clientWidth")
    frame.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.scroll').scrollLeft > 0")


def test_a_chart_grows_with_its_run(bus, driver, drawn):
    (run,) = jam(bus, driver)
    page = drawn(run, clock=True)
    run.resume()
    driver.drain()
    page.clock.run_for(6_000)
    page.get_by_text("weigh 2").first.wait_for()
    page.wait_for_function(
        "() => [...document.querySelectorAll('#timeline-chart .ytick')].some((one) => one.textContent === 'weigh 2')"
    )
