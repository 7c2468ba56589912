"""What is past its time is deleted, a batch at a time; a retention of None keeps all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pgbus.engine.queues import parse_physical_name
from pgbus.engine.storage import messages, retention
from pgbus.engine.storage.sweeping import LEAST_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.storage.database import Connection
    from pgbus.engine.sweep.round import Round

#: Rows that one statement looks at or deletes.
LIMIT = 1_000
#: A batch may have thousands of members.
BATCHES = 50


class EndedRuns:
    """Deletes runs that ended longer ago than `workflow_retention`, with all that belongs to them.

    It visits each older run once; a round that ends early goes on in the next.
    """

    def __init__(self) -> None:
        self._after = LEAST_ID

    def delete(self, turn: Round) -> int:
        """Return how many runs were deleted."""
        age = turn.services.settings.workflow_retention
        if age is None:
            return 0
        deleted = 0
        while not turn.is_over():
            with turn.services.database.transaction() as connection:
                old = retention.old_runs(connection, after=self._after, age=age, limit=LIMIT)
                deleted += retention.delete_runs(connection, [run for run, ended in old if ended])
            if len(old) < LIMIT:
                self._after = LEAST_ID
                break
            self._after = old[-1][0]
        return deleted


def finished_batches(turn: Round) -> int:
    """Delete batches finished longer ago than `batch_retention` that no fan-out waits for."""
    age = turn.services.settings.batch_retention
    if age is None:
        return 0
    return _until_few(turn, partial(retention.delete_batches, age=age, limit=BATCHES), BATCHES)


def archived_messages(turn: Round) -> int:
    """Delete messages archived longer ago than `archive_retention` from the bus's queues."""
    settings = turn.services.settings
    age = settings.archive_retention
    if age is None:
        return 0
    with turn.services.database.autocommit() as connection:
        queues = sorted(messages.queues(connection))
    deleted = 0
    for queue in queues:
        if parse_physical_name(settings.queue_prefix, queue):
            delete = partial(retention.delete_archived, queue=queue, age=age, limit=LIMIT)
            deleted += _until_few(turn, delete, LIMIT)
    return deleted


def _until_few(turn: Round, delete: Callable[[Connection], int], many: int) -> int:
    """Delete until that was less than `many`, or the round is over."""
    total, deleted = 0, many
    while deleted == many and not turn.is_over():
        with turn.services.database.transaction() as connection:
            deleted = delete(connection)
        total += deleted
    return total
