"""Queues as people know them: by their logical names, and whether their messages are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import code, foreign, pgettext, quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from datetime import datetime

    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.queues import QueueDepth, QueuePause

#: A queue is behind whose first message has been due for longer.
_BEHIND_AFTER = timedelta(minutes=5)

_SERVED = Badge(pgettext("queue status", "Served"), "good", "finished")
_BEHIND = Badge(pgettext("queue status", "Behind"), "warn", "late")
_UNREAD = Badge(pgettext("queue status", "Nobody reads it"), "bad", "attention")
_UNSERVED = Badge(pgettext("queue status", "No worker"), "idle", "ready")
_PAUSED = Badge(pgettext("queue status", "Paused"), "warn", "paused")


#: Of more queues in trouble the first sentence counts the others.
_MOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class QueueTotal:
    """A logical queue: what its priorities hold together, and whether a worker reads it, or may."""

    name: str
    visible: int
    in_flight: int
    later: int
    due_since: datetime | None
    served: bool
    pause: QueuePause | None = None

    @property
    def depth(self) -> int:
        """How many messages it holds."""
        return self.visible + self.in_flight + self.later

    @property
    def unread(self) -> bool:
        """Whether messages are due that no worker reads, though it may."""
        return bool(self.visible) and not self.served and not self.pause

    def behind(self, now: datetime) -> bool:
        """Tell whether its first message has been due for long; in a pause it may be."""
        since = None if self.pause else self.due_since
        return since is not None and now - since > _BEHIND_AFTER


def totals(
    depths: Iterable[QueueDepth], served: Collection[str], pauses: Mapping[str, QueuePause]
) -> tuple[QueueTotal, ...]:
    """Return the logical queues, the fullest first."""
    by_name: dict[str, list[QueueDepth]] = {}
    for depth in depths:
        by_name.setdefault(depth.logical, []).append(depth)
    merged = (
        QueueTotal(
            name,
            sum(one.visible for one in parts),
            sum(one.in_flight for one in parts),
            sum(one.later for one in parts),
            min((one.due_since for one in parts if one.due_since), default=None),
            name in served,
            pauses.get(name),
        )
        for name, parts in by_name.items()
    )
    return tuple(sorted(merged, key=lambda one: (-one.visible, -one.in_flight, one.name)))


def badge(queue: QueueTotal, now: datetime) -> Badge:
    """Return whether a queue's messages are read, and fast enough."""
    if queue.pause:
        return _PAUSED
    if queue.unread:
        return _UNREAD
    if not queue.served:
        return _UNSERVED
    return _BEHIND if queue.behind(now) else _SERVED


def trouble(queues: Iterable[QueueTotal], words: Words) -> Iterator[Markup]:
    """Say where messages are due and nobody reads them, or may, or not fast enough."""
    for queue in queues:
        if queue.pause and queue.visible:
            yield words.nrich(
                "The queue %(queue)s is paused, and %(count)s message is due there.",
                "The queue %(queue)s is paused, and %(count)s messages are due there.",
                queue.visible,
                count=words.count(queue.visible),
                queue=code(queue.name),
            )
        elif queue.unread:
            yield words.nrich(
                "No worker reads the queue %(queue)s, where %(count)s message is due.",
                "No worker reads the queue %(queue)s, where %(count)s messages are due.",
                queue.visible,
                count=words.count(queue.visible),
                queue=code(queue.name),
            )
        elif queue.due_since and queue.behind(words.now):
            yield words.rich(
                "The workers do not keep up with %(queue)s: its first message has been due for %(time)s.",
                queue=code(queue.name),
                time=words.since(queue.due_since),
            )


def opening(queues: Collection[QueueTotal], words: Words) -> tuple[Markup, ...]:
    """Say which queues are in trouble, or how much is due in those that are not."""
    due = sum(queue.visible for queue in queues)
    if not due:
        return (words.rich("No message waits for a worker."),)
    if not any(queue.served for queue in queues):
        return (
            words.nrich(
                "No worker reads any queue: %(count)s message is due.",
                "No worker reads any queue: %(count)s messages are due.",
                due,
                count=words.count(due),
            ),
        )
    if wrong := tuple(trouble(queues, words)):
        more = len(wrong) - _MOST_TOLD
        others = words.nrich(
            "And %(num)s more queue is not read as it should be.",
            "And %(num)s more queues are not read as they should be.",
            more,
        )
        return (*wrong[:_MOST_TOLD], others) if more > 0 else wrong
    return (
        words.nrich(
            "Every queue is read: %(count)s message is due.",
            "Every queue is read: %(count)s messages are due.",
            due,
            count=words.count(due),
        ),
    )


def sentence(queue: QueueTotal, words: Words) -> Markup:
    """Say what becomes of a queue's messages."""
    if wrong := next(trouble([queue], words), None):
        return wrong
    if queue.visible:
        return words.nrich(
            "%(count)s message is due, the first for %(time)s.",
            "%(count)s messages are due, the first for %(time)s.",
            queue.visible,
            count=words.count(queue.visible),
            time=words.since(queue.due_since or words.now),
        )
    return words.rich("None of its messages waits for a worker.")


def note(queue: QueueTotal, words: Words) -> Markup | None:
    """Return why a queue is not read: who paused it, or what makes workers read it."""
    if queue.pause:
        return pause_told(queue.pause, words)
    if queue.unread:
        return words.rich("Name it where workers start: %(option)s.", option=code("--queues"))
    return None


def pause_told(pause: QueuePause, words: Words) -> Markup:
    """Say by whom a queue was paused, when and why."""
    by = {"actor": foreign(pause.actor), "when": words.ago(pause.since)}
    if pause.reason is None:
        return words.rich("Paused %(when)s by %(actor)s, without a reason.", **by)
    return words.rich("Paused %(when)s by %(actor)s: %(reason)s", reason=quoted(pause.reason), **by)
