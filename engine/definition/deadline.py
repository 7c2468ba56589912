"""Until when a step waits for its signal."""

from __future__ import annotations

from datetime import datetime, timedelta

from pgbus.engine.definition.options import OptionError, aware_moment, positive_duration

#: How long a wait lasts from its begin, or the moment at which it is over.
Deadline = timedelta | datetime


def deadline_of(value: object) -> Deadline | None:
    """Return what a `wait_timeout` comes to, `None` for a wait without a deadline.

    Raise `ValueError` for what is neither seconds or a `timedelta` above 0, nor an aware
    `datetime`, past ones included, nor `None`.
    """
    if value is None:
        return None
    try:
        return aware_moment(value) if isinstance(value, datetime) else positive_duration(value)
    except OptionError as error:
        raise ValueError(
            f"wait_timeout gave {value!r}, which is no deadline; give seconds or a timedelta above "
            "0 (at most 100 years), a datetime with a time zone (of the years 2 to 9998), or None"
        ) from error
