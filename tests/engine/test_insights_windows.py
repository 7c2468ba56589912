"""A window of time up to now, and its buckets on the wall clock of any zone."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgbus import Pgbus
from pgbus.engine.insights import reading, windows
from pgbus.engine.insights.windows import Span, Window

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LENGTHS = {Window.HOUR: HOUR, Window.DAY: DAY, Window.WEEK: 7 * DAY, Window.MONTH: 30 * DAY}
ZONES = sorted(available_timezones())
#: Clocks change at quarters of an hour, by quarters, in all these years.
YEARS = range(2012, 2037)

#: Both changes; odd offsets; midnights left out, and repeated; a day left out. Each with a change of its clock.
PARTICULAR = [
    ("Europe/Berlin", "2026-03-29T01:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00Z"),
    ("America/New_York", "2026-03-08T07:00Z"),
    ("America/New_York", "2026-11-01T06:00Z"),
    ("Asia/Kolkata", "2026-11-01T06:00Z"),
    ("Asia/Kathmandu", "2026-11-01T06:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30Z"),
    ("Pacific/Chatham", "2026-04-04T14:00Z"),
    ("Pacific/Chatham", "2026-09-26T14:00Z"),
    ("Asia/Beirut", "2026-03-28T22:00Z"),
    ("Africa/Cairo", "2026-04-23T22:00Z"),
    ("America/Asuncion", "2023-10-01T04:00Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00Z"),
    ("America/Sao_Paulo", "2019-02-17T02:00Z"),
    ("America/Havana", "2026-11-01T05:00Z"),
    ("Atlantic/Azores", "2026-10-25T01:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"),
]


def begins(until, window, zone):
    """In UTC: in one zone, Python takes the two moments of a repeated hour for the same."""
    since = until - LENGTHS[window]
    found = Span(window, since, until, capped=False).begins(zone)
    assert {begin.tzinfo for begin in found} == {zone}
    return [begin.astimezone(UTC) for begin in found]


def scanned(until, window, zone):
    """What `begins` should be, found by watching the clock from one moment to the next."""
    since, bucket = until - LENGTHS[window], Span(window, until, until, capped=False).bucket
    tick = min(bucket, timedelta(minutes=15))
    moment = datetime(since.year, since.month, since.day, tzinfo=UTC) - 2 * DAY
    shown = before = latest = datetime.min.replace(tzinfo=UTC)
    found = []
    while moment < until:
        wall = moment.astimezone(zone).replace(tzinfo=UTC)  # as if UTC's clock showed that
        begin = wall - timedelta(hours=wall.hour, minutes=wall.minute) % bucket
        first_time = begin > latest
        again = bucket <= HOUR and (wall == begin or (wall > shown and begin != before))
        if first_time or again:
            found.append(moment)
        shown, before, latest = wall, begin, max(begin, latest)
        moment += tick
    first = max(one for one in found[1:] if one <= since)
    return [one for one in found if one >= first]


@cache
def changes(name, year):
    """When the zone's clock is changed in the year, roughly: a moment in the day after."""
    zone, start = ZoneInfo(name), datetime(year, 1, 1, tzinfo=UTC)
    days = [start + number * DAY for number in range(366)]
    return [
        day + DAY
        for day in days
        if day.astimezone(zone).utcoffset() != (day + DAY).astimezone(zone).utcoffset()
    ]


@pytest.mark.parametrize("window", Window)
@settings(max_examples=40, deadline=None, database=None)
@given(data=st.data())
def test_each_bucket_begins_where_the_clock_shows_a_multiple_of_its_length(window, data):
    name = data.draw(st.sampled_from(ZONES), label="zone")
    year = data.draw(st.sampled_from(YEARS), label="year")
    near = data.draw(st.sampled_from(changes(name, year) or [datetime(year, 6, 1, tzinfo=UTC)]))
    around = st.timedeltas(-DAY, LENGTHS[window] + DAY)
    until = near + data.draw(around, label="after")
    expected = scanned(until, window, ZoneInfo(name))
    assert begins(until, window, ZoneInfo(name)) == expected


@pytest.mark.parametrize(("name", "change"), PARTICULAR)
def test_around_a_particular_change_too(name, change):
    zone, moment = ZoneInfo(name), datetime.fromisoformat(change)
    for window, length in LENGTHS.items():
        for after in (timedelta(microseconds=1), timedelta(minutes=30), HOUR, length - HOUR):
            until = moment + after
            assert begins(until, window, zone) == scanned(until, window, zone)


@pytest.mark.parametrize(
    ("name", "noon", "expected"),
    [
        ("America/Sao_Paulo", "2018-11-05T14:00Z", ["03 00:00-0300", "04 01:00-0200", "05 00:00-0200"]),
        ("America/Havana", "2026-11-02T17:00Z", ["31 00:00-0400", "01 00:00-0400", "02 00:00-0500"]),
        ("Pacific/Apia", "2011-12-31T22:00Z", ["29 00:00-1000", "31 00:00+1400", "01 00:00+1400"]),
        ("Asia/Kathmandu", "2026-11-02T06:15Z", ["31 00:00+0545", "01 00:00+0545", "02 00:00+0545"]),
    ],
)  # fmt: skip
def test_a_day_begins_at_its_first_moment(name, noon, expected):
    zone = ZoneInfo(name)
    days = begins(datetime.fromisoformat(noon), Window.MONTH, zone)[-3:]
    assert [day.astimezone(zone).strftime("%d %H:%M%z") for day in days] == expected


def test_a_window_that_ends_where_a_bucket_begins_has_none_of_that():
    until = datetime(2026, 5, 4, 12, tzinfo=UTC)
    hours = begins(until, Window.DAY, UTC)
    assert (hours[0], hours[-1], len(hours)) == (until - DAY, until - HOUR, 24)
    later = begins(until + timedelta(microseconds=1), Window.DAY, UTC)
    assert (later[0], later[-1], len(later)) == (until - DAY, until, 25)


@pytest.mark.parametrize(
    ("retention", "window", "length", "capped"),
    [
        (timedelta(days=30), Window.MONTH, timedelta(days=30), False),
        (timedelta(days=30) - timedelta(seconds=1), Window.MONTH, timedelta(days=30, seconds=-1), True),
        (timedelta(hours=2), Window.DAY, timedelta(hours=2), True),
        (timedelta(hours=2), Window.HOUR, timedelta(hours=1), False),
        (None, Window.WEEK, timedelta(days=7), False),
    ],
)  # fmt: skip
def test_a_window_is_no_longer_than_ended_runs_are_kept(
    database, retention, window, length, capped
):
    with (
        closing(Pgbus(database_url=database.url, workflow_retention=retention)) as bus,
        bus.services.database.transaction() as connection,
    ):
        span = windows.span(bus.settings, window, reading.now(connection))
        now = reading.now(connection)
    assert span == Span(window, now - length, now, capped)
