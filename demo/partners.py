"""The shop's partners: a payment provider and a forwarder, who call its webhooks.

Like such companies they keep their own books, call until they are answered, and so call twice
when an answer is lost: here the first one always is.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import psycopg
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

_TICK = 0.2
_PATIENCE = 10
_MOST_TRIES = 8

_BOOKS = """
CREATE SCHEMA IF NOT EXISTS partners;
CREATE TABLE IF NOT EXISTS partners.calls (
    event uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    path text NOT NULL,
    form jsonb NOT NULL,
    due_at timestamptz NOT NULL,
    tries integer NOT NULL DEFAULT 0
)
"""
_PLAN = """
INSERT INTO partners.calls (path, form, due_at) VALUES (%s, %s, clock_timestamp() + %s)
"""
#: A call that is made is due again, later and later, until it is done with.
_TAKE_DUE = """
UPDATE partners.calls SET tries = tries + 1, due_at = clock_timestamp() + interval '1 s' * 2 ^ tries
 WHERE due_at <= clock_timestamp()
RETURNING event::text, path, form, tries
"""
_DONE = "DELETE FROM partners.calls WHERE event = %s"


class Partners:
    """What the partners know; `plan` what happens at theirs, `calling` lets them tell the shop."""

    def __init__(self, database_url: str, shop_url: str) -> None:
        self._database_url = database_url
        self._shop_url = shop_url
        with self._connected() as connection:
            connection.execute(_BOOKS)

    def plan(self, path: str, form: dict[str, Any], *, after: timedelta) -> None:
        """Let something happen after that time, of which the webhook `path` is told."""
        with self._connected() as connection:
            connection.execute(_PLAN, [path, Jsonb(form), after])

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Make the calls that are due, in a thread, until the block ends."""
        stopping = threading.Event()
        thread = threading.Thread(target=self._call, args=[stopping], name="partners")
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    def _call(self, stopping: threading.Event) -> None:
        with self._connected() as connection:
            while not stopping.wait(_TICK):
                for event, path, form, tries in connection.execute(_TAKE_DUE).fetchall():
                    answered = self._tell(path, form | {"event": event})
                    if (answered and tries > 1) or tries >= _MOST_TRIES:
                        connection.execute(_DONE, [event])

    def _tell(self, path: str, form: dict[str, Any]) -> bool:
        """Return whether the shop took note."""
        call = Request(self._shop_url + path, data=urlencode(form).encode())  # noqa: S310 (the shop's own address)
        try:
            with urlopen(call, timeout=_PATIENCE):  # noqa: S310 (as above)
                return True
        except OSError:
            return False

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._database_url, autocommit=True)
