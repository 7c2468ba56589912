"""The dialogs that ask before a press on jobs or dead letters: what it would be done to, as it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from pgbus.dashboard.pages.narrowing import query_of
from pgbus.dashboard.presenters import job_actions, messages
from pgbus.dashboard.presenters.job_actions import ALLOWED_BY, OF_LETTERS, BulkPress, JobPress
from pgbus.dashboard.words import code
from pgbus.engine.errors import MessageNotFound, QueueNotFound
from pgbus.engine.insights import dead_letters, jobs, queues
from pgbus.engine.jobs import bulk
from pgbus.engine.runner.bulk import LIMIT

if TYPE_CHECKING:
    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.confirmations import Confirmation
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.jobs import JobFilter
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection


def dialog(
    connection: Connection, viewer: Viewer, press: JobPress | BulkPress
) -> Confirmation | None:
    """Return the dialog that was asked for; None when it could only lead to a refusal, or to nothing."""
    if isinstance(press, JobPress):
        return _of_one(connection, viewer, press)
    if not viewer.may(ALLOWED_BY[press.verb]):
        return None
    # One more than a press takes tells that there are others.
    found = bulk.found(
        connection,
        viewer.settings,
        press.verb,
        press.wanted,
        until=press.until,
        limit=LIMIT + 1,
        after=press.behind,
    )
    words = viewer.words
    about = _about_all(press.wanted, words, enqueued=press.verb is bulk.Press.DISCARD_ENQUEUED)
    if found.keys:
        unseen = found.further is not None
        return job_actions.dialog_for_all(
            press, len(found.keys), about, words, limit=LIMIT, unseen=unseen
        )
    if found.further is None:
        return None
    return job_actions.dialog_for_none(about, _further(press, found.further, viewer), words)


def _further(press: BulkPress, behind: str, viewer: Viewer) -> str:
    """Return the address that asks for the same behind a place of the queues."""
    return viewer.url(
        "dead_letters" if press.verb in OF_LETTERS else "jobs",
        **query_of(press.wanted),
        ask=press.verb,
        as_of=press.until.isoformat(),
        behind=behind,
        _anchor="confirm",
    )


def _of_one(connection: Connection, viewer: Viewer, press: JobPress) -> Confirmation | None:
    if not viewer.may(press.verb):
        return None
    try:
        job = job_of(connection, viewer.settings, press)
    except (MessageNotFound, QueueNotFound):
        return None
    about = Markup("%s %s") % (
        messages.name(job, viewer.words),
        code(f"{press.queue} {press.message_id}"),
    )
    return job_actions.dialog(press, about, viewer.words)


def job_of(connection: Connection, settings: Settings, press: JobPress) -> str | None:
    """Return the name of the job that a message is, None for one that gives none.

    Raise `MessageNotFound` or `QueueNotFound`.
    """
    of = (connection, settings, press.queue, press.message_id)
    if press.verb in OF_LETTERS:
        return dead_letters.one(*of).letter.message.job
    try:
        return jobs.failed_job(*of).failed.job
    except MessageNotFound:
        return queues.message(*of).job


def _about_all(wanted: JobFilter, words: Words, *, enqueued: bool) -> Markup:
    """Return what a filter asks for; what is enqueued has no error."""
    asked = [code(one) for one in (wanted.queue, wanted.job, wanted.error_class) if one]
    if not asked and enqueued:
        return words.rich("Of all queues.")
    if not asked:
        return words.rich("Of all queues, whatever their error.")
    return words.rich("Only those of %(filter)s.", filter=Markup(", ").join(asked))
