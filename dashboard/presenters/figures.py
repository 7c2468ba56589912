"""How attempts went, as the cells of a table, and what each of them counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.words import _, pgettext
from pgbus.engine.insights.figures import FEW

if TYPE_CHECKING:
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.figures import Figures, Percentiles

#: What is counted how, in the words of the guide.
DEFINITIONS = (
    (
        pgettext("column: share", "Failed"),
        _(
            "The share of the attempts for which an error was recorded, whatever followed: also when a policy "
            "tried again or skipped."
        ),
    ),
    (
        pgettext("column: share", "Reattempted"),
        _(
            "The share after which another attempt of the step was asked for, by a policy, the body or a stall. "
            "A resume by a person does not count."
        ),
    ),
    (
        pgettext("column: share", "Skipped"),
        _(
            "The share whose step was skipped, by a guard, the body, a policy, a deadline or a person."
        ),
    ),
    (
        pgettext("column: duration", "Run time"),
        _(
            "From the claim to the end of the body; that of a fan-out includes its jobs. After a wait, from the "
            "claim that follows the wake. Left out where the body may not have ended: skipped or cancelled, stalled, a "
            "wait that timed out, a step that its class does not declare."
        ),
    ),
    (
        pgettext("column: duration", "Pickup"),
        _(
            "From when the attempt was due to the claim; after a wait, from the wake, after a pause at the "
            "earliest from the resume. One that was woken and never claimed has none."
        ),
    ),
    (
        pgettext("column: duration", "End to end"),
        _("From created to finished, of the runs that finished in the window."),
    ),
    (
        pgettext("column: runs", "Here now"),
        _("The ongoing runs whose current step it is; a run that has ended is at none."),
    ),
    (
        pgettext("column: runs", "Reached"),
        _(
            "Of the runs that started in the window: those that have an attempt of the step, also a skipped one, "
            "or one that has not ended."
        ),
    ),
    (
        _("Too few samples"),
        _("With fewer than 20 of them percentiles and rates say little."),
    ),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure; `worse` marks a rise."""

    value: str
    worse: bool = False


def cells(
    figures: Figures, words: Words, *, worse: bool = False, slower: bool = False
) -> tuple[Cell, ...]:
    """Return the run times, pickup latencies and rates, those marked that became worse: failures, p95."""
    if not figures.ended:
        return (Cell("—"),) * len(_HEADS)
    values = (
        *_times(figures.run, words),
        *_times(figures.pickup, words),
        words.percent(figures.failure_rate),
        words.percent(figures.reattempt_rate),
        words.percent(figures.skip_rate),
    )
    return tuple(
        Cell(value, (worse and place == _FAILED) or (slower and place == _RUN_P95))
        for place, value in enumerate(values)
    )


_HEADS = (
    *(_("Run p50"), _("Run p95"), _("Run p99"), _("Pickup p50"), _("Pickup p95"), _("Pickup p99")),
    *(
        pgettext("column: share", "Failed"),
        pgettext("column: share", "Reattempted"),
        pgettext("column: share", "Skipped"),
    ),
)
_RUN_P95, _FAILED = 1, 6


def heads(words: Words) -> tuple[str, ...]:
    """Return the heads of the columns."""
    return tuple(map(words.gettext, _HEADS))


def few_attempts(number: int, words: Words) -> str | None:
    """Say of how few attempts figures are; None of enough, and of none."""
    if not 0 < number < FEW:
        return None
    return words.ngettext(
        "%(num)s attempt, too few samples", "%(num)s attempts, too few samples", number
    )


def few_runs(number: int, words: Words) -> str | None:
    """Say of how few runs figures are; None of enough, and of none."""
    if not 0 < number < FEW:
        return None
    return words.ngettext("%(num)s run, too few samples", "%(num)s runs, too few samples", number)


def _times(percentiles: Percentiles, words: Words) -> tuple[str, ...]:
    return tuple(map(words.duration, (percentiles.p50, percentiles.p95, percentiles.p99)))
