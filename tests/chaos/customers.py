"""The outside world of the chaos test, a process of its own: orders, signals, an operator.

It may be killed at any moment. What it has not noted as done it does again, under the same
idempotency key. Told to stop, it first does what is left.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import sqlalchemy
from chaos.app import LONG_KINDS, Order, make_bus, make_sessions

from pgbus import InvalidTransition, NotOngoing, Pgbus, RunLocked
from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

#: Of these the operator pauses runs, to resume them.
OPERATED = ("Errands", "Booking", "Delivery", "Racing", "ToldLate", "Vendors", "SomeLost", "Flaky")

_LEFT = """
SELECT (SELECT count(*) FROM orders WHERE workflow_id IS NULL)
       + (SELECT count(*) FROM sendings WHERE sent + refused = 0)
       + (SELECT count(*) FROM orders o JOIN pgbus.workflows w USING (workflow_id)
           WHERE w.status = 'paused' AND o.kind = ANY (%(operated)s))
"""

_ONE_NEW = "SELECT id FROM orders WHERE workflow_id IS NULL ORDER BY random() LIMIT 1"

#: One that is to be sent, or, now and then, one that was.
_ONE_SENDING = """
SELECT s.key, s.name, s.payload, o.workflow_id::text
  FROM sendings s JOIN orders o ON o.id = s.order_id
 WHERE o.started_at + make_interval(secs => s.delay) < clock_timestamp()
   AND (s.sent + s.refused = 0 OR random() < 0.02)
 ORDER BY random() LIMIT 1
"""

_ONE_OF_STATUS = """
SELECT o.workflow_id::text FROM orders o JOIN pgbus.workflows w USING (workflow_id)
 WHERE o.kind = ANY (%(operated)s) AND w.status = ANY (%(statuses)s)
 ORDER BY random() LIMIT 1
"""


class Customers:
    def __init__(self, bus: Pgbus) -> None:
        self._bus = bus
        self._sessions = make_sessions()
        self._random = random.Random(os.environ["CHAOS_SEED"])
        self._pace = float(os.environ["CHAOS_PACE"])
        self._told_to_stop = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        pause = threading.Event()
        while not self._is_done():
            for act in (self._order, self._send, self._operate):
                self._persist(act)
            pause.wait(0.02 if self._told_to_stop else self._pace)

    def _stop(self, *_: object) -> None:
        self._told_to_stop = True

    def _is_done(self) -> bool:
        return self._told_to_stop and self._persist(lambda: self._value(_LEFT)) == 0

    def _persist(self, act: Any) -> Any:
        """What the act gives, or None when it is to be tried again: the database is away, say."""
        try:
            return act()
        except RunLocked:
            return None  # a frozen worker has it
        except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
            if not is_passing(error):
                raise
            threading.Event().wait(0.2)
            return None

    def _order(self) -> None:
        """Start an order's run: with the order in one transaction, or before it is noted."""
        order_id = self._value(_ONE_NEW)
        if order_id is None:
            return
        with self._sessions() as session:
            order = session.get_one(Order, order_id)
            joined = session if self._random.random() < 0.5 else None
            options = LONG_KINDS[order.kind].options(
                session=joined, idempotency_key=f"order-{order_id}"
            )
            run = self._bus.start(options, order)
            session.execute(
                sqlalchemy.text(
                    "UPDATE orders SET workflow_id = :run, started_at = clock_timestamp() WHERE id = :id"
                ),
                {"run": run.workflow_id, "id": order_id},
            )
            session.commit()

    def _send(self) -> None:
        row = self._row(_ONE_SENDING)
        if row is None:
            return
        key, name, payload, workflow_id = row
        with self._sessions() as session:
            joined = session if self._random.random() < 0.5 else None
            try:
                sent = self._bus.find(workflow_id).signal(
                    name, payload, idempotency_key=key, session=joined
                )
            except NotOngoing:
                change: dict[str, Any] = {"sent": 0, "ids": []}
            else:
                change = {"sent": 1, "ids": [sent.signal_id]}
            _note_sending(session, key, **change)
            session.commit()

    def _operate(self) -> None:
        """Pause a run, or resume one that the operator has paused."""
        if self._told_to_stop or self._random.random() < 0.4:
            verb, statuses = "resume", ["paused"]
        elif self._random.random() < 0.3:
            verb, statuses = "pause", ["ready", "performing", "waiting"]
        else:
            return
        workflow_id = self._value(_ONE_OF_STATUS, statuses=statuses)
        if workflow_id is None:
            return
        with suppress(InvalidTransition):  # it moved meanwhile
            getattr(self._bus.find(workflow_id), verb)(actor="operator")

    def _row(self, statement: str, **parameters: object) -> Any:
        url = os.environ["PGBUS_DATABASE_URL"]
        with psycopg.connect(url, autocommit=True) as connection:
            return connection.execute(
                statement, {"operated": list(OPERATED), **parameters}
            ).fetchone()

    def _value(self, statement: str, **parameters: object) -> Any:
        row = self._row(statement, **parameters)
        return row and row[0]


def _note_sending(session: Session, key: str, *, sent: int, ids: list[int]) -> None:
    session.execute(
        sqlalchemy.text(
            "UPDATE sendings SET sent = sent + :sent, refused = refused + 1 - :sent,"
            " signal_ids = signal_ids || CAST(:ids AS bigint[]) WHERE key = :key"
        ),
        {"sent": sent, "ids": ids, "key": key},
    )


if __name__ == "__main__":
    Customers(make_bus()).run()
