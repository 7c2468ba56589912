"""What came of an action, in words for a toast: what the run does now, or why nothing was done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.dashboard.presenters import sentences, subjects
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import SYSTEM, status
from pgbus.dashboard.toasts import Toast
from pgbus.dashboard.words import _
from pgbus.engine.runner.error_record import MESSAGE_LENGTH
from pgbus.engine.states import Event, RunStatus, Verb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pgbus.dashboard.console import Viewer
    from pgbus.engine.definition.signal import Signal
    from pgbus.engine.insights.events import TrailEntry
    from pgbus.engine.insights.runs import RunSummary

#: What was done; the run's own sentence follows. Of signals `sent` tells.
_DONE = {
    Verb.PAUSE: _("Done. %(now)s"),
    Verb.RESUME: _("The run goes on. %(now)s"),
    Verb.RESUME_AT: _("The run goes on at %(step)s. %(now)s"),
    Verb.CANCEL: _("Done. %(now)s"),
    Verb.SKIP: _("%(before)s is skipped. %(now)s"),
    Verb.RUN_NOW: _("%(step)s runs as soon as a worker is free. %(now)s"),
    Verb.RESCHEDULE: _("%(step)s is moved to %(at)s. %(now)s"),
    Verb.RERUN: _("This run is new, and like the one before. %(now)s"),
}
_OF_THE_STEP = (Verb.RUN_NOW, Verb.RESCHEDULE)
_QUEUED = {
    Verb.RESUME: _("The run goes on: attempt %(attempt)s of %(step)s is in the queue."),
    Verb.RESUME_AT: _("The run goes on: attempt %(attempt)s of %(step)s is in the queue."),
    Verb.SKIP: _("%(before)s is skipped: attempt %(attempt)s of %(step)s is in the queue."),
    Verb.RUN_NOW: _("Attempt %(attempt)s of %(step)s is in the queue."),
}

#: Who was first, by what they did.
_FIRST = {
    Event.PAUSED: _("Nothing was done: %(actor)s paused the run %(when)s. %(now)s"),
    Event.RESUMED: _("Nothing was done: %(actor)s resumed the run %(when)s. %(now)s"),
    Event.CANCELLED: _("Nothing was done: %(actor)s cancelled the run %(when)s."),
    Event.STEP_SKIPPED: _("Nothing was done: %(actor)s skipped the step %(when)s. %(now)s"),
    Event.RUN_NOW: _("Nothing was done: %(actor)s let the step run at once %(when)s. %(now)s"),
    Event.RESCHEDULED: _("Nothing was done: %(actor)s rescheduled the step %(when)s. %(now)s"),
    Event.SIGNAL_RECEIVED: _("Nothing was done: %(actor)s sent a signal %(when)s. %(now)s"),
}
_MOVED = _("Nothing was done: the run has moved on. %(now)s")

_ACTIONS = {
    Verb.PAUSE: _("Pausing the run failed. %(cause)s"),
    Verb.RESUME: _("Resuming the run failed. %(cause)s"),
    Verb.RESUME_AT: _("Resuming the run at a step failed. %(cause)s"),
    Verb.CANCEL: _("Cancelling the run failed. %(cause)s"),
    Verb.SKIP: _("Skipping the step failed. %(cause)s"),
    Verb.RUN_NOW: _("Running the step now failed. %(cause)s"),
    Verb.RESCHEDULE: _("Rescheduling the step failed. %(cause)s"),
    Verb.SIGNAL: _("Sending the signal failed. %(cause)s"),
    Verb.RERUN: _("Starting a run like this one failed. %(cause)s"),
}


def done(verb: Verb, before: RunSummary, now: RunSummary, viewer: Viewer) -> Toast:
    """Tell what was done, and what the run does now."""
    message = _DONE[verb]
    if verb is Verb.RESUME and now.ended_at is not None:
        message = _("Done. %(now)s")
    elif verb in _OF_THE_STEP and (now.step_id, now.status) != (before.step_id, RunStatus.READY):
        # A free worker was quick: what is said of the step would be said of another.
        message = _("Done. %(now)s")
    elif now.due:
        message = _QUEUED.get(verb, message)
    return Toast(
        "good",
        _text(
            viewer,
            message,
            now=_sentence(now, viewer),
            before=before.current_step,
            step=now.current_step,
            attempt=viewer.words.number(now.attempt),
            at=viewer.words.exact(now.scheduled_at),
        ),
    )


def sent(name: str, now: RunSummary, viewer: Viewer, *, awaited: bool) -> Toast:
    """Tell that a signal was stored, and whether a step of the run's class takes such a one."""
    tone, message = "good", _("Signal %(signal)s is sent. %(now)s")
    if not awaited:
        tone = "warn"
        message = _("Signal %(signal)s is stored, but no step of %(class)s waits for it. %(now)s")
    parts = {"class": short(now.workflow_class)}
    return Toast(tone, _text(viewer, message, signal=name, now=_sentence(now, viewer), **parts))


def moved(
    now: RunSummary, trail: Sequence[TrailEntry], since: datetime | None, viewer: Viewer
) -> Toast:
    """Tell that the run is not where it was, and who moved it `since`; its trail is newest first.

    None as `since`: nobody is named, because it is not known what the page showed.
    """
    by_people = (
        entry
        for entry in trail
        if since is not None and entry.created_at > since
        if entry.event in _FIRST and entry.actor != SYSTEM
    )
    first = next(by_people, None)
    sentence = _sentence(now, viewer)
    if first is None:
        return Toast("warn", _text(viewer, _MOVED, now=sentence))
    when = viewer.words.ago(first.created_at)
    message = _FIRST[Event(first.event)]
    return Toast("warn", _text(viewer, message, actor=first.actor, when=when, now=sentence))


def forbidden(viewer: Viewer) -> Toast:
    """Tell that the application does not allow it."""
    return Toast("bad", viewer.words.gettext("Nothing was done: you are not allowed to do that."))


def malformed(name: str, viewer: Viewer) -> Toast:
    """Tell that no page of ours has made the form."""
    message = _("Nothing was done: the form names nothing of this page (%(name)s).")
    return Toast("bad", viewer.words.gettext(message, name=name))


def gone(viewer: Viewer) -> Toast:
    """Tell that there is no such run any more."""
    return Toast("warn", viewer.words.gettext("Nothing was done: there is no such run any more."))


def sent_before(signal: Signal, viewer: Viewer) -> Toast:
    """Tell that a press of the same form has sent the signal already."""
    message = _("Signal %(signal)s was sent by this form before, %(when)s. It was not sent again.")
    when = viewer.words.ago(signal.received_at)
    return Toast("warn", _text(viewer, message, signal=signal.name, when=when))


def started_before(run: RunSummary, viewer: Viewer) -> Toast:
    """Tell that the run was started by an earlier press on the same page, or on another one like it."""
    message = _(
        "Nothing was started: this run was started from that page before, %(when)s. %(now)s"
    )
    when = viewer.words.ago(run.created_at)
    return Toast("warn", _text(viewer, message, when=when, now=_sentence(run, viewer)))


def untold(viewer: Viewer, *, done: bool) -> Toast:
    """Tell what is known without the database: whether it was done, and not what the run does now."""
    if done:
        message = _(
            "Done. What the run does now is not known: PostgreSQL does not answer any more."
        )
        return Toast("good", viewer.words.gettext(message))
    message = _("Nothing was done, and why is not known: PostgreSQL does not answer any more.")
    return Toast("warn", viewer.words.gettext(message))


def key_reused(viewer: Viewer) -> Toast:
    """Tell that the form has sent a signal of another name already."""
    message = _(
        "Nothing was sent: this form has sent another signal before. Fill in the one below."
    )
    return Toast("warn", viewer.words.gettext(message))


def locked(viewer: Viewer) -> Toast:
    """Tell that the run could not be had."""
    message = _("Nothing was done: a transaction holds the run. Press again when it has ended.")
    return Toast("warn", viewer.words.gettext(message))


def not_loaded(run: RunSummary, viewer: Viewer) -> Toast:
    """Tell that what the run's class declares must be known, and is not."""
    message = _("Nothing was done: the class %(class)s is not loaded in this process.")
    parts = {"class": run.workflow_class}
    return Toast("warn", viewer.words.gettext(message, **parts))


def not_declared(run: RunSummary, step: str, viewer: Viewer) -> Toast:
    """Tell that the class has no such step."""
    message = _("Nothing was done: %(class)s does not declare a step %(step)s.")
    parts = {"class": short(run.workflow_class), "step": step}
    return Toast("warn", viewer.words.gettext(message, **parts))


def already_running(run: RunSummary, other: str, viewer: Viewer) -> Toast:
    """Tell that the run's subject has an ongoing run of its class."""
    message = _("Nothing was started: %(subject)s has an ongoing run already, %(id)s.")
    parts = {"subject": subjects.named(run), "id": other}
    return Toast("warn", viewer.words.gettext(message, **parts))


def failed(verb: Verb, error_class: str, error_message: str, viewer: Viewer) -> Toast:
    """Tell what was tried, and what came in between."""
    shown = viewer.shown("error", error_message, whole=len(error_message) < MESSAGE_LENGTH)
    cause = f"{short(error_class)}: {shown}"
    return Toast("bad", viewer.words.gettext(_ACTIONS[verb], cause=cause))


def _sentence(run: RunSummary, viewer: Viewer) -> object:
    return sentences.rendered(status(run).sentence, viewer.words, viewer.url)


def _text(viewer: Viewer, message: str, **parts: object) -> str:
    """Return the message without the marks that a page would show it with."""
    return viewer.words.rich(message, **parts).striptags()
