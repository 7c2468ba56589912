"""The pages that say no: what is wrong, why, and the one useful next thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flask import Response, g, request
from markupsafe import Markup

from pgbus.dashboard.parameters import BadParameter
from pgbus.dashboard.words import Words, code, quoted
from pgbus.engine.errors import (
    BatchNotFound,
    ClassNotFound,
    DatabaseAway,
    MessageNotFound,
    QueueNotFound,
    ReadTimeout,
    RunNotFound,
    SchemaOutdated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pgbus.dashboard.console import Console

#: Set in `g` from the moment on when a verb may have been done.
ASKED = "_pgbus_asked"
#: After so many seconds a browser asks again by itself, with or without JavaScript.
_ASK_AGAIN = "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A page that says no; `again` has it offer to ask once more."""

    template: ClassVar[str] = "refusal.html"

    status: int
    tone: str = "warn"
    icon: str
    title: str
    text: str
    example: str = ""
    again: bool = False
    href: str
    link: str


def not_let_in(console: Console) -> Response:
    """Say who decides who is let in; nothing else of the dashboard is told, not even its look."""
    words = console.viewer().words
    if console.host.auth is None:
        title = words.gettext("Nobody may look yet")
        text = words.gettext(
            "The application has not said who is let in. Give the blueprint %(setting)s:",
            setting="auth",
        )
        example = "create_blueprint(bus, auth=lambda request: current_user.is_staff)"
    else:
        title = words.gettext("You are not let in")
        text = words.gettext(
            "Sign in to the application with an account that may operate its workflows."
        )
        example = ""
    return Response(
        Markup(
            '<!doctype html><html lang="%s"><meta charset="utf-8"><meta name="color-scheme" '
            'content="light dark"><meta name="viewport" content="width=device-width"><title>%s</title>'
            "<main><h1>%s</h1><p>%s</p><p><code>%s</code></p></main>"
        )
        % (words.tag, title, title, text, example),
        403,
    )


def not_found(console: Console, error: Exception | None = None) -> Response:
    """Say that there is no such thing."""
    words = console.viewer().words
    match error:
        case RunNotFound():
            title = words.gettext("No such run")
            days = console.bus.settings.workflow_retention
            text = words.gettext("This run is not in the tables.")
            if days is not None:
                text += " " + words.gettext(
                    "Runs that ended more than %(time)s ago are deleted.",
                    time=words.duration(days.total_seconds()),
                )
        case BatchNotFound():
            title = words.gettext("No such batch")
            text = words.gettext(
                "This batch is not in the tables; finished ones are deleted after a time."
            )
        case ClassNotFound():
            title = words.gettext("No such class")
            text = words.gettext(
                "No workflow class that is loaded here, and no run, has this name."
            )
        case QueueNotFound():
            title = words.gettext("No such queue")
            text = words.gettext("A queue appears with the first message or worker that needs it.")
        case MessageNotFound():
            title = words.gettext("No such message")
            text = words.gettext(
                "It is not in its queue any more: done, discarded, or given up as a dead letter."
            )
        case _:
            title = words.gettext("No such page")
            text = words.gettext("There is nothing at this address.")
    return _said(console, status=404, tone="idle", icon="x", title=title, text=text)


def not_allowed(console: Console, methods: Iterable[str]) -> Response:
    """Say that the page does not take this method."""
    words = console.viewer().words
    response = _said(
        console,
        status=405,
        tone="idle",
        icon="x",
        title=words.gettext("This address does not take such a request"),
        text=words.gettext("Go to the page and press its button there."),
    )
    response.headers["Allow"] = ", ".join(sorted(methods))
    return response


def no_secret_key(console: Console) -> Response:
    """Say that the application cannot tell a form of its own from a forged one."""
    words = console.viewer().words
    return _said(
        console,
        status=503,
        icon="shield",
        title=words.gettext("Nothing can be changed here yet"),
        text=words.gettext(
            "The application has no %(setting)s, so forms cannot be told from forged ones. "
            "Nothing was done. Set it:",
            setting="SECRET_KEY",
        ),
        example='app.config["SECRET_KEY"] = ...',
    )


def forged(console: Console) -> Response:
    """Say that the form did not come from a page of this session, or came too late."""
    words = console.viewer().words
    return _said(
        console,
        status=400,
        icon="shield",
        title=words.gettext("Nothing was done"),
        text=words.gettext(
            "The page was open too long, or was not yours. Open it again and press once more."
        ),
    )


def too_large(console: Console) -> Response:
    """Say that more was sent than any form may hold."""
    words = console.viewer().words
    limit = console.bus.settings.workflow_max_payload_size
    return _said(
        console,
        status=413,
        tone="bad",
        icon="failed",
        title=words.gettext("Nothing was done: that is too large"),
        text=words.gettext("A payload may have %(limit)s bytes.", limit=words.number(limit)),
    )


def _bad_parameter(console: Console, error: BadParameter) -> Response:
    words = console.viewer().words
    text = words.rich(
        "%(name)s is %(value)s. Expected: %(wanted)s.",
        name=code(error.name),
        value=quoted(error.value),
        wanted=words.gettext(error.wanted),
    )
    title = words.gettext("A parameter cannot be read")
    return _said(console, status=400, tone="bad", icon="failed", title=title, text=text)


def _away(console: Console, _error: DatabaseAway) -> Response:
    words = console.viewer().words
    response = _said(
        console,
        status=503,
        icon="plug",
        title=words.gettext("PostgreSQL does not answer"),
        text=_in_doubt(words)
        or words.gettext(
            "This page asks again every 5 seconds and comes back by itself. Workers keep what they "
            "run, and reconnect too."
        ),
        again=True,
    )
    if request.method != "POST":
        # What was pressed is not to be forgotten by itself.
        response.headers["Refresh"] = _ASK_AGAIN
    response.headers["Retry-After"] = _ASK_AGAIN
    return response


def _too_slow(console: Console, _error: ReadTimeout) -> Response:
    words = console.viewer().words
    text = words.gettext("PostgreSQL has much to do, or this page asks too much of it.")
    if request.endpoint == f"{request.blueprint}.workflows":
        text = words.gettext("Narrow the list: filter by class, or by when runs were created.")
    elif request.endpoint in (
        f"{request.blueprint}.definitions",
        f"{request.blueprint}.definition",
    ):
        text = words.gettext("Choose a shorter window.")
    return _said(
        console,
        status=503,
        icon="late",
        title=words.gettext("That took PostgreSQL too long"),
        text=_in_doubt(words) or text,
        again=True,
    )


def _in_doubt(words: Words) -> str:
    """Return what is to be known of a form that nobody knows to have been done; "" of a page that only reads."""
    if request.method != "POST":
        return ""
    if not g.get(ASKED):
        return words.gettext("Nothing was done. Press again later.")
    return words.gettext(
        "It is not known whether what you pressed was done: look at it before you press again."
    )


def _outdated(console: Console, error: SchemaOutdated) -> Response:
    words = console.viewer().words
    return _said(
        console,
        status=503,
        icon="info",
        title=words.gettext("The database is not ready for this release"),
        text=str(error),
        example="pgbus migrate",
        again=True,
    )


def _said(console: Console, *, status: int, **said: object) -> Response:
    viewer = console.viewer()
    href, link = viewer.url("workflows"), viewer.words.gettext("Workflows")
    if request.method == "POST":
        # To send the form once more by a reload is not what an empty link would be pressed for.
        said["again"] = False
        if workflow_id := (request.view_args or {}).get("workflow_id"):
            href = viewer.url("run", workflow_id=workflow_id)
            link = viewer.words.gettext("The run")
    page = Refusal(status=status, href=href, link=link, **said)  # type: ignore[arg-type]
    return console.rendered(page, viewer, status=status)


#: Which page answers an error, wherever it was raised.
ANSWERS: dict[type[Exception], Callable[..., Response]] = {
    BadParameter: _bad_parameter,
    RunNotFound: not_found,
    BatchNotFound: not_found,
    QueueNotFound: not_found,
    MessageNotFound: not_found,
    ClassNotFound: not_found,
    DatabaseAway: _away,
    ReadTimeout: _too_slow,
    SchemaOutdated: _outdated,
}
