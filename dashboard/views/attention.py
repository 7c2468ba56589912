"""The runs that need somebody, and a press on all that share a cause."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from flask import redirect, request

from pgbus.dashboard import forms, toasts
from pgbus.dashboard.pages import attention
from pgbus.dashboard.pages.attention import Press
from pgbus.dashboard.parameters import BadParameter, Parameters
from pgbus.dashboard.presenters import attention as presenter
from pgbus.dashboard.presenters import outcomes
from pgbus.dashboard.toasts import Toast
from pgbus.dashboard.words import _
from pgbus.engine.errors import DatabaseAway, ReadTimeout
from pgbus.engine.insights.stuck import HELD_ENDS, VERBS, GroupKey, StuckReason
from pgbus.engine.runner import bulk
from pgbus.engine.states import Verb

if TYPE_CHECKING:
    from flask import Response
    from werkzeug.wrappers import Response as Redirect

    from pgbus.dashboard.console import Console
    from pgbus.engine.insights.stuck import HeldEnd
    from pgbus.engine.runner.bulk import BulkResult

T = TypeVar("T")


def show(console: Console) -> Response:
    """Return the groups, with the dialog that the address asks for; it changes nothing."""
    given = Parameters(request.args)
    load = functools.partial(
        attention.load,
        workflow_class=given.text("workflow_class"),
        step=given.text("current_step"),
        start=given.place("start"),
        press=_press(console, given) if given.text("verb") else None,
    )
    return console.show(load)


def act(console: Console) -> Redirect:
    """Do what the form says to the runs that its page showed, tell what came of it, and go back."""
    toasts.add(request.blueprint or "", _acted(console))
    shown = {name: request.form.get(name) or None for name in ("workflow_class", "current_step")}
    return redirect(console.url("attention", **shown), 303)


def _acted(console: Console) -> Toast:
    given, words = Parameters(request.form), console.viewer().words
    try:
        press = _press(console, given)
    except BadParameter as problem:
        text = words.gettext(
            "Nothing was done: the form names no group of this page (%(name)s).", name=problem.name
        )
        return Toast("bad", text)
    if not console.host.allows(request, press.verb):
        return outcomes.forbidden(console.viewer())
    try:
        result = bulk.act(
            console.bus.services,
            press.group,
            press.verb,
            stuck_before=press.stuck_before,
            at_most=press.count,
            actor=console.host.actor(request),
            reason=forms.reason(request.form),
        )
    except (DatabaseAway, ReadTimeout):
        # While it looked for the runs: an outage that comes later is a part of the result.
        message = _("Nothing was done: PostgreSQL does not answer. Press again later.")
        return Toast("bad", words.gettext(message))
    failure = result.first_failure
    if failure is not None:
        failure = str(console.host.shown("error", failure))
    asked = presenter.press(press.verb, press.group)
    return Toast(*presenter.outcome(asked, with_gone(result, press.count), failure, words))


def with_gone(result: BulkResult, shown: int) -> BulkResult:
    """Count those that the page showed and the press did not find among those that moved on."""
    taken = result.taken
    if not taken or result.may_be_more or shown > bulk.LIMIT:
        return result
    return replace(result, moved_on=result.moved_on + max(shown - taken, 0))


def _press(console: Console, given: Parameters) -> Press:
    """Return the verb and the group that a link or a form names; raise `BadParameter`."""
    reason = needed("stuck", given.choice("stuck", StuckReason))
    verb = needed("verb", given.choice("verb", Verb))
    if verb not in VERBS[reason]:
        raise BadParameter("verb", verb, ", ".join(VERBS[reason]))
    return Press(
        verb,
        GroupKey(
            needed("of_class", given.text("of_class")),
            needed("step", given.text("step")),
            reason,
            given.text("error_class"),
            held_end(given),
        ),
        needed("count", given.number("count")),
        needed("as_of", given.moment("as_of", console.zone())),
    )


def held_end(given: Parameters) -> HeldEnd | None:
    """Return how a resume ends the runs; None when it does not."""
    text = given.text("held")
    if text is not None and text not in HELD_ENDS:
        raise BadParameter("held", text, ", ".join(HELD_ENDS))
    return HELD_ENDS[text] if text else None


def needed(name: str, value: T | None) -> T:
    """Return a parameter that has to be there; raise `BadParameter` when it is not."""
    if not value:
        raise BadParameter(name, "", _("what a link of this page gives it"))
    return value
