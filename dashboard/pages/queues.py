"""The list of queues, and one queue with its messages."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.presenters import health as health_words
from pgbus.dashboard.presenters import messages as message_words
from pgbus.dashboard.presenters import queue_actions
from pgbus.dashboard.presenters import queues as queue_words
from pgbus.dashboard.presenters.pager import Pager, pager
from pgbus.engine.insights import health, processes, queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.confirmations import Ask, Confirmation
    from pgbus.dashboard.presenters.health import HintLine
    from pgbus.dashboard.presenters.messages import MessageView
    from pgbus.dashboard.presenters.queue_actions import QueuePress
    from pgbus.dashboard.presenters.queues import QueueTotal
    from pgbus.dashboard.presenters.status import Badge
    from pgbus.engine.insights.messages import Message
    from pgbus.engine.storage.database import Connection

PAGE_SIZE = 25
#: Of more queues than these the fullest are listed.
MOST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """One logical queue: how much is in it, whether it is read, and what can be done."""

    name: str
    href: str
    badge: Badge
    note: Markup | None
    depth: str
    visible: str
    in_flight: str
    later: str
    oldest: Markup | None
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesPage:
    """What the list shows."""

    template: ClassVar[str] = "queues.html"

    opening: tuple[Markup, ...]
    hints: tuple[HintLine, ...]
    queues: tuple[QueueLine, ...]
    more: str | None
    dialog: Confirmation | None
    back: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLine:
    """One message of a queue, and the beginning of what it holds."""

    message: MessageView
    href: str
    call: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage:
    """What the page of one queue shows."""

    template: ClassVar[str] = "queue.html"

    queue: QueueLine
    sentence: Markup
    messages: tuple[MessageLine, ...]
    pager: Pager
    dialog: Confirmation | None
    back: str


def load(connection: Connection, viewer: Viewer, press: QueuePress | None) -> QueuesPage:
    """Return the queues, the fullest first; with a dialog when one is asked for."""
    words, found = viewer.words, totals(connection, viewer)
    here = functools.partial(viewer.url, "queues")
    more = len(found) - MOST
    return QueuesPage(
        opening=queue_words.opening(found, words),
        hints=_hints(connection, viewer),
        queues=tuple(_line(queue, viewer, here) for queue in found[:MOST]),
        more=words.ngettext("And %(num)s more.", "And %(num)s more.", more) if more > 0 else None,
        dialog=_dialog(press, found, viewer),
        back=here(),
    )


def load_one(
    connection: Connection,
    viewer: Viewer,
    queue: str,
    press: QueuePress | None,
    *,
    after: str | None,
    before: str | None,
) -> QueuePage:
    """Return a queue with a page of its messages; raise `QueueNotFound`."""
    words, settings = viewer.words, viewer.settings
    found = queues.waiting(connection, settings, queue, limit=PAGE_SIZE, after=after, before=before)
    # Its queues may be dropped and others made between two looks, but not within one snapshot.
    (total,) = (one for one in totals(connection, viewer) if one.name == queue)
    url = functools.partial(viewer.url, "queue", queue=queue)
    here = functools.partial(url, after=after, before=before)
    return QueuePage(
        queue=_line(total, viewer, here),
        sentence=queue_words.sentence(total, words),
        messages=tuple(message_line(message, viewer) for message in found.messages),
        pager=pager(url, moved=bool(after or before), newer=found.preceding, older=found.following),
        dialog=_dialog(press, (total,), viewer),
        back=here(),
    )


def totals(connection: Connection, viewer: Viewer) -> tuple[QueueTotal, ...]:
    """Return how full the logical queues are, the fullest first."""
    settings = viewer.settings
    return queue_words.totals(
        queues.depths(connection, settings),
        processes.fleet(connection, settings, limit=0).served,
        queues.pauses(connection, settings),
    )


def message_line(message: Message, viewer: Viewer) -> MessageLine:
    """Return a message as a line of a table."""
    return MessageLine(
        message=message_words.view(message, viewer),
        href=viewer.url("message", queue=message.queue, number=message.message_id),
        call=message_words.call(message.body, viewer),
    )


def _line(queue: QueueTotal, viewer: Viewer, here: Callable[..., str]) -> QueueLine:
    words = viewer.words
    return QueueLine(
        name=queue.name,
        href=viewer.url("queue", queue=queue.name),
        badge=queue_words.badge(queue, words.now),
        note=queue_words.note(queue, words),
        depth=words.count(queue.depth),
        visible=words.count(queue.visible),
        in_flight=words.count(queue.in_flight),
        later=words.count(queue.later),
        oldest=words.since(queue.due_since) if queue.due_since else None,
        asks=tuple(queue_actions.asks(queue, viewer, here)),
    )


def _hints(connection: Connection, viewer: Viewer) -> tuple[HintLine, ...]:
    found = health.hints(connection, viewer.settings, health_words.OF_QUEUES)
    return health_words.lines(found, viewer.words)


def _dialog(
    press: QueuePress | None, found: tuple[QueueTotal, ...], viewer: Viewer
) -> Confirmation | None:
    if press is None:
        return None
    queue = next((one for one in found if one.name == press.queue), None)
    return queue_actions.dialog(press, queue, viewer) if queue else None
