"""The buses of this process, and which of them a call belongs to.

`OrderWorkflow.start(...)` names no bus. It means the bus whose attempt or job runs here, else the
innermost `with bus.active():`, else the only bus there is.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pgbus.engine.errors import AmbiguousBus, NoBus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.bus import Pgbus

_buses: list[Pgbus] = []
_running: ContextVar[Pgbus | None] = ContextVar("pgbus_running_bus", default=None)
_active: ContextVar[Pgbus | None] = ContextVar("pgbus_active_bus", default=None)


def add_bus(bus: Pgbus) -> None:
    """Make `bus` one of this process's buses."""
    _buses.append(bus)


def remove_bus(bus: Pgbus) -> None:
    """Forget `bus`; a bus that is not known is none to forget."""
    _buses[:] = [known for known in _buses if known is not bus]


def current_bus() -> Pgbus:
    """Return the bus a call without one belongs to; `NoBus` or `AmbiguousBus` when it is open."""
    bus = _running.get() or _active.get()
    if bus is not None:
        return bus
    buses = tuple(_buses)
    if not buses:
        raise NoBus("this process has no bus; create one: bus = Pgbus(database_url=...)")
    if len(buses) > 1:
        different = dict.fromkeys(map(repr, buses))
        raise AmbiguousBus(
            f"this process has {len(buses)} open buses ({', '.join(different)}) and none is "
            "active; name one with `with bus.active():` or bus.start(...), and close() those that "
            "are no longer used"
        )
    return buses[0]


@contextmanager
def activated(bus: Pgbus) -> Iterator[None]:
    """Make `bus` the one that calls inside the block belong to."""
    token = _active.set(bus)
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def running_on(bus: Pgbus) -> Iterator[None]:
    """Make calls inside the block belong to `bus` before any active one: it runs them."""
    token = _running.set(bus)
    try:
        yield
    finally:
        _running.reset(token)
