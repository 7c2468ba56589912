"""Where an attempt's time went: the row and its trail, made intervals."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from pgbus.engine.insights.events import TrailEntry
from pgbus.engine.insights.phases import (
    Mark,
    MarkKind,
    Moments,
    Pause,
    Phase,
    PhaseKind,
    marks,
    pauses,
    phases,
    totals,
)

WAITED, QUEUED, WAITING, RAN = PhaseKind
T0 = datetime(2030, 1, 31, 8, 0, tzinfo=UTC)


def at(minutes):
    return None if minutes is None else T0 + timedelta(minutes=minutes)


def moments(*, due=0, first_due=0, started=None, since=None, until=None, ended=None, batch=False):
    return Moments(
        created_at=T0,
        first_due=at(first_due),
        scheduled_at=at(due),
        started_at=at(started),
        waiting_since=at(since),
        timeout_at=at(until),
        finished_at=at(ended),
        on_batch=batch,
    )


def entry(minutes, event, source="performing", target="performing", **details):
    told = {name: at(v).isoformat() if name.endswith("_at") else v for name, v in details.items()}
    return TrailEntry(
        event_id=0,
        event=event,
        step_name="capture",
        attempt=1,
        actor="cli:alice",
        reason="why not",
        from_status=source,
        to_status=target,
        encoded_details=json.dumps(told) if told else None,
        created_at=at(minutes),
    )


def scheduled(minutes, target="ready"):
    return entry(minutes, "step_scheduled", target, target)


def claimed(minutes):
    return entry(minutes, "step_started", "ready")


def parked(minutes, target="waiting", **details):
    return entry(minutes, "step_waiting", "performing", target, **details)


def paused(minutes, source="ready"):
    return entry(minutes, "paused", source, "paused")


def resumed(minutes, target="ready"):
    return entry(minutes, "resumed", "paused", target)


def told(moments, *entries, now=100):
    """The phases as (kind, first minute, last minute or None)."""

    def minute(moment):
        return None if moment is None else (moment - T0) / timedelta(minutes=1)

    found = phases(moments, entries, at(now))
    for one, following in pairwise(found):
        assert one.end == following.begin, "a gap"
        assert one.kind is not following.kind, "one interval in two"
    return [(phase.kind, minute(phase.begin), minute(phase.end)) for phase in found]


@pytest.mark.parametrize(
    ("row", "entries", "expected"),
    [
        pytest.param(
            moments(due=60, started=75, ended=80),
            [scheduled(0), claimed(75)],
            [(WAITED, 0, 60), (QUEUED, 60, 75), (RAN, 75, 80)],
            id="ordinary",
        ),
        pytest.param(
            moments(started=0, ended=5), [scheduled(0), claimed(0)], [(RAN, 0, 5)], id="at once"
        ),
        pytest.param(
            moments(due=2880), [scheduled(0)], [(WAITED, 0, None)], id="scheduled far off"
        ),
        pytest.param(
            moments(due=60), [scheduled(0)], [(WAITED, 0, 60), (QUEUED, 60, None)], id="due"
        ),
        pytest.param(
            moments(started=2), [scheduled(0), claimed(2)], [(QUEUED, 0, 2), (RAN, 2, None)],
            id="running",
        ),
        pytest.param(
            moments(due=40, first_due=10, started=42, ended=50),
            [scheduled(0), claimed(12), parked(12.5, wait_for="paid"), scheduled(40), claimed(42)],
            [(WAITED, 0, 10), (QUEUED, 10, 12.5), (WAITING, 12.5, 40), (QUEUED, 40, 42), (RAN, 42, 50)],
            id="woken by a signal",
        ),
        pytest.param(
            moments(due=40, first_due=None, started=42, ended=50),
            [scheduled(0), claimed(12), parked(12, wait_for="paid"), scheduled(40), claimed(42)],
            [(WAITED, 0, 12), (WAITING, 12, 40), (QUEUED, 40, 42), (RAN, 42, 50)],
            id="woken, its first due lost",
        ),
        pytest.param(
            moments(started=1, since=1, until=90),
            [scheduled(0), claimed(1), parked(1, wait_for="paid", timeout_at=90)],
            [(QUEUED, 0, 1), (WAITING, 1, None)],
            id="waiting for a signal",
        ),
        pytest.param(
            moments(started=1, ended=30),
            [
                claimed(1), parked(1, wait_for="paid", timeout_at=30),
                entry(30, "wait_timed_out", "waiting", action="pause", timeout_at=30),
                entry(30, "step_failed"),
            ],
            [(QUEUED, 0, 1), (WAITING, 1, 30)],
            id="timed out",
        ),
        pytest.param(
            moments(due=30, started=31, ended=33),
            [
                claimed(1), parked(1, wait_for="paid", timeout_at=30),
                entry(30, "wait_timed_out", "waiting", "ready", action="run", timeout_at=30),
                scheduled(30), claimed(31),
            ],
            [(QUEUED, 0, 1), (WAITING, 1, 30), (QUEUED, 30, 31), (RAN, 31, 33)],
            id="timed out and run all the same",
        ),
        pytest.param(
            moments(started=1, since=1, until=60),
            [
                claimed(1), parked(1, wait_for="paid", timeout_at=30),
                entry(30, "wait_timed_out", "waiting", "waiting", action="notify", timeout_at=30),
            ],
            [(QUEUED, 0, 1), (WAITING, 1, None)],
            id="late and waiting on",
        ),
        pytest.param(
            moments(started=1, ended=20, batch=True),
            [
                claimed(1), entry(5, "fan_out_opened", batch_id="b", size=3), parked(5, batch_id="b"),
                entry(19.9, "fan_out_finished", "waiting"),
            ],
            [(QUEUED, 0, 1), (RAN, 1, 5), (WAITING, 5, 20)],
            id="fan-out",
        ),
        pytest.param(
            moments(started=1, ended=90),
            [claimed(1), entry(90, "stall_detected"), entry(90, "step_failed")],
            [(QUEUED, 0, 1), (RAN, 1, 90)],
            id="stalled",
        ),
        pytest.param(
            moments(due=60, ended=5), [scheduled(0), entry(5, "cancelled")], [(WAITED, 0, 5)],
            id="cancelled before it was due",
        ),
        pytest.param(
            moments(due=2, ended=5), [scheduled(0)], [(WAITED, 0, 2), (QUEUED, 2, 5)],
            id="cancelled while queued",
        ),
        pytest.param(
            moments(started=1, ended=1), [claimed(1), entry(1, "step_skipped")], [(QUEUED, 0, 1)],
            id="skipped by a guard",
        ),
        pytest.param(
            moments(started=1, ended=9), [claimed(1), paused(3, "performing")],
            [(QUEUED, 0, 1), (RAN, 1, 9)],
            id="paused while running",
        ),
        pytest.param(
            moments(due=10, started=32, ended=33),
            [scheduled(0), paused(5), resumed(30), claimed(32)],
            [(WAITED, 0, 30), (QUEUED, 30, 32), (RAN, 32, 33)],
            id="paused before it was due, resumed after",
        ),
        pytest.param(
            moments(due=10, started=32, ended=33),
            [scheduled(0), paused(15), resumed(30), claimed(32)],
            [(WAITED, 0, 10), (QUEUED, 10, 15), (WAITED, 15, 30), (QUEUED, 30, 32), (RAN, 32, 33)],
            id="paused while queued",
        ),
        pytest.param(
            moments(due=10), [scheduled(0), paused(15)],
            [(WAITED, 0, 10), (QUEUED, 10, 15), (WAITED, 15, None)],
            id="paused",
        ),
        pytest.param(
            moments(due=20, started=31, ended=33),
            [
                claimed(1), parked(1, wait_for="paid"), paused(5, "waiting"),
                scheduled(20, "paused"), resumed(30), claimed(31),
            ],
            [(QUEUED, 0, 1), (WAITING, 1, 20), (WAITED, 20, 30), (QUEUED, 30, 31), (RAN, 31, 33)],
            id="woken while its run was paused",
        ),
        pytest.param(
            moments(due=30, first_due=60, started=30, ended=31),
            [scheduled(0), entry(30, "run_now", "ready", "ready", scheduled_at=30), claimed(30)],
            [(WAITED, 0, 30), (RAN, 30, 31)],
            id="run now",
        ),
        pytest.param(
            moments(due=50, first_due=10, started=51, ended=52),
            [entry(20, "rescheduled", "ready", "ready", scheduled_at=50), claimed(51)],
            [(WAITED, 0, 10), (QUEUED, 10, 20), (WAITED, 20, 50), (QUEUED, 50, 51), (RAN, 51, 52)],
            id="rescheduled when it was due",
        ),
        pytest.param(
            moments(due=10, started=12, ended=20), [],
            [(WAITED, 0, 10), (QUEUED, 10, 12), (RAN, 12, 20)],
            id="without a trail",
        ),
        pytest.param(
            moments(started=2, since=5, batch=True), [],
            [(QUEUED, 0, 2), (RAN, 2, 5), (WAITING, 5, None)],
            id="waiting for a batch, without a trail",
        ),
        pytest.param(
            moments(due=40, started=42, ended=50), [scheduled(40), claimed(42)],
            [(WAITED, 0, 40), (QUEUED, 40, 42), (RAN, 42, 50)],
            id="woken, the wait's entries cut",
        ),
        pytest.param(
            moments(due=40, started=41, ended=50), [parked(3, wait_for="paid"), scheduled(40)],
            [(QUEUED, 0, 3), (WAITING, 3, 40), (QUEUED, 40, 41), (RAN, 41, 50)],
            id="woken, the claim's entries cut",
        ),
        pytest.param(
            moments(started=5, ended=2), [claimed(5)], [(QUEUED, 0, 2)], id="a clock set back"
        ),
    ],
)  # fmt: skip
def test_an_attempts_time_is_told_without_gaps(row, entries, expected):
    assert told(row, *entries) == expected


def test_what_follows_an_attempts_end_is_not_its_time():
    row = moments(started=1, ended=4)
    after = [entry(4, "paused", "performing", "paused"), resumed(50)]
    assert told(row, claimed(1), *after) == [(QUEUED, 0, 1), (RAN, 1, 4)]


def test_the_seconds_of_a_kind_are_summed_and_those_of_what_lasts_rise():
    found = (
        Phase(QUEUED, at(0), at(1)),
        Phase(WAITING, at(1), at(3)),
        Phase(QUEUED, at(3), None),
    )
    assert totals(found, at(5)) == {QUEUED: 180.0, WAITING: 120.0}


def test_pauses_last_until_something_else_becomes_of_the_run():
    entries = [
        paused(1),
        entry(2, "signal_received", "paused", "paused"),
        resumed(5),
        paused(7, "performing"),
        entry(8, "step_skipped", "paused", "ready"),
        paused(9),
    ]
    assert pauses(entries) == (
        Pause(at(1), at(5), "cli:alice", "why not"),
        Pause(at(7), at(8), "cli:alice", "why not"),
        Pause(at(9), None, "cli:alice", "why not"),
    )


def deadline(minutes):
    return Mark(MarkKind.DEADLINE, at(minutes))


def test_a_deadline_is_marked_also_when_the_signal_came_in_time():
    row = moments(due=10, started=11, ended=12)
    waited = [parked(1, wait_for="paid", timeout_at=30), scheduled(10)]
    assert marks(row, waited) == (deadline(30),)


def test_late_notices_are_marked_with_the_deadlines_they_tell_of():
    row = moments(started=1, since=1, until=90)
    late = entry(31, "wait_timed_out", "waiting", "waiting", action="notify", timeout_at=30)
    assert marks(row, [parked(1, wait_for="paid", timeout_at=30), late]) == (
        deadline(30),
        Mark(MarkKind.LATE_NOTICE, at(31)),
        deadline(90),
    )


def test_a_deadline_that_passed_is_marked_once():
    row = moments(started=1, ended=31)
    missed = entry(31, "wait_timed_out", "waiting", action="pause", timeout_at=30)
    assert marks(row, [parked(1, wait_for="paid", timeout_at=30), missed]) == (deadline(30),)


def test_a_deadline_that_a_pause_moved_is_marked_where_it_is_now():
    row = moments(started=1, since=1, until=45)
    assert marks(row, [parked(1, wait_for="paid", timeout_at=30)]) == (deadline(45),)


def test_a_deadline_that_a_pause_moved_stays_there_when_the_signal_came():
    row = moments(due=40, started=41, ended=42)
    waited = [
        parked(1, wait_for="paid", timeout_at=30),
        paused(5, source="waiting"),
        resumed(15, target="waiting"),
        paused(20, source="waiting"),
        resumed(25, target="waiting"),
        scheduled(40),
    ]
    assert marks(row, waited) == (deadline(45),)


def test_a_pause_after_the_signal_moves_no_deadline():
    row = moments(due=10, started=41, ended=42)
    waited = [
        parked(1, wait_for="paid", timeout_at=30),
        scheduled(10),
        paused(20),
        resumed(35),
    ]
    assert marks(row, waited) == (deadline(30),)


def test_a_wait_that_ended_while_its_run_was_paused_had_no_deadline_left():
    row = moments(due=10, started=41, ended=42)
    waited = [
        parked(1, wait_for="paid", timeout_at=30),
        paused(5, source="waiting"),
        scheduled(10, target="paused"),
        resumed(35),
    ]
    assert marks(row, waited) == ()


def test_the_deadline_of_a_paused_wait_is_nowhere():
    row = moments(started=1, since=1)
    assert marks(row, [parked(1, wait_for="paid", timeout_at=30)]) == ()
