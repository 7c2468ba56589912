"""How long runs took from created to finished, as bars side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.performance import Bin, Durations


@dataclass(frozen=True, slots=True)
class BinRow:
    """Runs that took about as long; `begins` is what stands at the left end of their bar."""

    label: str
    begins: str
    runs: int
    told: str


@dataclass(frozen=True, slots=True)
class Line:
    """A percentile; `at` is its place among the bars, the middle of the first of which is 0."""

    at: str
    label: str


def rows(found: Durations, words: Words) -> tuple[BinRow, ...]:
    """Return a row for each stretch of durations."""
    return tuple(
        BinRow(_label(one, words), words.duration(one.low), one.runs, words.number(one.runs))
        for one in found.bins
    )


def end(found: Durations, words: Words) -> str:
    """Return what stands at the right end of the last bar; nothing where that has none."""
    high = found.bins[-1].high if found.bins else None
    return words.duration(high) if high is not None else ""


def lines(found: Durations, words: Words) -> Iterator[Line]:
    """Yield where half of the runs had finished, and all but one in twenty."""
    for name, seconds in (("p50", found.percentiles.p50), ("p95", found.percentiles.p95)):
        if seconds is not None:
            yield Line(f"{_place(found, seconds):.2f}", f"{name} {words.duration(seconds)}")


def _place(found: Durations, seconds: float) -> float:
    last = len(found.bins) - 1
    place = max(place for place, one in enumerate(found.bins) if not place or one.low <= seconds)
    one = found.bins[place]
    if one.high is None:
        return float(last)
    return place + (seconds - one.low) / (one.high - one.low) - 0.5


def _label(one: Bin, words: Words) -> str:
    if one.high is None:
        return f"≥ {words.duration(one.low)}"
    if not one.low:
        return f"< {words.duration(one.high)}"
    return words.gettext(
        "%(low)s to %(high)s", low=words.duration(one.low), high=words.duration(one.high)
    )
