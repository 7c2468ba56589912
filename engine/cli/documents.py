"""Answers as JSON."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime

from pgbus.engine.insights.documents import Document


def document(answer: object) -> str:
    """Return the answer as one JSON document; stored documents are parts of it, times are in UTC.

    It is ASCII, so that no byte of what a host stored can act on a terminal.
    """
    return json.dumps(answer, default=_plain, indent=2)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Document):
        return json.loads(value.encoded or "null")
    if is_dataclass(value):
        return dict(_member(field.name, getattr(value, field.name)) for field in fields(value))
    raise TypeError(f"{value!r} has no form in JSON.")


def _member(name: str, value: object) -> tuple[str, object]:
    decoded = name.removeprefix("encoded_")
    if decoded != name and isinstance(value, str):
        return decoded, json.loads(value)
    return decoded, value
