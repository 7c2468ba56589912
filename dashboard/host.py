"""What the host's application decides: who looks, what they may do, how things are shown to them.

Each of its callables may raise: then nobody gets in, nothing is allowed, nothing secret is shown,
and the log says which one it was.
"""

from __future__ import annotations

import hmac
import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from werkzeug.local import LocalProxy
from werkzeug.wrappers import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Request

_log = logging.getLogger("pgbus.dashboard")

T = TypeVar("T")

ACTOR = "dashboard"
#: What is shown in place of a value that `redact` failed on.
HIDDEN = "[hidden: redact raised]"
#: And of a text of which only the beginning is at hand.
PARTIAL = "[…]"
_LONGEST_NAME = 200


def allow_anyone(_request: Request) -> bool:
    """Let everybody in: for a machine that only you can reach."""
    return True


def logged_in(_request: Request) -> bool:
    """Let in whoever Flask-Login knows; which of them may act is for `can` to say."""
    from flask_login import current_user  # noqa: PLC0415 (only hosts that use it have it)

    return bool(current_user.is_authenticated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host's settings, each asked in a way that its failing cannot open anything."""

    auth: Callable[[Request], object] | None = None
    can: Callable[[Request, str], object] | None = None
    web_actor: Callable[[Request], str | None] | None = None
    subject_url: Callable[[str, str], str | None] | None = None
    redact: Callable[[str, Any], Any] | None = None
    time_zone: str | Callable[[Request], str | None] | None = None
    locale: str | Callable[[Request], str | None] | None = None
    metrics_token: str | None = None

    def lets_in(self, request: Request) -> bool:
        """Tell whether the request may see anything."""
        return self.auth is not None and _granted("auth", self.auth, request)

    def has_metrics_token(self, request: Request) -> bool:
        """Tell whether the request carries the token that lets it have the metrics."""
        if not self.metrics_token:
            return False
        # Werkzeug's own reading of the header raises on some that are not ASCII.
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode("latin-1", "replace"), self.metrics_token.encode()
        )

    def allows(self, request: Request, action: str) -> bool:
        """Tell whether the request may ask for this verb."""
        return self.can is None or _granted("can", self.can, request, action)

    def actor(self, request: Request) -> str:
        """Return who acts, for the audit trail."""
        name = (
            _asked("web_actor", self.web_actor, request, otherwise=None) if self.web_actor else None
        )
        if self.web_actor and not (isinstance(name, str) and name.strip()):
            _log.warning(
                "web_actor gave no name but %r; the action is recorded as %s.", name, ACTOR
            )
            return ACTOR
        return f"{ACTOR}:{name.strip()[:_LONGEST_NAME]}" if name else ACTOR

    def url_of_subject(self, subject_type: str, subject_id: str) -> str | None:
        """Return the subject's page, when the host has a safe one."""
        if self.subject_url is None:
            return None
        url = _asked("subject_url", self.subject_url, subject_type, subject_id, otherwise=None)
        return url if isinstance(url, str) and is_safe_link(url) else None

    def shown(self, kind: str, value: object, *, whole: bool = True) -> object:
        """Return what may be shown of a document or an error's text.

        Of a text whose end is missing nothing is, where the host redacts: half a secret is not known for one.
        """
        if self.redact is None:
            return value
        return _asked("redact", self.redact, kind, value, otherwise=HIDDEN) if whole else PARTIAL

    def zone(self, request: Request, configured: str) -> ZoneInfo:
        """Return the zone of all times on a page; the bus's own where the host names none."""
        name = self.time_zone
        if callable(name):
            name = _asked("time_zone", name, request, otherwise=None)
        if not name:
            return ZoneInfo(configured)
        return _asked("time_zone", ZoneInfo, str(name), otherwise=ZoneInfo(configured))

    def language(self, request: Request) -> str | None:
        """Return the language that the host wants, None when it leaves that to the viewer."""
        wish = self.locale
        if callable(wish):
            wish = _asked("locale", wish, request, otherwise=None)
        return str(wish) if wish else None


def is_safe_link(url: str) -> bool:
    """Tell whether a URL is an absolute one of the web with a host, or a path on this site.

    Browsers read a backslash as a slash and drop control characters, so neither may stand in it.
    """
    if "\\" in url or any(character <= " " for character in url):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if parts.scheme in ("http", "https"):
        return bool(host)
    return (
        not parts.scheme and not parts.netloc and url.startswith("/") and not url.startswith("//")
    )


def _granted(setting: str, ask: Callable[..., object], *args: object) -> bool:
    """Tell whether the host says yes; what only looks like a yes is none."""
    return bool(_asked(setting, lambda: _truth(ask(*args)), otherwise=False))


def _truth(answer: object) -> bool:
    """Return the answer's truth value.

    A coroutine that nobody awaited, and a response that would have led to a login page, are true to
    Python, and mean no such thing.
    """
    if type(answer) is LocalProxy:
        answer = answer._get_current_object()  # noqa: SLF001 (werkzeug's way to what it stands for)
    if inspect.isawaitable(answer) or isinstance(answer, Response):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(
            f"it returned a {type(answer).__name__}; return True or False, from a plain function."
        )
    return bool(answer)


def _asked(setting: str, ask: Callable[..., Any], *args: object, otherwise: T) -> T | Any:
    """Return the host's answer, or the fallback when it raises."""
    try:
        return ask(*args)
    except Exception:  # noqa: BLE001 (the host's own code may raise anything)
        _log.exception("The dashboard's %s raised; it counts as %r.", setting, otherwise)
        return otherwise
