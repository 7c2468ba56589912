"""Answers as JSON."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta

from pgbus.engine.insights.documents import Document
from pgbus.engine.insights.figures import Figures


def document(answer: object) -> str:
    """Return the answer as one JSON document; stored documents are parts of it.

    Times are in UTC, lengths of time in seconds.
    It is ASCII, so that no byte of what a host stored can act on a terminal.
    """
    return json.dumps(answer, default=_plain, indent=2)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Document):
        return json.loads(value.encoded or "null")
    if isinstance(value, frozenset):
        return sorted(value)
    if is_dataclass(value):
        told = dict(_member(field.name, getattr(value, field.name)) for field in fields(value))
        return told | _rates(value) if isinstance(value, Figures) else told
    raise TypeError(f"{value!r} has no form in JSON.")


def _rates(figures: Figures) -> dict[str, object]:
    names = ("failure_rate", "reattempt_rate", "skip_rate", "few")
    return {name: getattr(figures, name) for name in names}


def _member(name: str, value: object) -> tuple[str, object]:
    decoded = name.removeprefix("encoded_")
    if decoded != name and isinstance(value, str):
        return decoded, json.loads(value)
    return decoded, value
