"""Attempts that a worker has claimed without learning of it: the answer went with its connection.

Nobody performs them, and left alone they would look like a dead worker's once their
messages are delivered again. They are what the database says this process has claimed and
no thread has in hand.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pgbus.engine.storage import claims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.processes.in_flight import InFlight
    from pgbus.engine.processes.performer import Performer
    from pgbus.engine.storage.claims import Delivery, Worker
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.worker")

#: Seconds to wait for the answers that are on their way, before looking again at the next turn.
_PATIENCE = 1.0
_LOOK_EVERY = 0.01


class LostClaims:
    """Looks for them after PostgreSQL failed to answer."""

    def __init__(
        self,
        worker: Worker,
        process_id: str,
        performers: Sequence[Performer],
        in_flight: InFlight,
    ) -> None:
        self._worker = worker
        self._process_id = process_id
        self._performers = performers
        self._in_flight = in_flight
        self._looked_at = 0
        self._failures = 0

    def suspected(self, failures: int) -> bool:
        """Tell whether a statement failed since the last look; `failures` counts those that did."""
        self._failures = failures
        return failures != self._looked_at

    def find(self, connection: Connection) -> list[Delivery]:
        """Take the lost claims in hand, and return them; [] as well when it has to look again."""
        failures = self._failures
        suspects = {claim.step_id for claim in self._unknown(connection)}
        lost: list[Delivery] = []
        if suspects:
            # A claim whose answer is still on its way is not lost: it is in hand, or over, once
            # every statement that was under way has been answered.
            if not self._answers_came():
                return []
            lost = [
                claim
                for claim in self._unknown(connection)
                if claim.step_id in suspects and self._in_flight.hold(claim)
            ]
        if lost:
            _log.warning("%d attempts were claimed by statements whose answer was lost; "
                         "they are performed now.", len(lost))  # fmt: skip
        self._looked_at = failures
        return lost

    def _unknown(self, connection: Connection) -> list[Delivery]:
        claimed = claims.of_process(connection, self._worker, self._process_id)
        return [claim for claim in claimed if claim not in self._in_flight]

    def _answers_came(self) -> bool:
        awaited = [(performer, performer.awaited) for performer in self._performers]
        for _ in range(round(_PATIENCE / _LOOK_EVERY)):
            awaited = [(p, n) for p, n in awaited if n % 2 == 1 and p.awaited == n]
            if not awaited:
                return True
            time.sleep(_LOOK_EVERY)  # noqa: TID251 (the answers are awaited also by a worker that stops)
        return False
