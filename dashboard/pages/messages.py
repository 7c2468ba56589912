"""One message: what it is, what it holds, why it failed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.pages import dialogs
from pgbus.dashboard.presenters import job_actions
from pgbus.dashboard.presenters import messages as message_words
from pgbus.dashboard.presenters.job_actions import JobVerb
from pgbus.engine.errors import MessageNotFound
from pgbus.engine.insights import jobs, queues
from pgbus.engine.insights.messages import MessageKind, MessageState

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.attempts import ErrorView
    from pgbus.dashboard.presenters.confirmations import Ask, Confirmation
    from pgbus.dashboard.presenters.job_actions import JobPress
    from pgbus.dashboard.presenters.messages import MessageView
    from pgbus.engine.insights.jobs import FailedJobDetail
    from pgbus.engine.insights.messages import Message
    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    """What the page of a message shows."""

    template: ClassVar[str] = "message.html"

    message: MessageView
    body: Markup | None
    failed: Markup | None
    error: ErrorView | None
    asks: tuple[Ask, ...]
    dialog: Confirmation | None
    back: str


def load(
    connection: Connection, viewer: Viewer, queue: str, message_id: int, press: JobPress | None
) -> MessagePage:
    """Return the page of a message, by its queue's physical name; raise `QueueNotFound` or `MessageNotFound`."""
    message = queues.message(connection, viewer.settings, queue, message_id)
    failure = _failure(connection, viewer, queue, message_id)
    here = functools.partial(viewer.url, "message", queue=queue, number=message_id)
    return MessagePage(
        message=message_words.view(message, viewer),
        body=message_words.body(message.body, viewer),
        failed=viewer.words.ago(failure.failed.failed_at) if failure else None,
        error=_error(failure, viewer),
        asks=job_actions.asks(
            verbs_of(message),
            message_words.key(message),
            message.read_count,
            viewer,
            here,
        ),
        dialog=dialogs.dialog(connection, viewer, press) if press else None,
        back=here(),
    )


def verbs_of(message: Message) -> tuple[JobVerb, ...]:
    """Return what can be done with a message as it is now."""
    if message.kind is MessageKind.STEP or message.state is MessageState.IN_HAND:
        return ()
    if message.state is MessageState.DUE:
        return (JobVerb.DISCARD,)
    return (JobVerb.RETRY, JobVerb.DISCARD)


def _failure(
    connection: Connection, viewer: Viewer, queue: str, message_id: int
) -> FailedJobDetail | None:
    try:
        return jobs.failed_job(connection, viewer.settings, queue, message_id)
    except MessageNotFound:
        return None


def _error(failure: FailedJobDetail | None, viewer: Viewer) -> ErrorView | None:
    if failure is None:
        return None
    failed = failure.failed
    return message_words.error(failed.error_class, failed.error_message, failure.error, viewer)
