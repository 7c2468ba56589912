"""The runs that something must be moving, slice by slice: no index tells which of them need a look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.storage import sweeping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.storage.sweeping import Slice, Walked
    from pgbus.engine.sweep.round import Round

#: Runs that one statement looks at.
SLICE = 10_000


class Walk:
    """Goes once through the runs, one kind after the other; a round that ends early goes on in the next."""

    def __init__(self, *walked: Walked) -> None:
        self._walked = walked
        self._at = 0
        self._after = sweeping.BEGINNING

    def slices(self, turn: Round) -> Iterator[Slice]:
        """Yield the slices from where the last round stopped, to the end or until half of this one is over."""
        while not turn.is_half_over():
            with turn.services.database.autocommit() as connection:
                within = sweeping.next_slice(connection, self._walked[self._at], self._after, SLICE)
            yield within
            if within.until != sweeping.END:
                self._after = within.until
                continue
            self._after = sweeping.BEGINNING
            self._at = (self._at + 1) % len(self._walked)
            if self._at == 0:
                return
