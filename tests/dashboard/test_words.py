"""Lengths, distances, moments and numbers, in the viewer's language and zone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.support import NullTranslations, Translations
from markupsafe import Markup

from pgbus.dashboard.words import Words, breakable, code, pgettext

NOW = datetime(2026, 11, 29, 2, 12, 8, tzinfo=UTC)


@pytest.fixture
def words():
    return Words(NullTranslations(), Locale("en"), ZoneInfo("Europe/Berlin"), NOW)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"),
        (0.0404, "40 ms"),
        (0.9999, "1,000 ms"),
        (3.25, "3.2 s"),
        (30.4, "30 s"),
        (59.7, "1 min"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (9180, "2 h 33 min"),
        (3605, "1 h"),
        (86_400 * 3 + 3600 * 4, "3 d 4 h"),
        (86_400 * 1234, "1,234 d"),
        (None, "—"),
    ],
)
def test_a_length_is_told_in_its_two_largest_units(words, seconds, told):
    assert words.duration(seconds) == told


@pytest.mark.parametrize(
    ("distance", "told"),
    [
        (timedelta(seconds=-0.5), "just now"),
        (timedelta(seconds=-4), "4 s ago"),
        (timedelta(minutes=-14, seconds=-40), "14 min ago"),
        (timedelta(0), "in a moment"),
        (timedelta(seconds=4), "in 4 s"),
        (timedelta(minutes=5, seconds=-0.4), "in 5 min"),
        (timedelta(hours=50), "in 2 d 2 h"),
        (timedelta(days=2, seconds=-2), "in 2 d"),
        (timedelta(days=1, minutes=-2), "in 1 d"),
        (timedelta(hours=3, seconds=-20), "in 3 h"),
        (timedelta(hours=3, seconds=-40), "in 2 h 59 min"),
    ],
)
def test_a_distance_is_told_as_far_as_it_matters(words, distance, told):
    assert f">{told}</time>" in words.ago(NOW + distance)


def test_a_moment_has_its_exact_time_in_the_zone_on_hover(words):
    html = words.ago(NOW)
    assert 'title="Sun, Nov 29, 2026 03:12:08 +01:00"' in html
    assert 'datetime="2026-11-29T02:12:08+00:00"' in html


@pytest.mark.parametrize(
    ("moment", "told"),
    [
        (datetime(2026, 11, 29, 5, tzinfo=UTC), "06:00"),
        # It is the 29th in Berlin, though still the 28th in UTC.
        (datetime(2026, 11, 28, 23, 30, tzinfo=UTC), "00:30"),
        (datetime(2026, 11, 28, 22, 30, tzinfo=UTC), "Nov 28 23:30"),
        (datetime(2025, 11, 28, 22, 30, tzinfo=UTC), "Nov 28, 2025 23:30"),
    ],
)
def test_a_clock_time_has_its_date_unless_that_is_todays(words, moment, told):
    assert f">{told}</time>" in words.clock(moment)


def test_a_count_stops_at_ten_thousand(words):
    assert (words.count(10_000), words.count(10_001)) == ("10,000", "10,000+")


def test_days_follow_the_language():
    german = Words(NullTranslations(), Locale("de"), ZoneInfo("UTC"), NOW)
    assert german.exact(NOW).startswith("So., 29. Nov. 2026 02:12:08")


def test_numbers_follow_the_language():
    german = Words(NullTranslations(), Locale("de"), ZoneInfo("UTC"), NOW)
    assert (german.number(1284), german.duration(3.2)) == ("1.284", "3,2 s")


def test_parts_of_a_sentence_are_escaped_unless_they_are_markup(words):
    html = words.rich("On %(step)s: %(error)s", step=code("a<b"), error="<img src=x>")
    assert html == "On <code>a&lt;b</code>: &lt;img src=x&gt;"


def test_the_plural_form_has_its_number_with_separators(words):
    assert words.ngettext("%(num)s run", "%(num)s runs", 1) == "1 run"
    assert words.ngettext("%(num)s run", "%(num)s runs", 1284) == "1,284 runs"
    assert words.nrich("%(num)s run", "%(num)s runs", 2) == Markup("2 runs")


def test_a_message_is_translated_for_what_it_is_used_for(words):
    catalog, compiled = Catalog("de"), BytesIO()
    catalog.add("%(name)s waits", "%(name)s wartet", context="run status")
    catalog.add("%(name)s waits", "%(name)s warten", context="tab: runs")
    write_mo(compiled, catalog)
    compiled.seek(0)
    german = replace(words, translations=Translations(compiled))
    for context, told in (("run status", "x wartet"), ("tab: runs", "x warten")):
        marked = pgettext(context, "%(name)s waits")
        assert german.pgettext(context, "%(name)s waits", name="x") == told
        assert german.gettext(marked, name="x") == german.rich(marked, name="x") == told
        assert words.gettext(marked, name="x") == words.rich(marked, name="x") == "x waits"


def test_a_long_name_may_break_where_its_words_meet():
    assert breakable("shop.OrderWorkflow") == "shop.<wbr>Order<wbr>Workflow"
    assert breakable("<b>_x") == "&lt;b&gt;_<wbr>x"
