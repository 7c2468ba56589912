"""Steps that are long due and whose message is gone: nothing would ever start them."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pgbus.engine.states import AttemptStatus, RunStatus
from pgbus.engine.storage import messages, runs, sweeping, transitions
from pgbus.engine.storage.sweeping import Walked
from pgbus.engine.sweep.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.sweeping import Overdue
    from pgbus.engine.sweep.round import Round

_log = logging.getLogger("pgbus.sweep")

LIMIT = 500
#: A message that is invisible for longer than this, and than a worker keeps it, has nobody.
_INVISIBLE = timedelta(minutes=1)


class LostMessages:
    """Sends the messages of overdue steps again; one that still waits in a long queue is not lost."""

    def __init__(self) -> None:
        self._walk = Walk(Walked.MOVING, Walked.OVERSLEPT)

    def sweep(self, turn: Round) -> int:
        """Return how many were sent again."""
        return sum(
            turn.repair(lost.workflow_id, partial(_send_again, turn, lost))
            for lost in islice(self._found(turn), LIMIT)
        )

    def _found(self, turn: Round) -> Iterator[Overdue]:
        settings = turn.services.settings
        patience = max(_INVISIBLE, settings.visibility_timeout)
        for within in self._walk.slices(turn):
            with turn.services.database.autocommit() as connection:
                overdue = sweeping.overdue(
                    connection, within, threshold=settings.workflow_stall_threshold
                )
                lost = list(_lost(connection, overdue, patience))
            yield from lost


def _lost(connection: Connection, overdue: list[Overdue], patience: timedelta) -> Iterator[Overdue]:
    """Yield those whose message cannot be delivered soon; a queue that was dropped is made again."""
    if not overdue:
        return
    by_queue: dict[str, list[Overdue]] = defaultdict(list)
    for one in overdue:
        by_queue[one.queue].append(one)
    for queue in by_queue.keys() - messages.queues(connection):
        messages.create_queue(connection, queue)
    for queue, waiting in by_queue.items():
        sent = [one.message_id for one in waiting if one.message_id is not None]
        there = sweeping.deliverable(connection, queue, sent, within=patience)
        yield from (one for one in waiting if one.message_id not in there)


def _send_again(turn: Round, lost: Overdue) -> bool:
    with turn.services.database.transaction() as connection:
        run, attempt = runs.lock(connection, lost.workflow_id)
        if (
            run.status is not RunStatus.READY
            or attempt.step_id != lost.step_id
            or attempt.status is not AttemptStatus.SCHEDULED
            or attempt.message_id != lost.message_id
        ):
            return False
        transitions.resend(connection, attempt, at=None)
    _log.warning(
        "The message of run %s was lost: step %s, due at %s, is sent again.",
        lost.workflow_id,
        attempt.step_name,
        attempt.scheduled_at.isoformat(),
    )
    return True
