"""Stored JSON as it is shown: every number as PostgreSQL wrote it, and only what the host lets be seen."""

from __future__ import annotations

import functools
import html
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.documents import Document

#: A part that fits into this many characters stays on one line.
_LINE = 60
_INDENT = "  "
_KILO = 1000


@dataclass(frozen=True, slots=True)
class DocumentView:
    """A document to be read; `text` is None for one that is shown on a page of its own, at `href`."""

    text: Markup | None
    size: str
    href: str

    @property
    def short(self) -> bool:
        """Tell whether it stands on one line."""
        return self.text is not None and "\n" not in self.text


class _Written(float):
    """A number with a fraction, and how it was written: a script would round it."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number


class Shelf:
    """Shows documents until they together have so many bytes; from then on where each is shown."""

    def __init__(self, viewer: Viewer, room: int) -> None:
        self._viewer = viewer
        self._room = room

    def view(self, stored: Document, kind: str, href: str) -> DocumentView:
        """Return a document of a kind that the host may redact."""
        text = None
        if stored.encoded is not None and stored.size <= self._room:
            self._room -= stored.size
            text = readable(stored.encoded, functools.partial(self._viewer.shown, kind))
        return DocumentView(text, size(stored.size, self._viewer.words), href)


def readable(encoded: str, redact: Callable[[object], object] | None = None) -> Markup:
    """Return a document over several lines, after `redact`; one too deep, or with too long a number, as it stands.

    Its quotes stay as they are, which in a text they may: as entities they would double many a document.
    """
    try:
        value = json.loads(encoded, parse_float=_Written)
        text = pretty(redact(value) if redact else value)
    except (RecursionError, ValueError):
        text = str(redact(encoded) if redact else encoded)
    return Markup(html.escape(text, quote=False))  # noqa: S704 (escaped right here)


def call(encoded: str, redact: Callable[[object], object]) -> str:
    """Return a message's body after `redact` in one line: of a job what it is called with."""
    try:
        value = redact(json.loads(encoded, parse_float=_Written))
        match value:
            case {"job": str(), "arguments": {"args": list(args), "kwargs": dict(kwargs)}}:
                named = (f"{name}={_compact(part)}" for name, part in kwargs.items())
                return f"({', '.join((*map(_compact, args), *named))})"
        return _compact(value)
    except (RecursionError, ValueError):
        return str(redact(encoded))


def pretty(value: object, margin: str = "") -> str:
    """Return a value as JSON that people can read; what is none as Python shows it."""
    compact = _compact(value)
    if len(margin) + len(compact) <= _LINE or not isinstance(value, (dict, list)) or not value:
        return compact
    deeper = margin + _INDENT
    if isinstance(value, dict):
        parts = [f"{_quoted(name)}: {pretty(part, deeper)}" for name, part in value.items()]
        opened, closed = "{", "}"
    else:
        parts = [pretty(part, deeper) for part in value]
        opened, closed = "[", "]"
    lines = ",\n".join(f"{deeper}{part}" for part in parts)
    return f"{opened}\n{lines}\n{margin}{closed}"


def size(number: int, words: Words) -> str:
    """Return how large a document is."""
    if number < _KILO:
        return words.ngettext("%(num)s byte", "%(num)s bytes", number)
    return words.gettext("%(number)s KB", number=words.number(round(number / _KILO, 1)))


def _compact(value: object) -> str:
    match value:
        case dict():
            parts = (f"{_quoted(name)}: {_compact(part)}" for name, part in value.items())
            return f"{{{', '.join(parts)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_compact, value))}]"
        case _Written():
            return value.text
        case None | bool() | int() | float() | str():
            return json.dumps(value, ensure_ascii=False)
    return str(value)


def _quoted(name: object) -> str:
    return json.dumps(str(name), ensure_ascii=False)
