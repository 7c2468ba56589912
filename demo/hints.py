"""What could be tried just now, said when there is something to try it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus import FanOutFailed
from pgbus.engine.states import Event

if TYPE_CHECKING:
    from demo.trail import Entry

_PGBUS = ".venv/bin/pgbus"
_FAN_OUT_FAILED = f"{FanOutFailed.__module__}.{FanOutFailed.__qualname__}"
#: How often each is given at most; who follows it is not given it again.
_TIMES = 2


class Hints:
    """Gives a hint at an event that makes room for one."""

    def __init__(self, shop_url: str) -> None:
        self._shop_url = shop_url
        self._left = dict.fromkeys(("kill", "resume", "mend", "signal"), _TIMES)

    def at(self, entry: Entry) -> str | None:
        """Return what could be tried at this event; None mostly."""
        match entry.event:
            case Event.STEP_STARTED if entry.is_being_unloaded:
                return self._give("kill", _kill(entry.worker_pid))
            case Event.STEP_WAITING if entry.waits_for_payment:
                return self._give("signal", _signal(entry))
            case Event.PAUSED if entry.error_class == _FAN_OUT_FAILED:
                return self._give("mend", self._mend(entry))
            case Event.PAUSED if entry.actor == "system":
                return self._give("resume", _resume(entry))
            case Event.STALL_DETECTED:
                self._left["kill"] = 0
            case Event.RESUMED:
                self._left["resume"] = 0
        return None

    def _give(self, kind: str, hint: str) -> str | None:
        if not self._left[kind]:
            return None
        self._left[kind] -= 1
        return hint

    def _mend(self, entry: Entry) -> str:
        return (
            f"Vale Orchard's address is misspelt. Mend it on {self._shop_url}/vendors (orchard), then "
            f"try `{_PGBUS} workflows resume {entry.workflow_id}`: all vendors of the box are asked anew."
        )


def _kill(worker: str) -> str:
    return (
        f"Worker {worker} unloads a delivery for the next seconds. Try `kill -9 {worker}` "
        "now: another worker starts, and what this one had in hand is done again within "
        "seconds. No order is lost, no card is charged twice."
    )


def _signal(entry: Entry) -> str:
    payload = '\'{"amount": "89.00"}\''
    return (
        f"{entry.run} waits for its money. Try `{_PGBUS} workflows show {entry.workflow_id}` in the "
        f"other terminal, or pay: `{_PGBUS} workflows signal {entry.workflow_id} payment_confirmed "
        f"--payload {payload}`."
    )


def _resume(entry: Entry) -> str:
    return (
        f"Try `{_PGBUS} workflows resume {entry.workflow_id}` in the other terminal: "
        f"the run goes on with {entry.step_name}, which may need one or two more tries."
    )
