"""How many runs began and ended, hour by hour."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING

from pgbus.engine.insights.selection import LANES
from pgbus.engine.states import RunStatus

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

#: How many runs began in each stretch, by the stretch's place among `begins`. The index has the moments
#: lane by lane.
_STARTED = """
SELECT width_bucket(created_at, CAST(:begins AS timestamptz[])), count(*)
  FROM {schema}.workflows
 WHERE lane = ANY (CAST(:lanes AS text[])) AND created_at >= CAST(:since AS timestamptz)
 GROUP BY 1
"""

_ENDED = """
SELECT width_bucket(ended_at, CAST(:begins AS timestamptz[])), lane, count(*)
  FROM {schema}.workflows
 WHERE ended_at >= CAST(:since AS timestamptz)
 GROUP BY 1, 2
"""


def last_hours(connection: Connection, zone: tzinfo, *, hours: int = 24) -> tuple[Hour, ...]:
    """Return the hours of the zone's wall clock until now, oldest first; the last still goes on."""
    ((now,),) = connection.rows(_NOW)
    begins = _begins(now, zone, hours)
    span = {"begins": begins, "since": begins[0]}
    started = dict(connection.rows(_STARTED, lanes=list(LANES), **span))
    ended = {
        (place, RunStatus(lane)): number for place, lane, number in connection.rows(_ENDED, **span)
    }
    return tuple(
        Hour(
            begin.astimezone(zone),
            started.get(place, 0),
            ended.get((place, RunStatus.FINISHED), 0),
            ended.get((place, RunStatus.CANCELLED), 0),
        )
        for place, begin in enumerate(begins, 1)
    )


def _begins(now: datetime, zone: tzinfo, hours: int) -> list[datetime]:
    """Return when each hour began, both of one that a clock change repeats.

    A change by half an hour makes one of them longer, and the hours one fewer.
    """
    moments = (now.astimezone(UTC) - _HOUR * back for back in range(hours))
    return sorted({_whole(moment.astimezone(zone)).astimezone(UTC) for moment in moments})


def _whole(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
