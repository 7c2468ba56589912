"""The messages of the dashboard's code and templates, and its catalogs.

Run as a program it renews the catalogs: new messages come in untranslated, unused ones go.
"""

from __future__ import annotations

from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

DASHBOARD = Path(__file__).parents[2] / "dashboard"
TRANSLATIONS = DASHBOARD / "translations"
_KEYWORDS = {
    "_": None,
    "gettext": None,
    "rich": None,
    "pgettext": ((1, "c"), 2),
    "ngettext": (1, 2),
    "nrich": (1, 2),
}
#: Without the moment and the tool, which would change with every run.
_HEADER = {"domain": "pgbus", "project": "pgbus", "fuzzy": False}
_METHODS = [("**.py", "python"), ("templates/**.html", "jinja2")]
_OPTIONS = {"templates/**.html": {"trim_blocks": "true", "lstrip_blocks": "true"}}


def extracted() -> Catalog:
    """Returns every message that the dashboard's code and templates mark."""
    catalog = Catalog(**_HEADER)
    for message, context in marked():
        catalog.add(message, context=context)
    return catalog


def marked() -> set[tuple[str | tuple[str, ...], str | None]]:
    """Returns what the code marks, each with its context; messages with a plural as pairs."""
    found = extract_from_dir(DASHBOARD, _METHODS, _OPTIONS, keywords=_KEYWORDS)
    return {(message, context) for _file, _line, message, _comments, context in found}


def languages() -> list[str]:
    """Returns the languages that have a catalog."""
    return sorted(folder.name for folder in TRANSLATIONS.iterdir() if folder.is_dir())


def catalog_file(language: str) -> Path:
    return TRANSLATIONS / language / "LC_MESSAGES" / "pgbus.po"


def catalog(language: str) -> Catalog:
    """Returns the catalog of a language as it is stored."""
    with catalog_file(language).open("rb") as stored:
        return read_po(stored, locale=language, domain="pgbus")


def renew(language: str) -> None:
    """Brings the stored catalog to the extracted messages; what was translated stays."""
    path = catalog_file(language)
    known = catalog(language) if path.exists() else Catalog(language, **_HEADER)
    known.update(
        extracted(), no_fuzzy_matching=True, update_header_comment=False, update_creation_date=False
    )
    known.obsolete.clear()
    known.fuzzy = False
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stored:
        write_po(stored, known, width=100, sort_output=True, no_location=True, omit_header=False)


if __name__ == "__main__":
    for each in languages():
        renew(each)
