"""The blueprint: the map of its pages, and what stands before and after each of them."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, current_app, request
from flask_wtf.csrf import validate_csrf
from werkzeug.exceptions import RequestEntityTooLarge
from wtforms.validators import ValidationError

from pgbus.dashboard import assets
from pgbus.dashboard.console import Console
from pgbus.dashboard.host import Host, allow_anyone
from pgbus.dashboard.views import (
    actions,
    attention,
    batches,
    dead_letters,
    definitions,
    home,
    jobs,
    metrics,
    preferences,
    processes,
    queues,
    refusals,
    run,
    workflows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Request

    from pgbus.engine.bus import Pgbus

_log = logging.getLogger("pgbus.dashboard")

#: Every method is ours to answer, so that none is answered to somebody who is not let in.
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: Of a form beside its payload: its other fields, and the payload's encoding for the way.
_FORM_ROOM = 65_536
_ENCODED = 3
#: In seconds: longer than any page stays open.
_ANY_AGE = 10**10

_READ = "GET"
_WRITE = "POST"

#: Where each page is, what it is called, and what answers it by method.
_ROUTES: tuple[tuple[str, str, dict[str, Callable[..., Any]]], ...] = (
    ("/", "home", {_READ: home.show}),
    ("/workflows", "workflows", {_READ: workflows.show}),
    ("/workflows/attention", "attention", {_READ: attention.show, _WRITE: attention.act}),
    ("/workflows/definitions", "definitions", {_READ: definitions.show}),
    # What of a name looks like parts of an address is part of the name.
    (
        "/workflows/definitions/<path:workflow_class>",
        "definition",
        {_READ: definitions.show_one},
    ),
    ("/workflows/<workflow_id>", "run", {_READ: run.show}),
    ("/workflows/<workflow_id>/attempts", "attempts", {_READ: run.show_attempts}),
    ("/workflows/<workflow_id>/attempts/<number>", "attempt", {_READ: run.show_attempt}),
    ("/workflows/<workflow_id>/signals", "signals", {_READ: run.show_signals}),
    ("/workflows/<workflow_id>/signals/<number>", "signal", {_READ: run.show_signal}),
    ("/workflows/<workflow_id>/events", "events", {_READ: run.show_events}),
    ("/workflows/<workflow_id>/arguments", "arguments", {_READ: run.show_arguments}),
    ("/workflows/<workflow_id>/timeline.json", "timeline", {_READ: run.timeline}),
    (
        "/workflows/<workflow_id>/actions/<verb>",
        "action",
        {_READ: actions.back, _WRITE: actions.act},
    ),
    ("/batches", "batches", {_READ: batches.show}),
    ("/batches/<batch_id>", "batch", {_READ: batches.show_one}),
    ("/queues", "queues", {_READ: queues.show, _WRITE: queues.act}),
    ("/queues/<queue>", "queue", {_READ: queues.show_one, _WRITE: queues.act_one}),
    ("/jobs", "jobs", {_READ: jobs.show, _WRITE: jobs.act}),
    ("/messages/<queue>/<number>", "message", {_READ: jobs.show_one, _WRITE: jobs.act_one}),
    ("/processes", "processes", {_READ: processes.show}),
    ("/dead-letters", "dead_letters", {_READ: dead_letters.show, _WRITE: dead_letters.act}),
    (
        "/dead-letters/<queue>/<number>",
        "dead_letter",
        {_READ: dead_letters.show_one, _WRITE: dead_letters.act_one},
    ),
    ("/metrics", "metrics", {_READ: metrics.show}),
    ("/preferences", "preferences", {_WRITE: preferences.change}),
    ("/assets/<version>/<name>", "asset", {_READ: assets.serve}),
    ("/<path:anything>", "anything", {}),
)

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # A host's own CSRF protection may want to see where a form came from.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Robots-Tag": "noindex",
}


def create_blueprint(
    bus: Pgbus,
    *,
    name: str = "pgbus",
    auth: Callable[[Request], object] | None = None,
    can: Callable[[Request, str], object] | None = None,
    web_actor: Callable[[Request], str | None] | None = None,
    subject_url: Callable[[str, str], str | None] | None = None,
    redact: Callable[[str, Any], Any] | None = None,
    time_zone: str | Callable[[Request], str | None] | None = None,
    locale: str | Callable[[Request], str | None] | None = None,
    metrics_token: str | None = None,
) -> Blueprint:
    """Return the dashboard of a bus, to be registered on any Flask application under any prefix.

    `auth` lets in those requests for which it returns a truth value; without it nobody gets in.
    `can` is asked with a request and a verb (`"cancel"`), and allows or forbids it. `web_actor`
    names the operator for the audit trail. `subject_url` is asked with a subject's type and id, and
    gives its page. `redact` is asked with a kind (`"arguments"`, `"output"`, `"payload"`, `"error"`)
    and a value, and gives what is shown. `time_zone` and `locale` are names, or asked with a request.
    A scraper that has the `metrics_token` gets `/metrics`, and nothing else, without `auth`.

    One that raises is logged: `auth` and `can` refuse then, `redact` hides, the others fall back.
    Two dashboards in one application need two names.
    """
    host = Host(
        auth=auth,
        can=can,
        web_actor=web_actor,
        subject_url=subject_url,
        redact=redact,
        time_zone=time_zone,
        locale=locale,
        metrics_token=metrics_token,
    )
    if auth is allow_anyone:
        _log.warning("The dashboard %s lets anybody in (allow_anyone).", name)
    console = Console(bus, host)
    blueprint = Blueprint(name, __name__)
    for path, endpoint, answers in _ROUTES:
        blueprint.add_url_rule(
            path,
            endpoint,
            _view(console, answers),
            methods=_METHODS,
            provide_automatic_options=False,
        )
    blueprint.before_request(functools.partial(_guard, console))
    blueprint.after_request(_secured)
    for error, answer in refusals.ANSWERS.items():
        blueprint.register_error_handler(error, functools.partial(answer, console))
    return blueprint


def _view(
    console: Console, answers: dict[str, Callable[..., Response | None]]
) -> Callable[..., Response]:
    """Return what Flask calls for a page: an own function, since extensions ask for its name."""

    def answered(**values: str) -> Response:
        method = _READ if request.method == "HEAD" else request.method
        if answers and method not in answers:
            return refusals.not_allowed(console, answers)
        response = answers[method](console, **values) if answers else None
        return refusals.not_found(console) if response is None else response

    return answered


def _guard(console: Console) -> Response | None:
    """Answer in place of the page a request that is not let in, or that nobody meant."""
    if not _is_let_in(console):
        return refusals.not_let_in(console)
    request.max_content_length = (
        console.bus.settings.workflow_max_payload_size * _ENCODED + _FORM_ROOM
    )
    request.max_form_memory_size = request.max_content_length
    if request.method != _WRITE:
        return None
    if not current_app.secret_key:
        return refusals.no_secret_key(console)
    try:
        # Always, and not left to the host: its own protection may be switched off, or exempt us.
        validate_csrf(request.form.get(console.csrf_field()))
    except RequestEntityTooLarge:
        return refusals.too_large(console)
    except ValidationError:
        return _late(console) or refusals.forged(console)
    return None


def _is_let_in(console: Console) -> bool:
    """Tell whether the request may be answered; the metrics' token is one for them alone."""
    if request.endpoint == f"{request.blueprint}.metrics":
        return console.host.has_metrics_token(request) or console.host.lets_in(request)
    return console.host.lets_in(request)


def _late(console: Console) -> Response | None:
    """Give back what was typed for an action, where the form is this session's own and only too old."""
    if request.endpoint != f"{request.blueprint}.action":
        return None
    try:
        validate_csrf(request.form.get(console.csrf_field()), time_limit=_ANY_AGE)
    except ValidationError:
        return None
    return actions.too_late(console, **(request.view_args or {}))


def _secured(response: Response) -> Response:
    """Give a response the headers that keep a page to itself."""
    response.headers["Content-Security-Policy"] = _POLICY
    for header, value in _HEADERS.items():
        response.headers[header] = value
    response.headers.setdefault("Cache-Control", "no-store")
    response.vary.add("Cookie")
    return response
