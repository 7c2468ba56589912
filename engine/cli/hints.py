"""Where the bus itself is in trouble, in English: what is wrong, and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.cli.sentences import about, at
from pgbus.engine.insights import queues
from pgbus.engine.insights.health import Problem

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from pgbus.engine.insights.health import Hint

_MENDS = {
    Problem.OLD_SCHEMA: "Run pgbus migrate with this release.",
    Problem.NO_WORKER: "Runs and jobs wait for one: pgbus start --app MODULE:BUS.",
    Problem.NO_DISPATCHER: (
        "Deadlines, steps due later and the repair of what died wait for one: pgbus dispatcher."
    ),
    Problem.UNREAD_QUEUE: "Name it where workers start: --queues.",
    Problem.PAUSED_QUEUE: "Workers read it again after pgbus queues resume {subject}.",
    Problem.NO_LISTEN: (
        "It finds work later, by polling. Behind a pooler, give listen_url a direct connection."
    ),
    Problem.VACUUM_HELD_BACK: (
        "While it is open, no table is cleaned of dead rows, and queues become slow. "
        "End it: SELECT pg_terminate_backend(PID)."
    ),
    Problem.BLOATED_QUEUE: (
        'Reading it becomes slow. Check autovacuum, or run VACUUM pgmq."q_{subject}".'
    ),
    Problem.CLOCKS_APART: "Its logs show other times. Correct its clock (NTP).",
}


def trouble(hint: Hint, zone: ZoneInfo) -> str:
    """Return what is wrong."""
    subject, number, seconds = hint.subject, hint.number or 0, hint.seconds or 0.0
    since = at(hint.since, zone) if hint.since else None
    match hint.problem:
        case Problem.OLD_SCHEMA:
            return "The database is not migrated to this release."
        case Problem.NO_WORKER:
            return "No worker is running."
        case Problem.NO_DISPATCHER if number:
            past = _counted(number, "deadline has passed", "deadlines have passed")
            return f"No dispatcher is running, and {past}."
        case Problem.NO_DISPATCHER:
            return "No dispatcher is running."
        case Problem.UNREAD_QUEUE:
            return f"No worker reads the queue {subject}, where {_due(number)}."
        case Problem.PAUSED_QUEUE:
            return f"The queue {subject} has been paused since {since}, and {_due(number)} there."
        case Problem.NO_LISTEN:
            return f"Notifications do not reach {subject}."
        case Problem.VACUUM_HELD_BACK:
            return f"A transaction has been open since {since}: {subject}."
        case Problem.BLOATED_QUEUE:
            vacuumed = f"was last vacuumed at {since}" if since else "was never vacuumed"
            return f"The table of {subject} holds {number:,} dead rows, and {vacuumed}."
        case Problem.CLOCKS_APART:
            side = "ahead of" if seconds > 0 else "behind"
            return f"The clock of {subject} is {about(abs(seconds))} {side} the database's."


def mend(hint: Hint) -> str:
    """Return what to do about it."""
    return _MENDS[hint.problem].format(subject=hint.subject)


def _due(number: int) -> str:
    return _counted(number, "message is due", "messages are due")


def _counted(number: int, one: str, many: str) -> str:
    shown = f"{queues.CAP:,}+" if number > queues.CAP else f"{number:,}"
    return f"{shown} {one if number == 1 else many}"
