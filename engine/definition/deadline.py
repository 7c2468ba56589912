"""Until when a step waits for its signal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pgbus.engine.definition.options import OptionError, aware_moment, positive_duration


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a wait is over: this long `after` it began, or `at` a moment; one of them is set."""

    after: timedelta | None = None
    at: datetime | None = None


def deadline_of(value: object) -> Deadline | None:
    """Return what a `wait_timeout` comes to, `None` for a wait without a deadline.

    Raise `ValueError` for what is neither seconds or a `timedelta` above 0, nor an aware
    `datetime`, past ones included, nor `None`.
    """
    if value is None:
        return None
    try:
        if isinstance(value, datetime):
            return Deadline(at=aware_moment(value))
        return Deadline(after=positive_duration(value))
    except OptionError as error:
        raise ValueError(
            f"wait_timeout gave {value!r}, which is no deadline; give seconds or a timedelta above "
            "0 (at most 100 years), a datetime with a time zone (of the years 2 to 9998), or None"
        ) from error
