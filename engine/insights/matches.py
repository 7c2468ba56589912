"""Messages that match, as a press on all of them takes them: found window by window, behind each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.engine.insights.messages import Place, beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: So many messages of a queue are looked at at once, and so many times in one search. When all of them are steps
#: of runs a search takes half a second, and some on a busy server: a page waits for it.
_WINDOW = 10_000
_MOST_LOOKS = 20


@dataclass(frozen=True, slots=True)
class JobKey:
    """A job that was found, and how often it had been delivered then."""

    queue: str
    message_id: int
    read_count: int


@dataclass(frozen=True, slots=True)
class Matches:
    """Those that were found, in order; `further` is where to look on, when the looks ended before the queues did."""

    keys: tuple[JobKey, ...]
    further: str | None


#: Those of a window that match, and its last message, where the next window begins.
_WINDOW_OF = """
SELECT m.msg_id, m.read_ct, m.matches, m.ends
  FROM (SELECT m.msg_id, m.read_ct, {condition} AS matches,
               row_number() OVER (ORDER BY m.msg_id) = CAST(:window AS integer) AS ends
          FROM (SELECT m.* FROM pgmq."q_{queue}" m WHERE {beside}
                 ORDER BY m.msg_id LIMIT CAST(:window AS integer)) m) m
 WHERE m.matches OR m.ends
 ORDER BY m.msg_id LIMIT CAST(:limit AS integer)
"""


def matches(
    connection: Connection,
    settings: Settings,
    queues: Sequence[str],
    condition: str,
    *,
    limit: int,
    after: str | None,
    **parameters: object,
) -> Matches:
    """Return the first messages that meet a condition over a message `m`, from the first on or behind a place.

    The queues come in their order. Raise `BadCursor` for a text that is no place.
    """
    keys: list[JobKey] = []
    place, looks = None if after is None else Place.parse(after), 0
    for queue in queues:
        while len(keys) < limit and (where := beside(settings, queue, place)) is not None:
            rows = connection.rows(
                _WINDOW_OF.replace("{condition}", condition)
                .replace("{beside}", where)
                .replace("{queue}", queue),
                place=place and place.message_id,
                window=_WINDOW,
                limit=limit - len(keys),
                **parameters,
            )
            keys.extend(JobKey(queue, *row[:2]) for row in rows if row[2])
            if not (rows and rows[-1][3]):
                break
            place, looks = Place(queue, rows[-1][0]), looks + 1
            if looks == _MOST_LOOKS:
                return Matches(tuple(keys), str(place))
    return Matches(tuple(keys), None)
