"""How many runs began and ended, by hours of the viewer's wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from pgbus import Workflow, step
from pgbus.engine.insights import reading, throughput, windows

BERLIN = ZoneInfo("Europe/Berlin")
KOLKATA = ZoneInfo("Asia/Kolkata")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")


class Counted(Workflow):
    @step
    def only(self): ...


@pytest.fixture
def last_hours(bus):
    def last_hours(zone=UTC):
        with bus.services.database.autocommit() as connection:
            return throughput.last_hours(connection, zone, reading.now(connection))

    return last_hours


def begins(moment, zone):
    return windows.begins(moment - timedelta(hours=23), moment, windows.HOUR, zone)


def told(hours):
    return [(hour.started, hour.finished, hour.cancelled) for hour in hours]


def test_without_runs_each_hour_counts_none(bus, last_hours):
    hours = last_hours()
    assert told(hours) == [(0, 0, 0)] * 24
    assert hours[-1].begin <= datetime.now(UTC) < hours[-1].begin + timedelta(hours=1, minutes=1)


@pytest.mark.rows_by_hand
def test_runs_count_in_the_hour_they_began_and_in_the_one_they_ended(
    bus, driver, database, last_hours
):
    Counted.start()
    driver.drain()
    Counted.start().cancel()
    Counted.start()
    assert told(last_hours())[-1] == (3, 1, 1)
    this_hour = last_hours()[-1].begin
    database.rows("UPDATE pgbus.workflows SET created_at = %s", this_hour)
    database.rows(
        "UPDATE pgbus.workflows SET created_at = %s WHERE status = 'finished'",
        this_hour - timedelta(microseconds=1),
    )
    database.rows(
        "UPDATE pgbus.workflows SET created_at = %s, ended_at = %s WHERE status = 'cancelled'",
        this_hour - timedelta(hours=23, microseconds=1),
        this_hour - timedelta(hours=23),
    )
    hours = told(last_hours())
    assert hours[-2:] == [(1, 0, 0), (1, 1, 0)]
    assert hours[0] == (0, 0, 1), "what began before the first hour is not counted"
    assert hours[1:-2] == [(0, 0, 0)] * 21
    database.rows("UPDATE pgbus.workflows SET created_at = %s", this_hour - timedelta(hours=23))
    assert told(last_hours())[0] == (3, 0, 1)


def test_hours_are_those_of_a_zone_beside_the_full_hours_of_others(bus, last_hours):
    Counted.start()
    hours = last_hours(KOLKATA)
    assert told(hours)[-1] == (1, 0, 0)
    assert {hour.begin.minute for hour in hours} == {0}
    assert {hour.begin.astimezone(UTC).minute for hour in hours} == {30}


def test_the_hour_that_winter_repeats_is_there_twice():
    hours = begins(datetime(2026, 10, 25, 12, 34, 56, 789, tzinfo=UTC), BERLIN)
    assert [one.strftime("%H:%M%z") for one in hours[11:15]] == [
        "02:00+0200",
        "02:00+0100",
        "03:00+0100",
        "04:00+0100",
    ]
    assert (len(hours), hours[0].isoformat(), hours[-1].isoformat()) == (
        24,
        "2026-10-24T15:00:00+02:00",
        "2026-10-25T13:00:00+01:00",
    )


def test_the_hour_that_summer_leaves_out_is_not_there():
    hours = begins(datetime(2026, 3, 29, 9, 0, tzinfo=UTC), BERLIN)
    assert [one.strftime("%H:%M") for one in hours[14:17]] == ["01:00", "03:00", "04:00"]


def test_a_change_by_half_an_hour_makes_one_hour_longer():
    hours = begins(datetime(2026, 4, 5, 3, 10, tzinfo=UTC), LORD_HOWE)
    lengths = [
        (later.astimezone(UTC) - one.astimezone(UTC)).total_seconds() / 3600
        for one, later in pairwise(hours)
    ]
    assert sorted(lengths) == [1.0] * 21 + [1.5]
