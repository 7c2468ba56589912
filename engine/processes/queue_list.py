"""Which physical queues a worker reads, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.queues import PRIORITIES, parse_physical_name, physical_name
from pgbus.engine.storage.database import array_literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pgbus.engine.settings import Settings


class QueueList:
    """The queues of one worker: by priority, and within one priority each first in turn.

    Those that are paused are among its `physical` queues, and not read.
    """

    def __init__(self, settings: Settings, logical: Iterable[str]) -> None:
        self._prefix = settings.queue_prefix
        self._logical = frozenset(logical)
        self._orders = [array_literal(())]
        self._next = 0
        self.physical: frozenset[str] = frozenset()

    def wanted(self) -> list[str]:
        """Return the queues that must exist: one per logical name."""
        return [physical_name(self._prefix, logical) for logical in sorted(self._logical)]

    def update(self, existing: Mapping[str, bool]) -> None:
        """Take from the database's queues, each paused or not, those that are this worker's."""
        by_priority: dict[int, list[str]] = {priority: [] for priority in PRIORITIES}
        self.physical = frozenset(filter(self.may_be_mine, existing))
        for queue in sorted(self.physical):
            parsed = parse_physical_name(self._prefix, queue)
            if parsed and not existing[queue]:
                by_priority[parsed.priority].append(queue)
        rounds = max((len(group) for group in by_priority.values()), default=1) or 1
        self._orders = [
            array_literal(queue for group in by_priority.values() for queue in _turned(group, turn))
            for turn in range(rounds)
        ]

    def may_be_mine(self, queue: str) -> bool:
        """Tell whether a queue not seen before belongs to this worker."""
        parsed = parse_physical_name(self._prefix, queue)
        return parsed is not None and not parsed.is_dead_letter and parsed.logical in self._logical

    def next_order(self) -> str:
        """Return the queues in the order to read them this time, as an array literal."""
        self._next += 1
        return self._orders[self._next % len(self._orders)]


def _turned(group: list[str], turn: int) -> list[str]:
    if not group:
        return group
    start = turn % len(group)
    return group[start:] + group[:start]
