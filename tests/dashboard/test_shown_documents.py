"""Stored JSON as it is shown."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations

from pgbus.dashboard.console import Viewer
from pgbus.dashboard.presenters.documents import Shelf, pretty, readable, size
from pgbus.dashboard.words import Words
from pgbus.engine.insights.documents import Document

WORDS = Words(NullTranslations(), Locale("en"), ZoneInfo("UTC"), datetime(2026, 11, 29, tzinfo=UTC))


def as_stored(_kind, value):
    return value


def viewer(shown=as_stored):
    return Viewer(
        words=WORDS, settings=None, may=bool, shown=shown, subject_url=lambda *_: None, url=str
    )


@pytest.mark.parametrize(
    "text",
    [
        "9223372036854775807",
        "8835412297113406712345678901234567890",
        "0.1",
        "149.90",
        "1.000000000000000000001",
        "-0.0",
        "12345678901234567890.12345678901234567890",
        "true",
        "null",
        '"Zoë \\"B\\" \\\\ 東京"',
    ],
)
def test_a_value_is_shown_as_postgresql_wrote_it(text):
    assert readable(text) == text
    assert readable(f'{{"a": [{text}]}}') == f'{{"a": [{text}]}}'


def test_a_document_that_does_not_fit_a_line_is_shown_over_several():
    items = [{"sku": "T-204", "qty": 2}, {"sku": "Z-9", "qty": 1}]
    document = {"customer": "Zoë Brændstrup", "items": items, "none": [], "note": "a" * 60}
    assert readable(json.dumps(document)) == (
        "{\n"
        '  "customer": "Zoë Brændstrup",\n'
        '  "items": [{"sku": "T-204", "qty": 2}, {"sku": "Z-9", "qty": 1}],\n'
        '  "none": [],\n'
        f'  "note": "{"a" * 60}"\n'
        "}"
    )
    assert readable(json.dumps(["b" * 40, "c" * 40])) == (f'[\n  "{"b" * 40}",\n  "{"c" * 40}"\n]')


def test_a_document_is_escaped_and_keeps_its_quotes():
    shown = readable('{"<b>": "</pre><script>&amp;"}')
    assert shown == '{"&lt;b&gt;": "&lt;/pre&gt;&lt;script&gt;&amp;amp;"}'


def test_the_host_gets_the_decoded_document_and_what_it_gives_is_shown():
    seen = []

    def redact(kind, value):
        seen.append((kind, value))
        return {**value, "card": "no"}

    text = '{"card": "4111", "total": 149.90, "id": 92233720368547758}'
    shelf = Shelf(viewer(redact), room=100)
    shown = shelf.view(Document(text, len(text)), "arguments", "/all").text
    assert shown == '{"card": "no", "total": 149.90, "id": 92233720368547758}'
    assert seen == [("arguments", {"card": "4111", "total": 149.9, "id": 92233720368547758})]


@pytest.mark.parametrize(
    ("given", "shown"), [("[hidden]", '"[hidden]"'), (date(2026, 1, 1), "2026-01-01")]
)
def test_what_the_host_gives_need_be_no_document(given, shown):
    assert readable("{}", lambda _: given) == shown


def test_a_document_too_deep_to_be_laid_out_is_shown_as_it_is_and_still_redacted():
    deep = "[" * 5000 + "]" * 5000
    assert readable(deep) == deep
    assert readable(deep, lambda _: "no") == "no"


def test_empty_containers_and_tuples_have_a_form():
    assert pretty({}) == "{}"
    assert pretty([]) == "[]"
    assert pretty((1, "a")) == '[1, "a"]'


@pytest.mark.parametrize(
    ("number", "told"),
    [(74, "74 bytes"), (999, "999 bytes"), (2149, "2.1 KB"), (131_072, "131.1 KB")],
)
def test_a_size_is_told_in_words(number, told):
    assert size(number, WORDS) == told


def test_documents_are_shown_until_they_fill_the_page():
    shelf = Shelf(viewer(), room=10)
    first = shelf.view(Document('"123456"', 8), "output", "/first")
    second = shelf.view(Document('"1"', 3), "output", "/second")
    third = shelf.view(Document("1", 1), "output", "/third")
    assert (first.text, first.short) == ('"123456"', True)
    assert (second.text, second.href, second.size) == (None, "/second", "3 bytes")
    assert third.text == "1"


def test_one_that_was_not_loaded_leads_to_where_it_is_shown():
    view = Shelf(viewer(), room=10**6).view(Document(None, 5000), "payload", "/all")
    assert (view.text, view.href, view.size, view.short) == (None, "/all", "5 KB", False)
