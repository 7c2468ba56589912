"""The languages of the console: which there are, which one a viewer reads, and their catalogs.

Catalogs are read from their `.po` sources when first needed, once per process: there is
nothing to compile, and nothing of it in the host's own translations.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING

from babel.core import Locale, UnknownLocaleError
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from babel.support import NullTranslations, Translations
from flask import current_app, request
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Iterable

COOKIE = "pgbus_language"
#: The source of all catalogs, which needs none.
SOURCE = "en"
_FOLDER = files("pgbus.dashboard") / "translations"


@functools.cache
def available() -> dict[str, str]:
    """Return the languages' codes, with each one's name in itself, in the order of the codes."""
    codes = {SOURCE, *(entry.name for entry in _FOLDER.iterdir() if entry.is_dir())}
    return {
        code: (Locale.parse(code).get_display_name() or code).capitalize() for code in sorted(codes)
    }


@functools.cache
def options(chosen: str) -> Markup:
    """Return the languages as the options of a field, one of them chosen: the same on every page."""
    return Markup().join(
        Markup('<option value="%s" lang="%s"%s>%s</option>')
        % (code, code.replace("_", "-"), Markup(" selected") if code == chosen else "", name)
        for code, name in available().items()
    )


@functools.cache
def catalog(code: str) -> NullTranslations:
    """Return the translations into one of the available languages."""
    if code == SOURCE:
        return NullTranslations()
    source = _FOLDER / code / "LC_MESSAGES" / "pgbus.po"
    compiled = BytesIO()
    write_mo(compiled, read_po(BytesIO(source.read_bytes()), locale=code))
    compiled.seek(0)
    return Translations(compiled, domain="pgbus")


def chosen(wish: str | None) -> str:
    """Return the code of the viewer's language.

    It is the one they switched to, else `wish` (the host's setting), else the host's
    Flask-Babel locale, else the first that their browser accepts and we have.
    """
    candidates = (request.cookies.get(COOKIE), wish, _of_hosts_babel())
    for candidate in candidates:
        if candidate and (known := _nearest([candidate])):
            return known
    accepted = [language.replace("-", "_") for language in request.accept_languages.values()]
    return _nearest(accepted) or SOURCE


def _nearest(wishes: Iterable[str]) -> str | None:
    """Return the first wish that is available, itself or in its language's plain form."""
    for wish in wishes:
        try:
            locale = Locale.parse(wish.replace("-", "_"))
        except (ValueError, UnknownLocaleError, TypeError):
            continue
        for code in (str(locale), _PARENTS.get(locale.language, locale.language)):
            if code in available():
                return code
    return None


#: A browser may ask for Norwegian without saying which.
_PARENTS = {"no": "nb"}


def _of_hosts_babel() -> str | None:
    if "babel" not in current_app.extensions:
        return None
    from flask_babel import get_locale  # noqa: PLC0415 (only beside a host that has it)

    return str(locale) if (locale := get_locale()) else None
