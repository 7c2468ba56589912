"""The list of queues, one queue, and what can be done with them."""

from __future__ import annotations

import functools
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from flask import g, redirect, request

from pgbus.dashboard import forms, toasts
from pgbus.dashboard.pages import queues
from pgbus.dashboard.parameters import BadParameter, Parameters
from pgbus.dashboard.presenters import outcomes, queue_actions
from pgbus.dashboard.presenters.queue_actions import QueuePress, QueueVerb
from pgbus.dashboard.views.attention import needed
from pgbus.dashboard.views.places import listed, place
from pgbus.dashboard.views.refusals import ASKED
from pgbus.engine.errors import QueueNotFound
from pgbus.engine.insights import queues as insights
from pgbus.engine.insights import reading
from pgbus.engine.jobs import control

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Response
    from werkzeug.wrappers import Response as Redirect

    from pgbus.dashboard.console import Console, Page
    from pgbus.dashboard.toasts import Toast


def show(console: Console) -> Response:
    """Return the queues, with the dialog that the address asks for; it changes nothing."""
    return console.show(functools.partial(queues.load, press=_asked(Parameters(request.args))))


def act(console: Console) -> Response | Redirect:
    """Do what the form says to a queue, tell what came of it, and go back to the list."""
    return _act(console, queues.load)


def show_one(console: Console, queue: str) -> Response:
    """Return a queue with a page of its messages."""
    press = _asked(Parameters(request.args))
    return listed(console, functools.partial(_load_one(queue), press=press))


def act_one(console: Console, queue: str) -> Response | Redirect:
    """Do what the form says to the queue, and go back to its page."""
    return _act(console, _load_one(queue))


def _load_one(queue: str) -> Callable[..., Page]:
    after, before = place(Parameters(request.args))
    return functools.partial(queues.load_one, queue=queue, after=after, before=before)


def _asked(given: Parameters) -> QueuePress | None:
    """Return what a link or a form asks for; None where it asks for nothing."""
    verb = given.choice("ask", QueueVerb)
    return QueuePress(verb, needed("of", given.text("of"))) if verb else None


def _act(console: Console, load: Callable[..., Page]) -> Response | Redirect:
    viewer = console.viewer()
    try:
        press = needed("ask", _asked(Parameters(request.form)))
    except BadParameter as error:
        return _told(console, outcomes.malformed(error.name, viewer))
    if not console.host.allows(request, press.verb):
        return _told(console, outcomes.forbidden(viewer))
    typed = request.form.get("typed", "").strip()
    if press.verb is QueueVerb.PURGE and typed != press.queue:
        problem = viewer.words.gettext("Type %(queue)s to purge it.", queue=press.queue)
        refused = replace(press, typed=typed, reason=forms.reason(request.form), problem=problem)
        again = functools.partial(load, press=refused)
        return listed(console, again, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    try:
        return _told(console, _done(console, press))
    except QueueNotFound:
        toasts.add(request.blueprint or "", queue_actions.gone(press.queue, viewer.words))
        return redirect(console.url("queues"), 303)


def _done(console: Console, press: QueuePress) -> Toast:
    """Do it, where PostgreSQL answers: whether there is such a queue is asked first."""
    services, words = console.bus.services, console.viewer().words
    with reading.reading(services) as connection:
        console.bus.check_schema()
        insights.of_logical(connection, console.bus.settings, press.queue)
        words = console.viewer(reading.now(connection)).words
    by = {"actor": console.host.actor(request), "reason": forms.reason(request.form)}
    setattr(g, ASKED, True)
    with reading.answered():
        match press.verb:
            case QueueVerb.PAUSE:
                result = control.pause_queue(services, press.queue, **by)
                return queue_actions.paused(result, press.queue, words)
            case QueueVerb.RESUME:
                ended = control.resume_queue(services, press.queue, **by)
                return queue_actions.resumed(ended, press.queue, words)
        purged = control.purge_queue(services, press.queue, actor=by["actor"], reason=by["reason"])
        return queue_actions.purged(purged, press.queue, words)


def _told(console: Console, toast: Toast) -> Redirect:
    toasts.add(request.blueprint or "", toast)
    return redirect(console.here(), 303)
