"""The viewer's own language and theme, kept in cookies of this dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import redirect, request

from pgbus.dashboard import languages
from pgbus.dashboard.console import THEME_COOKIE, THEMES
from pgbus.dashboard.host import is_safe_link
from pgbus.dashboard.parameters import BadParameter

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from pgbus.dashboard.console import Console

_YEAR = 365 * 24 * 3600


def change(console: Console) -> Response:
    """Remember what was chosen, and go back to where it was."""
    root = console.url("home")
    back = request.form.get("back", "")
    response = redirect(back if is_safe_link(back) and back.startswith(root) else root, 303)
    for name, cookie, choices in (
        ("language", languages.COOKIE, languages.available()),
        ("theme", THEME_COOKIE, THEMES),
    ):
        if (choice := request.form.get(name)) is None:
            continue
        if choice not in choices:
            raise BadParameter(name, choice, ", ".join(choices))
        response.set_cookie(
            cookie, choice, max_age=_YEAR, path=root, samesite="Lax", secure=request.is_secure
        )
    return response
