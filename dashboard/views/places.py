"""Where in a list a page begins, and what is said of an address whose place or queue is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import request

from pgbus.dashboard.parameters import BadParameter, Parameters
from pgbus.dashboard.words import _
from pgbus.engine.errors import BadCursor, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Response

    from pgbus.dashboard.console import Console, Page


def place(given: Parameters) -> tuple[str | None, str | None]:
    """Return the cursors `after` and `before`, of which one at most is given."""
    after, before = given.text("after"), given.text("before")
    refuse_both(after, before)
    return after, before


def refuse_both(after: object, before: object) -> None:
    """Raise `BadParameter` when a page would begin at two places."""
    if after is not None and before is not None:
        raise BadParameter("before", str(before), _("nothing, where the other cursor is given"))


def listed(console: Console, load: Callable[..., Page], *, status: int = 200) -> Response:
    """Return the page of a list; raise `BadParameter` for a place that no page of it gave."""
    after, before = place(Parameters(request.args))
    try:
        return console.show(load, status=status)
    except BadCursor:
        name, value = ("after", after) if after else ("before", before)
        wanted = _("a place of a page that this console linked to")
        raise BadParameter(name, value or "", wanted) from None


def narrowed(console: Console, load: Callable[..., Page], queue: str | None) -> Response:
    """Return the page of a list that the address narrows to a queue, which there has to be."""
    try:
        return listed(console, load)
    except QueueNotFound:
        if queue is None:
            raise
        raise BadParameter("queue", queue, _("the name of a queue")) from None
