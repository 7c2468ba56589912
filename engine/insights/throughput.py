"""How many runs began and ended, hour by hour."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING

from pgbus.engine.insights.selection import LANES

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from pgbus.engine.storage.database import Connection

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Hour:
    """What became of runs from `begin`, in the zone asked for, until the next hour's."""

    begin: datetime
    started: int
    finished: int
    cancelled: int


_NOW = "SELECT statement_timestamp()"

#: Each hour by itself is a stretch of two indexes that have all that is counted: the one of the list, lane by lane,
#: and that of the ends.
_HOURS = """
SELECT h.begin,
       (SELECT count(*) FROM {schema}.workflows
         WHERE lane = ANY (CAST(:lanes AS text[])) AND created_at >= h.begin AND created_at < h.until),
       ended.finished, ended.cancelled
  FROM (SELECT begin, lead(begin, 1, 'infinity') OVER (ORDER BY begin)
          FROM unnest(CAST(:begins AS timestamptz[])) begin) h (begin, until)
 CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE lane = 'finished') AS finished,
                            count(*) FILTER (WHERE lane = 'cancelled') AS cancelled
                       FROM {schema}.workflows
                      WHERE ended_at >= h.begin AND ended_at < h.until) ended
 ORDER BY h.begin
"""


def last_hours(connection: Connection, zone: tzinfo, *, hours: int = 24) -> tuple[Hour, ...]:
    """Return the hours of the zone's wall clock until now, oldest first; the last still goes on."""
    ((now,),) = connection.rows(_NOW)
    rows = connection.rows(_HOURS, begins=_begins(now, zone, hours), lanes=list(LANES))
    return tuple(Hour(begin.astimezone(zone), *counted) for begin, *counted in rows)


def _begins(now: datetime, zone: tzinfo, hours: int) -> list[datetime]:
    """Return when each hour began, both of one that a clock change repeats.

    A change by half an hour makes one of them longer, and the hours one fewer.
    """
    moments = (now.astimezone(UTC) - _HOUR * back for back in range(hours))
    return sorted({_whole(moment.astimezone(zone)).astimezone(UTC) for moment in moments})


def _whole(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
