"""A stretch of time up to now, and its buckets on a zone's wall clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from pgbus.engine.settings import Settings


class Window(StrEnum):
    """How far back from now insights look."""

    HOUR = "1h"
    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"


HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_QUARTER = timedelta(minutes=15)
_MINUTE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)

_LENGTHS = {
    Window.HOUR: HOUR,
    Window.DAY: _DAY,
    Window.WEEK: timedelta(days=7),
    Window.MONTH: timedelta(days=30),
}

_BUCKETS = {
    Window.HOUR: timedelta(minutes=5),
    Window.DAY: HOUR,
    Window.WEEK: timedelta(hours=6),
    Window.MONTH: _DAY,
}


@dataclass(frozen=True, slots=True)
class Span:
    """What a window comes to: from `since` on, before `until`, the moment of the reading.

    `capped`: the window is longer than ended runs are kept, so it begins with the oldest of those.
    """

    window: Window
    since: datetime
    until: datetime
    capped: bool

    @property
    def bucket(self) -> timedelta:
        """How long a bucket is on the wall clock."""
        return _BUCKETS[self.window]

    def begins(self, zone: tzinfo) -> tuple[datetime, ...]:
        """Return when each bucket begins, in the zone; the first mostly began before the window."""
        return begins(self.since, self.until, self.bucket, zone)


def span(settings: Settings, window: Window, until: datetime) -> Span:
    """Return what the window comes to at the moment of a reading."""
    length, kept = _LENGTHS[window], settings.workflow_retention
    capped = kept is not None and kept < length
    return Span(window, until - (kept if kept is not None and capped else length), until, capped)


def begins(
    since: datetime, until: datetime, bucket: timedelta, zone: tzinfo
) -> tuple[datetime, ...]:
    """Return when each bucket begins, in the zone, oldest first: from the one that `since` is in on.

    They begin at whole multiples of their length since local midnight. An hour that the clock repeats is
    there twice; a begin in the time that it leaves out is the first moment after that.
    """
    around = (since - _DAY, until)
    walls = _long(*around, bucket, zone) if bucket > HOUR else _short(*around, bucket, zone)
    found = sorted({_moment(wall) for wall in walls})
    first = max(moment for moment in found if moment <= since)
    return tuple(moment.astimezone(zone) for moment in found if first <= moment < until)


def _long(since: datetime, until: datetime, bucket: timedelta, zone: tzinfo) -> Iterator[datetime]:
    """Yield the wall clock's begins of buckets of some hours, day by day."""
    day, last = (moment.astimezone(zone).date() for moment in (since, until))
    while day <= last:
        for hour in range(0, 24, bucket // HOUR):
            yield datetime.combine(day, time(hour), zone)
        day += _DAY


def _short(since: datetime, until: datetime, bucket: timedelta, zone: tzinfo) -> Iterator[datetime]:
    """Yield those of buckets of an hour or less, each at least once: clocks are changed by quarters of one."""
    moment, step = since.astimezone(UTC), min(bucket, _QUARTER)
    while moment < until + step:
        wall = moment.astimezone(zone)
        over = timedelta(minutes=wall.minute) % bucket // _MINUTE
        yield wall.replace(minute=wall.minute - over, second=0, microsecond=0)
        moment += step


def _moment(wall: datetime) -> datetime:
    """Return when the wall clock shows this, or the first moment after, if it is put forward past that."""
    moment = wall.astimezone(UTC)
    if moment.astimezone(wall.tzinfo).replace(tzinfo=None) == wall.replace(tzinfo=None):
        return moment
    before, after = (wall.replace(fold=fold).astimezone(UTC) for fold in (1, 0))
    offset = before.astimezone(wall.tzinfo).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) // 2
        if middle.astimezone(wall.tzinfo).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after.replace(microsecond=0)
