"""Trouble of the bus itself in words: what is wrong, and what mends it, each on the pages it concerns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.words import _, code, foreign
from pgbus.engine.insights.health import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.health import Hint

#: What Home's first sentence does not tell itself.
OF_HOME = frozenset(
    {
        Problem.OLD_SCHEMA,
        Problem.NO_LISTEN,
        Problem.VACUUM_HELD_BACK,
        Problem.BLOATED_QUEUE,
        Problem.CLOCKS_APART,
    }
)
#: The page's own sentences tell which queues are paused, and which nobody reads.
OF_QUEUES = frozenset(
    {
        Problem.OLD_SCHEMA,
        Problem.NO_WORKER,
        Problem.VACUUM_HELD_BACK,
        Problem.BLOATED_QUEUE,
    }
)
OF_PROCESSES = frozenset(
    {
        Problem.OLD_SCHEMA,
        Problem.NO_WORKER,
        Problem.NO_DISPATCHER,
        Problem.NO_LISTEN,
        Problem.CLOCKS_APART,
    }
)

_BAD = frozenset({Problem.OLD_SCHEMA, Problem.NO_WORKER, Problem.NO_DISPATCHER})

_MENDS = {
    Problem.OLD_SCHEMA: _("Run %(command)s with this release."),
    Problem.NO_WORKER: _("Runs and jobs wait for one: %(command)s."),
    Problem.NO_DISPATCHER: _(
        "Deadlines, steps due later and the repair of what died wait for one: %(command)s."
    ),
    Problem.NO_LISTEN: _(
        "It finds work later, by polling. Behind a pooler, give %(command)s a direct connection."
    ),
    Problem.VACUUM_HELD_BACK: _(
        "While it is open, no table is cleaned of dead rows, and queues become slow. End it: %(command)s."
    ),
    Problem.BLOATED_QUEUE: _("Reading it becomes slow. Check autovacuum, or run %(command)s."),
    Problem.CLOCKS_APART: _("Its logs show other times. Correct its clock (%(command)s)."),
}
_COMMANDS = {
    Problem.OLD_SCHEMA: "pgbus migrate",
    Problem.NO_WORKER: "pgbus start --app MODULE:BUS",
    Problem.NO_DISPATCHER: "pgbus dispatcher",
    Problem.NO_LISTEN: "listen_url",
    Problem.VACUUM_HELD_BACK: "SELECT pg_terminate_backend(PID)",
    Problem.CLOCKS_APART: "NTP",
}


@dataclass(frozen=True, slots=True)
class HintLine:
    """What is wrong, and what mends it."""

    tone: str
    title: Markup
    mend: Markup


def lines(hints: Iterable[Hint], words: Words) -> tuple[HintLine, ...]:
    """Return the hints in their order."""
    return tuple(_line(hint, words) for hint in hints)


def _line(hint: Hint, words: Words) -> HintLine:
    command = _COMMANDS.get(hint.problem, f'VACUUM pgmq."q_{hint.subject}"')
    return HintLine(
        "bad" if hint.problem in _BAD else "warn",
        _title(hint, words),
        words.rich(_MENDS[hint.problem], command=code(command)),
    )


def _title(hint: Hint, words: Words) -> Markup:
    subject, number = code(hint.subject or ""), hint.number or 0
    match hint.problem:
        case Problem.OLD_SCHEMA:
            return words.rich("The database is not migrated to this release.")
        case Problem.NO_WORKER:
            return words.rich("No worker is running.")
        case Problem.NO_DISPATCHER if number:
            return words.nrich(
                "No dispatcher is running, and %(count)s deadline has passed.",
                "No dispatcher is running, and %(count)s deadlines have passed.",
                number,
                count=words.count(number),
            )
        case Problem.NO_DISPATCHER:
            return words.rich("No dispatcher is running.")
        case Problem.NO_LISTEN:
            return words.rich("Notifications do not reach %(process)s.", process=subject)
        case Problem.VACUUM_HELD_BACK:
            return words.rich(
                "A transaction has been open for %(time)s: %(session)s.",
                time=words.since(hint.since or words.now),
                session=foreign(hint.subject or ""),
            )
        case Problem.BLOATED_QUEUE:
            return _bloated(hint, words)
    return _apart(hint, words)


def _bloated(hint: Hint, words: Words) -> Markup:
    parts = {"queue": code(hint.subject or ""), "number": words.number(hint.number or 0)}
    if hint.since is None:
        return words.rich(
            "The table of %(queue)s holds %(number)s dead rows, and was never vacuumed.", **parts
        )
    return words.rich(
        "The table of %(queue)s holds %(number)s dead rows, and was last vacuumed %(when)s.",
        when=words.ago(hint.since),
        **parts,
    )


def _apart(hint: Hint, words: Words) -> Markup:
    key = _("The clock of %(process)s is %(time)s behind the database's.")
    if (hint.seconds or 0) > 0:
        key = _("The clock of %(process)s is %(time)s ahead of the database's.")
    return words.rich(
        key, process=code(hint.subject or ""), time=words.duration(abs(hint.seconds or 0))
    )
