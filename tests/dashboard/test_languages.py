"""Which language a viewer reads, and what its catalog gives."""

from __future__ import annotations

import pytest

from pgbus.dashboard import languages


def language_of(client, **headers):
    text = client.get("/pgbus/workflows", headers=headers).text
    return text.split('<html lang="')[1].split('"')[0]


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        (None, "en"),
        ("de", "de"),
        ("de-CH", "de"),
        ("xx, de;q=0.5", "de"),
        ("en;q=0.4, de;q=0.9", "de"),
        ("tlh, *;q=0.1", "en"),
        (";;;", "en"),
    ],
)
def test_it_is_the_browsers_first_that_there_is(client, accepted, language):
    assert language_of(client, **({"Accept-Language": accepted} if accepted else {})) == language


def test_the_hosts_setting_wins_over_the_browser(make_site):
    client = make_site(locale="de").test_client()
    assert language_of(client, **{"Accept-Language": "en"}) == "de"


@pytest.mark.parametrize("wish", ["xx", "not a language", "../de", ""])
def test_a_setting_that_is_no_language_falls_back_to_the_browser(make_site, wish):
    client = make_site(locale=lambda _request: wish).test_client()
    assert language_of(client, **{"Accept-Language": "de"}) == "de"


def test_the_viewers_own_choice_wins(make_site, press, client):
    assert press("/pgbus/preferences", language="de").status_code == 303
    assert language_of(client, **{"Accept-Language": "en"}) == "de"


def test_a_language_that_there_is_not_is_refused(press):
    assert press("/pgbus/preferences", language="xx").status_code == 400


def test_a_cookie_that_is_no_language_changes_nothing(client):
    client.set_cookie("pgbus_language", "../../de")
    assert language_of(client) == "en"


def test_each_language_is_offered_in_its_own_words():
    assert languages.available()["de"] == "Deutsch"
    assert languages.available()["en"] == "English"


def test_the_language_of_a_page_is_the_chosen_one_of_its_options(client):
    client.set_cookie("pgbus_language", "de")
    shown = client.get("/pgbus/").text
    assert '<option value="de" lang="de" selected>Deutsch</option>' in shown
    assert '<option value="nb" lang="nb">Norsk bokmål</option>' in shown
    assert shown.count(" selected>") == 1


def test_a_german_sentence_has_its_plural():
    german = languages.catalog("de")
    assert german.gettext("Workflows") == "Workflows"
    assert german.gettext("just now") == "gerade eben"
