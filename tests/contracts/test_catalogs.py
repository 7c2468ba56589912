"""Every word of the console is in every catalog, translated, and none is there for nothing."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from contracts import catalogs

from pgbus.dashboard.words import Context

_PLACE = re.compile(r"%\((\w+)\)[sd]")
_TAG = re.compile(r"<[^>]*>")
_STRESS = {"<b>", "</b>", "<strong>", "</strong>"}


@pytest.fixture(scope="module")
def messages():
    found = catalogs.extracted()
    return {(message.id, message.context) for message in found if message.id}


@pytest.fixture(params=catalogs.languages())
def language(request):
    return request.param


def test_twelve_languages_are_there_english_among_them():
    assert " ".join(catalogs.languages()) == "da de es fi fr it ja nb nl pt sv"


def test_a_catalog_has_exactly_the_messages_of_the_code(language, messages):
    stored = {(message.id, message.context) for message in catalogs.catalog(language) if message.id}
    mend = "run .venv/bin/python tests/contracts/catalogs.py, and translate what is new"
    assert not messages - stored, f"missing in {language}: {mend}"
    assert not stored - messages, f"stale in {language}: {mend}"


def test_a_catalog_has_a_translation_of_every_message(language):
    stored = catalogs.catalog(language)
    untranslated = [
        (message.context, message.id)
        for message in stored
        if message.id and (message.fuzzy or not all(_forms(message.string)))
    ]
    assert untranslated == []


def test_a_catalog_has_every_plural_form_of_its_language(language):
    stored = catalogs.catalog(language)
    short = [
        message.id
        for message in stored
        if message.pluralizable and len(_forms(message.string)) != stored.num_plurals
    ]
    assert short == []


def test_a_translation_fills_the_places_of_its_message(language):
    for message in catalogs.catalog(language):
        if not message.id:
            continue
        wanted = [set(_PLACE.findall(form)) for form in _forms(message.id)]
        for number, form in enumerate(_forms(message.string)):
            found = set(_PLACE.findall(form))
            # A form for one thing may say what the singular says, or what the plural does; "num" may go.
            fits = wanted if number == 0 else wanted[-1:]
            assert any(one - {"num"} <= found <= one | {"num"} for one in fits), (message.id, form)


def test_a_translation_stresses_what_its_message_does(language):
    for message in catalogs.catalog(language):
        if message.id:
            for form in _forms(message.string):
                assert sorted(_TAG.findall(form)) == sorted(_TAG.findall(_forms(message.id)[-1]))


def test_messages_have_no_markup_but_stress(messages):
    texts = [text for message, _context in messages for text in _forms(message)]
    assert [text for text in texts if "&" in text or {*_TAG.findall(text)} - _STRESS] == []


def test_a_message_has_one_plural():
    """A catalog finds both forms by the singular: of two plurals it would have one."""
    singulars = [(_forms(message)[0], context) for message, context in catalogs.marked()]
    assert {one for one in singulars if singulars.count(one) > 1} == set()


def test_a_context_is_one_of_those_that_the_code_knows(messages):
    assert {context for _message, context in messages if context} == set(get_args(Context))


def test_a_message_with_a_context_is_never_without_one(messages):
    """A word that other languages word by its use is marked with it everywhere."""
    parted = {message for message, context in messages if context}
    assert {message for message, context in messages if not context} & parted == set()


def _forms(text):
    return (text,) if isinstance(text, str) else tuple(text)
