"""What an action answered, kept in the session until the next page shows it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from flask import request, session

#: In bytes of JSON, which is what the session's cookie of 4 KB has room for beside the host's own.
_LONGEST = 1200
_MOST = 2
#: A page that refreshes itself is not the one that the answer was meant for.
LIVE_HEADER = "X-Pgbus-Live"


@dataclass(frozen=True, slots=True)
class Toast:
    """An outcome in words; `tone` is good, warn or bad."""

    tone: str
    text: str


def add(mount: str, toast: Toast) -> None:
    """Have the next page of this dashboard show the outcome."""
    kept = [*session.get(_key(mount), ()), asdict(Toast(toast.tone, _cut(toast.text)))]
    session[_key(mount)] = kept[-_MOST:]


def taken(mount: str) -> tuple[Toast, ...]:
    """Return what is to be shown, once."""
    if LIVE_HEADER in request.headers or _key(mount) not in session:
        return ()
    return tuple(Toast(**kept) for kept in session.pop(_key(mount)))


def _cut(text: str) -> str:
    """Return as much of a text as may be kept: abroad a character may take six bytes or twelve."""
    if len(json.dumps(text)) <= _LONGEST:
        return text
    while len(json.dumps(text)) > _LONGEST:
        text = text[: len(text) * 9 // 10]
    return f"{text}…"


def _key(mount: str) -> str:
    return f"_pgbus_toasts_{mount}"
