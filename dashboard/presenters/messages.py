"""Messages and jobs as people know them: what each is, what it waits for, and why it failed."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.dashboard.presenters import documents, marks
from pgbus.dashboard.presenters.attempts import Cause, ErrorView
from pgbus.dashboard.presenters.bulk import cut
from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import code, pgettext
from pgbus.engine.insights.jobs import LONGEST_MESSAGE
from pgbus.engine.insights.messages import MessageKind, MessageState
from pgbus.engine.runner.error_record import MESSAGE_LENGTH

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.documents import Document
    from pgbus.engine.insights.jobs import FailedJob
    from pgbus.engine.insights.messages import Message

#: Of a body a row of a list shows this much.
_LONGEST_CALL = 300

_STATES = {
    MessageState.DUE: Badge(pgettext("message status", "Due"), "idle", "ready"),
    MessageState.IN_HAND: Badge(pgettext("message status", "In flight"), "runs", "performing"),
    MessageState.RETRYING: Badge(pgettext("message status", "Failed, tried again"), "warn", "redo"),
    MessageState.LATER: Badge(pgettext("message status", "Later"), "idle", "scheduled"),
}
_LOST = Badge(pgettext("message status", "Message deleted"), "bad", "x")
_DEAD = Badge(pgettext("message status", "Dead letter"), "bad", "failed")

_KINDS = {
    MessageKind.JOB: pgettext("kind", "job"),
    MessageKind.MEMBER: pgettext("kind", "job of a batch"),
    MessageKind.STEP: pgettext("kind", "step of a run"),
    MessageKind.UNKNOWN: pgettext("kind", "nothing that pgbus sent"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """A message: what it is called and is, how it stands, and what it belongs to."""

    key: str
    name: Markup
    kind: str
    badge: Badge
    told: Markup
    queue: str
    queue_href: str | None
    number: str
    tries: str
    enqueued: Markup
    run: Markup | None
    batch: Markup | None


def view(message: Message, viewer: Viewer, *, dead: bool = False) -> MessageView:
    """Return a message; a `dead` one waits for nobody."""
    words = viewer.words
    run, batch = message.workflow_id, message.batch_id
    return MessageView(
        key=key(message),
        name=name(message.job, words) if run is None else words.rich("Step of a run"),
        kind=words.gettext(_KINDS[message.kind]),
        badge=_DEAD if dead else _STATES[message.state],
        told=_told(message, words),
        queue=message.queue,
        queue_href=viewer.url("queue", queue=message.logical),
        number=str(message.message_id),
        tries=words.number(message.read_count),
        enqueued=words.ago(message.enqueued_at),
        run=None
        if run is None
        else marks.link(viewer.url("run", workflow_id=run), marks.short_id(run)),
        batch=None
        if batch is None
        else marks.link(viewer.url("batch", batch_id=batch), marks.short_id(batch)),
    )


def key(message: Message | FailedJob) -> str:
    """Return what tells a message from all others."""
    return f"{message.queue}:{message.message_id}"


def name(job: str | None, words: Words) -> Markup:
    """Return a job's name; of a body that gives none, that it is no job."""
    return code(job) if job else words.rich("Message without a job")


def _told(message: Message, words: Words) -> Markup:
    """Say what a message waits for."""
    match message.state:
        case MessageState.DUE:
            return words.rich("due for %(time)s", time=words.since(message.visible_at))
        case MessageState.IN_HAND:
            since = message.read_at or message.enqueued_at
            return words.rich("with a worker for %(time)s", time=words.since(since))
        case MessageState.RETRYING:
            return words.rich("tried again %(when)s", when=words.ago(message.visible_at))
    return words.rich("due %(when)s", when=words.ago(message.visible_at))


def call(body: Document | None, viewer: Viewer) -> str | None:
    """Return the body in one line, as the host lets it be seen; a large one is only told of."""
    if body is None:
        return None
    if body.encoded is None:
        return documents.size(body.size, viewer.words)
    shown = functools.partial(viewer.shown, "payload")
    return cut(documents.call(body.encoded, shown), _LONGEST_CALL)


def body(stored: Document | None, viewer: Viewer) -> Markup | None:
    """Return all of a body, as the host lets it be seen."""
    if stored is None or stored.encoded is None:
        return None
    return documents.readable(stored.encoded, functools.partial(viewer.shown, "payload"))


def failed_badge(failed: FailedJob) -> Badge:
    """Return how it stands with a job that failed."""
    return _LOST if failed.state is None else _STATES[failed.state]


def next_try(failed: FailedJob, words: Words) -> Markup | None:
    """Return when a failed job is tried again; None while it is, and when it is not."""
    if failed.next_try_at is None or failed.state is MessageState.IN_HAND:
        return None
    if failed.state is MessageState.DUE:
        return words.rich("once a worker is free")
    return words.ago(failed.next_try_at)


def summary(message: str | None, viewer: Viewer) -> str | None:
    """Return the beginning of an error's message, as the host lets it be seen."""
    if not message:
        return None
    return cut(str(viewer.shown("error", message, whole=len(message) < LONGEST_MESSAGE)))


def error(
    error_class: str | None, message: str | None, stored: Document | None, viewer: Viewer
) -> ErrorView | None:
    """Return all that is known of an error, whatever the document is; None when nothing is."""
    record = _record(stored)
    if not (error_class or message or record):
        return None
    causes = record.get("causes")
    return ErrorView(
        error_class or "",
        _shown(message or "", viewer),
        _lines(record),
        tuple(
            Cause(
                str(one.get("class")),
                _shown(str(one.get("message", "")), viewer),
                _lines(one),
            )
            for one in (causes if isinstance(causes, list) else ())
            if isinstance(one, dict)
        ),
        None,
    )


def _shown(message: str, viewer: Viewer) -> str:
    """Return an error's message, of which no more than so much was kept, as the host lets it be seen."""
    return str(viewer.shown("error", message, whole=len(message) < MESSAGE_LENGTH))


def _record(stored: Document | None) -> dict[str, Any]:
    try:
        record = json.loads((stored and stored.encoded) or "{}")
    except (RecursionError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _lines(record: dict[str, Any]) -> tuple[str, ...]:
    lines = record.get("backtrace")
    return tuple(map(str, lines)) if isinstance(lines, list) else ()
