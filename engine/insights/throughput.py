"""How many runs began and ended, bucket by bucket of a wall clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.insights import windows
from pgbus.engine.insights.selection import LANES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, tzinfo

    from pgbus.engine.storage.database import Connection


@dataclass(frozen=True, slots=True)
class Bucket:
    """What became of runs from `begin`, in the zone asked for, until the next bucket's."""

    begin: datetime
    started: int
    finished: int
    cancelled: int


#: Each bucket by itself is a stretch of two indexes that have all that is counted: the one of the list, lane by
#: lane, and that of the ends.
_BUCKETS = """
SELECT h.begin,
       (SELECT count(*) FROM {schema}.workflows
         WHERE lane = ANY (CAST(:lanes AS text[])) AND created_at >= h.since AND created_at < h.until {of_class}),
       ended.finished, ended.cancelled
  FROM (SELECT begin, greatest(begin, CAST(:since AS timestamptz)),
               lead(begin, 1, CAST(:until AS timestamptz)) OVER (ORDER BY begin)
          FROM unnest(CAST(:begins AS timestamptz[])) begin) h (begin, since, until)
 CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE lane = 'finished') AS finished,
                            count(*) FILTER (WHERE lane = 'cancelled') AS cancelled
                       FROM {schema}.workflows
                      WHERE ended_at >= h.since AND ended_at < h.until {of_class}) ended
 ORDER BY h.begin
"""
_OF_ALL = _BUCKETS.replace("{of_class}", "")
_OF_CLASS = _BUCKETS.replace("{of_class}", "AND workflow_class = :workflow_class")


def last_hours(
    connection: Connection, zone: tzinfo, now: datetime, *, hours: int = 24
) -> tuple[Bucket, ...]:
    """Return the hours of the zone's wall clock until now, the moment of the reading, oldest first.

    A change of the clock by half an hour makes one of them longer, and the hours one fewer.
    """
    begins = windows.begins(now - (hours - 1) * windows.HOUR, now, windows.HOUR, zone)
    return _counted(connection, _OF_ALL, begins, begins[0], now)


def of_class(
    connection: Connection, span: windows.Span, zone: tzinfo, workflow_class: str
) -> tuple[Bucket, ...]:
    """Return the buckets of a span, oldest first; of the first only what is in the span counts."""
    return _counted(
        connection,
        _OF_CLASS,
        span.begins(zone),
        span.since,
        span.until,
        workflow_class=workflow_class,
    )


def _counted(
    connection: Connection,
    statement: str,
    begins: Sequence[datetime],
    since: datetime,
    until: datetime,
    **narrowed: str,
) -> tuple[Bucket, ...]:
    zone = begins[0].tzinfo
    rows = connection.rows(
        statement, begins=list(begins), since=since, until=until, lanes=list(LANES), **narrowed
    )
    return tuple(Bucket(begin.astimezone(zone), *counted) for begin, *counted in rows)
