"""The gate of a step that waits for a signal: it takes one, or the attempt parks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pgbus.engine import codec
from pgbus.engine.definition.signal import Signal
from pgbus.engine.storage import signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.definition.signal import Expectation
    from pgbus.engine.storage.database import Connection
    from pgbus.engine.storage.signals import SignalRow
    from pgbus.engine.subjects import SubjectReference


class Gate:
    """What one attempt finds at its gate; asked for once, and the same answer from then on."""

    def __init__(self, connection: Connection, step_id: int, expectation: Expectation) -> None:
        self._expectation = expectation
        self._found = signals.at_gate(connection, step_id, expectation.name)

    @property
    def timed_out(self) -> bool:
        """Whether the wait ended without a signal and the body runs all the same."""
        return self._found.timed_out

    @property
    def woken(self) -> bool:
        """Whether the attempt came here with a signal: one woke it, or an earlier attempt had it."""
        return self._found.woken and not self.timed_out

    @cached_property
    def row(self) -> SignalRow | None:
        """The signal that the attempt runs with: the one it holds, or the oldest that matches."""
        if self.timed_out:
            return None
        return self._found.held or first_match(self._expectation, self._found.pending)

    @property
    def takes(self) -> bool:
        """Whether that signal is still to be claimed."""
        return self.row is not None and self._found.held is None

    def received(self, load: Callable[[SubjectReference], object]) -> Signal | None:
        """Return that signal, the subjects in its payload as what `load` returns."""
        return None if self.row is None else self._expectation.received(signal_of(self.row, load))


def first_match(expectation: Expectation, pending: tuple[SignalRow, ...]) -> SignalRow | None:
    """Return the oldest signal that the step takes; what its matcher raises passes."""
    return next((row for row in pending if expectation.matches(signal_of(row))), None)


def signal_of(
    row: SignalRow,
    load: Callable[[SubjectReference], object] | None = None,
    *,
    duplicate_delivery: bool = False,
) -> Signal:
    """Return a stored signal as hosts see it; without `load` subjects stay references."""
    payload = {} if row.encoded_payload is None else codec.decode(row.encoded_payload, load=load)
    return Signal(
        signal_id=row.signal_id,
        name=row.name,
        payload=payload,
        idempotency_key=row.idempotency_key,
        actor=row.actor,
        reason=row.reason,
        received_at=row.received_at,
        duplicate_delivery=duplicate_delivery,
    )
