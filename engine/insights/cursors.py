"""Places in lists as opaque texts: a moment and what tells rows of one moment apart, in base 64."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from pgbus.engine.errors import BadCursor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOMENT = 8


def encode(moment: datetime, rest: bytes) -> str:
    """Return the text of a place."""
    microseconds = ((moment - _EPOCH) // _MICROSECOND).to_bytes(_MOMENT, signed=True)
    return base64.urlsafe_b64encode(microseconds + rest).decode()


def decode(text: str) -> tuple[datetime, bytes]:
    """Return the place that a text tells; raise `ValueError` or `OverflowError` where it tells none."""
    raw = base64.b64decode(text, altchars=b"-_", validate=True)
    microseconds = int.from_bytes(raw[:_MOMENT], signed=True)
    return _EPOCH + microseconds * _MICROSECOND, raw[_MOMENT:]


def no_place(text: str) -> BadCursor:
    """Return what is raised for a text that is no place in a list."""
    return BadCursor(f"{text!r} is no place in a list; take one that a page gave.")
