"""What links ask of jobs and dead letters, and what the forms behind them do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import g, redirect, request

from pgbus.dashboard import forms, toasts
from pgbus.dashboard.pages import dialogs
from pgbus.dashboard.parameters import BadParameter, Parameters
from pgbus.dashboard.presenters import job_actions, outcomes
from pgbus.dashboard.presenters.job_actions import (
    ALLOWED_BY,
    OF_LETTERS,
    BulkPress,
    JobPress,
    JobVerb,
)
from pgbus.dashboard.toasts import Toast
from pgbus.dashboard.views.attention import needed, with_gone
from pgbus.dashboard.views.refusals import ASKED
from pgbus.dashboard.words import _
from pgbus.engine.errors import BadCursor, DatabaseAway, MessageNotFound, QueueNotFound, ReadTimeout
from pgbus.engine.insights import reading
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.insights.messages import Place
from pgbus.engine.jobs import bulk, control
from pgbus.engine.jobs.bulk import Press
from pgbus.engine.jobs.control import Effect

if TYPE_CHECKING:
    from werkzeug.wrappers import Response as Redirect

    from pgbus.dashboard.console import Console

_CONTROLS = {
    JobVerb.RETRY: control.retry_job,
    JobVerb.DISCARD: control.discard_job,
    JobVerb.RETRY_LETTER: control.retry_dead_letter,
    JobVerb.DISCARD_LETTER: control.discard_dead_letter,
}
_A_LINK = _("what a link of this page gives it")
_LONGEST_NUMBER = 18


def wanted_of(given: Parameters) -> JobFilter:
    """Return how the address narrows a list."""
    return JobFilter(
        queue=given.text("queue"), job=given.text("job"), error_class=given.text("error_class")
    )


def number_of(text: str) -> int | None:
    """Return a message's id; None for a text that is none."""
    if not (text.isascii() and text.isdigit()) or len(text) > _LONGEST_NUMBER:
        return None
    return int(text)


def asked(
    console: Console, given: Parameters, wanted: JobFilter, *, of_letters: bool
) -> JobPress | BulkPress | None:
    """Return what a link or a form asks for, of one or of all that match; None where it asks for nothing.

    Raise `BadParameter` for what no page of ours has made.
    """
    verb = given.text("ask")
    if verb not in tuple(Press):
        return asked_of_one(given, of_letters=of_letters)
    press = Press(verb)
    if (press in OF_LETTERS) is not of_letters:
        raise BadParameter("ask", press, _A_LINK)
    moment = needed("as_of", given.moment("as_of", console.zone()))
    return BulkPress(press, wanted, moment, given.number("count"), _behind(given))


def _behind(given: Parameters) -> str | None:
    """Return the place of the queues behind which a search begins, None for their first message."""
    text = given.text("behind")
    try:
        return None if text is None else str(Place.parse(text))
    except BadCursor:
        wanted = _("a place of a page that this console linked to")
        raise BadParameter("behind", text or "", wanted) from None


def asked_of_one(given: Parameters, *, of_letters: bool) -> JobPress | None:
    """Return what a link or a form asks for, of one message; None where it asks for nothing.

    Raise `BadParameter` for what no page of ours has made.
    """
    verb = given.choice("ask", JobVerb)
    if verb is None:
        return None
    if (verb in OF_LETTERS) is not of_letters:
        raise BadParameter("ask", verb, _A_LINK)
    queue, _colon, number = needed("of", given.text("of")).rpartition(":")
    message_id = number_of(number)
    if message_id is None or not queue:
        raise BadParameter("of", f"{queue}:{number}", _A_LINK)
    return JobPress(verb, queue, message_id, given.number("seen"))


def act(console: Console, back: str, wanted: JobFilter, *, of_letters: bool) -> Redirect:
    """Do what the form says, tell what came of it, and go back."""
    toasts.add(request.blueprint or "", _acted(console, wanted, of_letters=of_letters))
    return redirect(back, 303)


def _acted(console: Console, wanted: JobFilter, *, of_letters: bool) -> Toast:
    try:
        press = _confirmed(console, wanted, of_letters=of_letters)
    except BadParameter as problem:
        return outcomes.malformed(problem.name, console.viewer())
    verb = press.verb if isinstance(press, JobPress) else ALLOWED_BY[press.verb]
    if not console.host.allows(request, verb):
        return outcomes.forbidden(console.viewer())
    if isinstance(press, JobPress):
        return _on_one(console, press)
    return _on_all(console, press)


def _confirmed(console: Console, wanted: JobFilter, *, of_letters: bool) -> JobPress | BulkPress:
    """Return what the form says; raise `BadParameter` unless it says it all."""
    press = asked(console, Parameters(request.form), wanted, of_letters=of_letters)
    if press is None:
        raise BadParameter("ask", "", _A_LINK)
    if isinstance(press, BulkPress):
        needed("count", press.count)
    return press


def _on_one(console: Console, press: JobPress) -> Toast:
    """Do it, where PostgreSQL answers: what it was about is asked first."""
    words, services = console.viewer().words, console.bus.services
    try:
        with reading.reading(services) as connection:
            console.bus.check_schema()
            job = dialogs.job_of(connection, console.bus.settings, press)
    except (MessageNotFound, QueueNotFound):
        return job_actions.outcome(press, Effect.GONE, None, words)
    seen = {} if press.verb in OF_LETTERS else {"read_count": press.seen}
    setattr(g, ASKED, True)
    with reading.answered():
        effect: Effect = _CONTROLS[press.verb](
            services,
            press.queue,
            press.message_id,
            actor=console.host.actor(request),
            reason=forms.reason(request.form),
            **seen,
        )
    return job_actions.outcome(press, effect, job, words)


def _on_all(console: Console, press: BulkPress) -> Toast:
    words, shown = console.viewer().words, press.count or 0
    try:
        result = bulk.act(
            console.bus.services,
            press.verb,
            press.wanted,
            until=press.until,
            at_most=shown,
            after=press.behind,
            actor=console.host.actor(request),
            reason=forms.reason(request.form),
        )
    except (DatabaseAway, ReadTimeout):
        # While it looked for them: an outage that comes later is a part of the result.
        message = _("Nothing was done: PostgreSQL does not answer. Press again later.")
        return Toast("bad", words.gettext(message))
    except QueueNotFound:
        return Toast("warn", words.gettext("Nothing was done: none of them is there any more."))
    failure = result.first_failure
    if failure is not None:
        failure = str(console.host.shown("error", failure))
    return job_actions.outcome_of_all(press.verb, with_gone(result, shown), failure, words)
