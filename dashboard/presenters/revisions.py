"""How the attempts of each app revision went, and what became worse with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters import figures, marks
from pgbus.dashboard.presenters.pipeline import points
from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import pgettext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from pgbus.dashboard.presenters.figures import Cell
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.figures import Revision

#: So many of the steps that became worse are shown of a revision, the worst first.
_MOST_STEPS = 3

_RUNNING = Badge(pgettext("revision status", "Running"), "runs", "performing")
_REGRESSION = Badge(pgettext("revision status", "Regression"), "bad", "up")
_SLOWER = Badge(pgettext("revision status", "Slower"), "bad", "up")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorseStep:
    """A step that became worse with a revision, and by how much."""

    name: str
    rises: tuple[str, ...]
    few: str | None
    attempts: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRow:
    """A revision; `told` stands for the marks where there is none, `others` is how many steps are left out."""

    key: str
    name: Markup
    running: Badge | None
    marks: tuple[Badge, ...]
    told: str
    few: str | None
    attempts: str
    cells: tuple[Cell, ...]
    first: Markup
    steps: tuple[WorseStep, ...]
    others: str | None


def rows(revisions: Sequence[Revision], words: Words) -> tuple[RevisionRow, ...]:
    """Return a row a revision."""
    return tuple(_row(revision, words) for revision in revisions)


def _row(revision: Revision, words: Words) -> RevisionRow:
    steps = _worst(revision)
    more = len(steps) - _MOST_STEPS
    changes = ((_REGRESSION, revision.worse), (_SLOWER, revision.slower))
    return RevisionRow(
        key=revision.revision or "",
        name=words.rich("unknown")
        if revision.revision is None
        else marks.revision(revision.revision),
        running=_RUNNING if revision.running else None,
        marks=tuple(badge for badge, steps in changes if steps),
        told=words.gettext("no step is worse") if revision.compared else "—",
        few=figures.few_attempts(revision.total.ended, words),
        attempts=words.number(revision.total.ended),
        cells=figures.cells(revision.total, words),
        first=words.ago(revision.first_at),
        steps=tuple(_step(step, revision, words) for step in steps[:_MOST_STEPS]),
        others=words.ngettext("and %(num)s other step", "and %(num)s other steps", more)
        if more > 0
        else None,
    )


def _worst(revision: Revision) -> list[str]:
    """Return what became worse, first the one that most slowed down; those of few attempts last."""

    def badness(step: str) -> tuple[bool, bool, float, float, str]:
        rise, longer = revision.worse.get(step, 0.0), revision.slower.get(step, 0.0)
        most = bool(longer) and longer == max(revision.slower.values())
        return revision.by_step[step].few, not most, -rise, -longer, step

    return sorted({*revision.worse, *revision.slower}, key=badness)


def _step(name: str, revision: Revision, words: Words) -> WorseStep:
    told = revision.by_step[name]
    rise, longer = revision.worse.get(name), revision.slower.get(name)
    rises = []
    if rise is not None:
        rises.append(points(rise, words))
    if longer is not None:
        rises.append(words.gettext("p95 +%(time)s", time=words.duration(longer)))
    return WorseStep(
        name=name,
        rises=tuple(rises),
        few=figures.few_attempts(told.ended, words),
        attempts=words.number(told.ended),
        cells=figures.cells(told, words, worse=rise is not None, slower=longer is not None),
    )
