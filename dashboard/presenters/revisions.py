"""How the attempts of each app revision went, and what became worse with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters import figures
from pgbus.dashboard.presenters.pipeline import points
from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import _, code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from pgbus.dashboard.presenters.figures import Cell
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.figures import Figures, Revision

#: So many of the steps that became worse are shown of a revision, the worst first.
_MOST_STEPS = 3

_REGRESSION = Badge(_("Regression"), "bad", "up")


@dataclass(frozen=True, slots=True)
class WorseStep:
    """A step whose failure rate rose with a revision, and by how much."""

    name: str
    rise: str
    attempts: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRow:
    """A revision; `told` is what the mark would say where there is none, `others` how many steps are left out."""

    key: str
    name: Markup
    badge: Badge | None
    told: str
    few: str | None
    attempts: str
    cells: tuple[Cell, ...]
    first: Markup
    steps: tuple[WorseStep, ...]
    others: str | None


def rows(revisions: Sequence[Revision], words: Words) -> tuple[RevisionRow, ...]:
    """Return a row a revision; the oldest has nothing to be compared with."""
    return tuple(
        _row(revision, words, oldest=place == len(revisions) - 1)
        for place, revision in enumerate(revisions)
    )


def _row(revision: Revision, words: Words, *, oldest: bool) -> RevisionRow:
    worst = sorted(revision.worse, key=lambda step: (-revision.worse[step], step))
    more = len(worst) - _MOST_STEPS
    return RevisionRow(
        key=revision.revision or "",
        name=words.rich("unknown") if revision.revision is None else code(revision.revision),
        badge=_REGRESSION if worst else None,
        told="—" if oldest else words.gettext("within 5 points"),
        few=figures.few_attempts(revision.total.ended, words),
        attempts=words.number(revision.total.ended),
        cells=figures.cells(revision.total, words),
        first=words.ago(revision.first_at),
        steps=tuple(
            _step(step, revision.by_step[step], revision.worse[step], words)
            for step in worst[:_MOST_STEPS]
        ),
        others=words.ngettext("and %(num)s other step", "and %(num)s other steps", more)
        if more > 0
        else None,
    )


def _step(name: str, told: Figures, rise: float, words: Words) -> WorseStep:
    return WorseStep(
        name,
        points(rise, words),
        words.number(told.ended),
        figures.cells(told, words, worse=True),
    )
