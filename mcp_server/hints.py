"""Where the bus is in trouble, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.insights.health import Problem

if TYPE_CHECKING:
    from pgbus.engine.insights.health import Hint

_SENTENCES = {
    Problem.OLD_SCHEMA: "The database is not migrated to this version: run `pgbus migrate`.",
    Problem.NO_WORKER: "No worker runs: steps and jobs wait for one (`pgbus start`).",
    Problem.NO_DISPATCHER: (
        "No dispatcher runs: deadlines, far-off steps and repairs wait for one (`pgbus start`); "
        "{number} deadlines are past."
    ),
    Problem.UNREAD_QUEUE: "No worker serves the queue {subject}; {number} messages are due in it.",
    Problem.PAUSED_QUEUE: "The queue {subject} is paused since {since}; {number} messages are due in it.",
    Problem.NO_LISTEN: "Notifications do not reach the worker {subject}, which polls: see `listen_url`.",
    Problem.VACUUM_HELD_BACK: (
        "A transaction open since {since} ({subject}) keeps dead rows from being cleaned up: end it."
    ),
    Problem.BLOATED_QUEUE: (
        "The table of the queue {subject} holds {number} dead rows, vacuumed last {since}: see to autovacuum."
    ),
    Problem.CLOCKS_APART: (
        "The clock of {subject} differs from the database's by {seconds:+.1f} seconds: see to NTP."
    ),
}


def sentence(hint: Hint) -> str:
    """Return what is wrong, and what to do about it."""
    return _SENTENCES[hint.problem].format(
        subject=hint.subject,
        number=hint.number,
        since=f"{hint.since:%Y-%m-%d %H:%M %Z}" if hint.since else "never",
        seconds=hint.seconds or 0.0,
    )
