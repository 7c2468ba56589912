"""How attempts went, as the cells of a table, and what each of them counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.words import _
from pgbus.engine.insights.figures import FEW

if TYPE_CHECKING:
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.figures import Figures, Percentiles

#: What is counted how, in the words of the guide.
DEFINITIONS = (
    (
        _("Failed"),
        _(
            "The share of them for which an error was recorded, whatever followed: also when a policy tried again "
            "or skipped."
        ),
    ),
    (
        _("Reattempted"),
        _(
            "The share after which another attempt of the step was asked for, by a policy, the body or a stall. "
            "A resume by a person is none."
        ),
    ),
    (
        _("Skipped"),
        _(
            "The share whose step was skipped, by a guard, the body, a policy, a deadline or a person."
        ),
    ),
    (
        _("Run time"),
        _(
            "From the claim to the end of the body; that of a fan-out has its jobs in it. After a wait from the "
            "claim that follows the wake. Left out where no body need have ended: skipped or cancelled, stalled, a "
            "wait that timed out, a step that its class does not declare."
        ),
    ),
    (
        _("Pickup"),
        _(
            "From when the attempt was due to the claim; after a wait from the wake, after a pause at the "
            "earliest from the resume. One that was woken and never claimed has none."
        ),
    ),
    (
        _("End to end"),
        _("From created to finished, of the runs that finished in the window."),
    ),
    (
        _("Here now"),
        _("The ongoing runs whose current step it is; a run that has ended is at none."),
    ),
    (
        _("Reached"),
        _(
            "Of the runs that started in the window: those that have an attempt of the step, also a skipped one, "
            "or one that has not ended."
        ),
    ),
    (
        _("Few samples"),
        _("With fewer than 20 of them percentiles and rates say little."),
    ),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure with the head of its column, for where the table has none; `worse` marks a rise."""

    label: str
    value: str
    worse: bool = False


def cells(figures: Figures, words: Words, *, worse: bool = False) -> tuple[Cell, ...]:
    """Return the run times, pickup latencies and rates; the failures marked when they are `worse`."""
    if not figures.ended:
        return tuple(Cell(label, "—") for label in heads(words))
    values = (
        *_times(figures.run, words),
        *_times(figures.pickup, words),
        words.percent(figures.failure_rate),
        words.percent(figures.reattempt_rate),
        words.percent(figures.skip_rate),
    )
    return tuple(
        Cell(label, value, worse and place == _FAILED)
        for place, (label, value) in enumerate(zip(heads(words), values, strict=True))
    )


_HEADS = (
    *(_("Run p50"), _("Run p95"), _("Run p99"), _("Pickup p50"), _("Pickup p95"), _("Pickup p99")),
    *(_("Failed"), _("Reattempted"), _("Skipped")),
)
_FAILED = 6


def heads(words: Words) -> tuple[str, ...]:
    """Return the heads of the columns."""
    return tuple(map(words.gettext, _HEADS))


def few_attempts(number: int, words: Words) -> str | None:
    """Say of how few attempts figures are; None of enough, and of none."""
    if not 0 < number < FEW:
        return None
    return words.ngettext("%(num)s attempt, few samples", "%(num)s attempts, few samples", number)


def few_runs(number: int, words: Words) -> str | None:
    """Say of how few runs figures are; None of enough, and of none."""
    if not 0 < number < FEW:
        return None
    return words.ngettext("%(num)s run, few samples", "%(num)s runs, few samples", number)


def _times(percentiles: Percentiles, words: Words) -> tuple[str, ...]:
    return tuple(map(words.duration, (percentiles.p50, percentiles.p95, percentiles.p99)))
