"""Queues as people know them: by their logical names, and whether their messages are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import _

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from pgbus.engine.insights.queues import QueueDepth

#: A queue is behind whose first message has been due for longer.
_BEHIND_AFTER = timedelta(minutes=5)

_SERVED = Badge(_("Served"), "good", "finished")
_BEHIND = Badge(_("Behind"), "warn", "late")
_UNREAD = Badge(_("Nobody reads it"), "bad", "attention")
_UNSERVED = Badge(_("No worker"), "idle", "ready")


@dataclass(frozen=True, slots=True)
class QueueTotal:
    """A logical queue: what its priorities hold together, and whether a worker reads it."""

    name: str
    visible: int
    in_flight: int
    later: int
    due_since: datetime | None
    served: bool

    @property
    def unread(self) -> bool:
        """Whether messages are due that no worker reads."""
        return bool(self.visible) and not self.served

    def behind(self, now: datetime) -> bool:
        """Tell whether its first message has been due for long."""
        return self.due_since is not None and now - self.due_since > _BEHIND_AFTER


def totals(depths: Iterable[QueueDepth], served: Collection[str]) -> tuple[QueueTotal, ...]:
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
        )
        for name, parts in by_name.items()
    )
    return tuple(sorted(merged, key=lambda one: (-one.visible, -one.in_flight, one.name)))


def badge(queue: QueueTotal, now: datetime) -> Badge:
    """Return whether a queue's messages are read, and fast enough."""
    if queue.unread:
        return _UNREAD
    if not queue.served:
        return _UNSERVED
    return _BEHIND if queue.behind(now) else _SERVED
