"""What the insights say as JSON, without what the host's data is when it stays secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

from pgbus.engine.insights.documents import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import DataclassInstance

REDACTED = "[redacted]"

#: What else the host's code says in its own words, beside its documents.
_SECRET_TEXTS = frozenset({"error_message", "newest_error_message", "encoded_error"})

_ENCODED = "encoded_"

#: The SDK writes 255 levels and reads 200, those of the answer around a document among them.
_DEEPEST = 150


def plain(value: object, *, shown: bool) -> object:
    """Return the value as JSON has it; documents and error texts only when they are to be `shown`.

    A dataclass is an object of its fields and properties, those that are None left out. Times are in UTC,
    durations in seconds.
    """
    match value:
        case Document():
            return _document(value) if shown else REDACTED
        case StrEnum():
            return value.value
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): plain(one, shown=shown) for key, one in value.items()}
        case list() | tuple() | frozenset():
            return [plain(one, shown=shown) for one in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return dict(_members(value, shown=shown))
        case _:
            return value


def _members(value: DataclassInstance, *, shown: bool) -> Iterator[tuple[str, object]]:
    for name in _names(value):
        member = getattr(value, name)
        if member is None:
            continue
        told = name.removeprefix(_ENCODED)
        if name in _SECRET_TEXTS and not shown:
            yield told, REDACTED
        elif told != name:
            yield told, json.loads(member)
        else:
            yield told, plain(member, shown=shown)


def _names(value: DataclassInstance) -> Iterable[str]:
    yield from (field.name for field in fields(value))
    yield from (name for name, member in vars(type(value)).items() if isinstance(member, property))


def _document(document: Document) -> object:
    if document.encoded is None:
        return f"[left out: {document.size} bytes]"
    too_deep = f"[left out: nested deeper than {_DEEPEST} levels]"
    try:
        value = json.loads(document.encoded, parse_float=_number)
    except RecursionError:
        return too_deep
    return value if _within(_DEEPEST, value) else too_deep


def _number(written: str) -> float | str:
    """Return the number, as its text where a float would be another."""
    number = float(written)
    return number if Decimal(repr(number)) == Decimal(written) else written


def _within(levels: int, value: object) -> bool:
    """Tell whether the value is nested no deeper than so many levels."""
    match value:
        case dict():
            parts = [*value.values()]
        case list():
            parts = value
        case _:
            return True
    return levels > 0 and all(_within(levels - 1, part) for part in parts)
