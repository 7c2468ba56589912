"""Light, dark, and what the system says."""

from __future__ import annotations


def background(page):
    return page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")


def test_a_theme_is_chosen_at_once_and_kept_without_a_flash(console, open_page):
    page = open_page(f"{console}/workflows", color_scheme="light")
    light = background(page)
    page.get_by_role("button", name="Dark").click()
    dark = background(page)
    assert dark != light
    page.reload()
    # The server writes it into the page: no script has to run before the first paint.
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert background(page) == dark
    page.get_by_role("button", name="Auto").click()
    assert background(page) == light


def test_the_language_is_switched_and_kept(console, open_page):
    page = open_page(f"{console}/workflows?status=all")
    page.get_by_label("Language").select_option("de")
    page.get_by_role("button", name="Switch").click()
    assert page.url.endswith("/workflows?status=all")
    assert page.locator("html").get_attribute("lang") == "de"
    page.goto(f"{console}/workflows")
    assert page.locator("html").get_attribute("lang") == "de"


def test_theme_and_language_are_chosen_without_javascript_too(console, open_page):
    page = open_page(f"{console}/workflows", java_script_enabled=False)
    page.get_by_role("button", name="Dark").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
