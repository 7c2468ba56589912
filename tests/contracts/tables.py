"""The table of transitions in the guide, made from the one the engine obeys.

Run as a script, it renews the guide.
"""

from __future__ import annotations

import re
from pathlib import Path

from pgbus.engine.states import (
    NEEDS_CLASS,
    TRANSITIONS,
    AttemptStatus,
    Move,
    RunStatus,
    Transition,
    Verb,
    allows,
)

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "operating.md"

_BETWEEN = re.compile(
    r"(?<=<!-- transitions:begin \(renew: \.venv/bin/python tests/contracts/tables\.py\) -->\n)"
    r".*?(?=<!-- transitions:end -->)",
    re.DOTALL,
)


def transition_tables() -> str:
    """Markdown: the verbs of a caller, then the moves of the runner."""
    verbs = [
        [f"`{verb}`", *_ends(TRANSITIONS[verb]), _attempts(verb), _yes(verb in NEEDS_CLASS)]
        for verb in Verb
    ]
    moves = [[f"`{move}`", *_ends(TRANSITIONS[move])] for move in Move]
    return "\n".join(
        [
            "",
            *_table(["verb", "from", "to", "its newest attempt", "needs the class"], verbs),
            "",
            "The runner's own moves are never offered as actions:",
            "",
            *_table(["move", "from", "to"], moves),
            "",
            "",
        ]
    )


def written_tables() -> str:
    """What stands in the guide."""
    written = _BETWEEN.search(PAGE.read_text())
    assert written, f"{PAGE.name} has lost its transition markers"
    return written[0]


def renew() -> None:
    PAGE.write_text(_BETWEEN.sub(lambda _: transition_tables(), PAGE.read_text()))


def _ends(transition: Transition) -> list[str]:
    return [_statuses(transition.sources), _statuses(transition.targets)]


def _statuses(statuses: frozenset[RunStatus]) -> str:
    return ", ".join(status for status in RunStatus if status in statuses) or "(a new run)"


def _attempts(verb: Verb) -> str:
    """In which states of the newest attempt the verb is allowed, beside the run's own."""
    sources = TRANSITIONS[verb].sources
    allowed = [
        attempt
        for attempt in AttemptStatus
        if any(allows(verb, source, attempt) for source in sources)
    ]
    return "any" if len(allowed) == len(AttemptStatus) else ", ".join(allowed)


def _yes(value: bool) -> str:  # noqa: FBT001
    return "yes" if value else "no"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]


if __name__ == "__main__":
    renew()
