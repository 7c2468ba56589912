"""The runs of the last hours, as a small chart and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.throughput import Bucket

_WIDTH, _HEIGHT = 240, 40


@dataclass(frozen=True, slots=True)
class Bar:
    """An hour of the chart, in the units of its box of 240 by 40."""

    x: str
    y: str
    width: str
    height: str
    title: str


def bars(hours: tuple[Bucket, ...], words: Words) -> tuple[Bar, ...]:
    """Return the hours as the bars of a small chart, each with its figures for the pointer."""
    most = max((hour.started for hour in hours), default=0) or 1
    width = _WIDTH / max(len(hours), 1)
    found = []
    for place, hour in enumerate(hours):
        height = _HEIGHT * hour.started / most
        found.append(
            Bar(
                x=f"{place * width + 1:.1f}",
                y=f"{_HEIGHT - height:.1f}",
                width=f"{width - 2:.1f}",
                height=f"{height:.1f}",
                title=words.gettext(
                    "%(time)s. Started: %(started)s. Finished: %(finished)s. Cancelled: %(cancelled)s.",
                    time=words.exact(hour.begin),
                    started=words.number(hour.started),
                    finished=words.number(hour.finished),
                    cancelled=words.number(hour.cancelled),
                ),
            )
        )
    return tuple(found)


def started(hours: tuple[Bucket, ...], words: Words) -> Markup:
    """Say how many runs were started, and in which hour the most."""
    number = sum(hour.started for hour in hours)
    if not number:
        return words.rich("No run was started.")
    busiest = max(hours, key=lambda hour: hour.started)
    if busiest.started == number:
        return words.nrich(
            "%(num)s run was started, in the hour from %(time)s.",
            "%(num)s runs were started, all in the hour from %(time)s.",
            number,
            time=words.clock(busiest.begin),
        )
    return words.nrich(
        "%(num)s run was started, %(most)s of them in the hour from %(time)s.",
        "%(num)s runs were started, %(most)s of them in the hour from %(time)s.",
        number,
        most=words.number(busiest.started),
        time=words.clock(busiest.begin),
    )


def ended(hours: tuple[Bucket, ...], words: Words) -> str:
    """Say how many runs ended, and how."""
    return words.gettext(
        "Finished: %(finished)s. Cancelled: %(cancelled)s.",
        finished=words.number(sum(hour.finished for hour in hours)),
        cancelled=words.number(sum(hour.cancelled for hour in hours)),
    )
