"""The words for what a run does and what happened to it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from pgbus.engine.cli.sentences import duration, event_sentence, state_sentence
from pgbus.engine.insights.attempts import Attempt
from pgbus.engine.insights.events import TrailEntry
from pgbus.engine.insights.runs import RunSummary, StepPlace
from pgbus.engine.states import AttemptStatus, OnTimeout, RunStatus

THEN = datetime(2030, 1, 31, 8, 0, tzinfo=UTC)
RUN = RunSummary(
    workflow_id="0193",
    workflow_class="shop.Order",
    status=RunStatus.READY,
    subject_type=None,
    subject_id=None,
    current_step="charge",
    step_id=7,
    attempt=2,
    attempt_status=AttemptStatus.SCHEDULED,
    scheduled_at=THEN,
    due=False,
    queue_paused=False,
    error_class=None,
    held=None,
    created_at=THEN,
    updated_at=THEN,
    paused_at=None,
    ended_at=None,
    waiting_for=None,
    waiting_since=None,
    timeout_at=None,
    late_since=None,
    timed_out=False,
    batch_id=None,
    open_jobs=None,
    total_jobs=None,
    overdue_seconds=None,
    on_timeout=None,
    stuck=None,
    stuck_since=None,
    moved_by=None,
    moved_because=None,
    class_loaded=True,
    step_declared=True,
    step_removed=False,
    place=StepPlace(1, 2, "ship"),
)
UTC_ZONE = ZoneInfo("UTC")
ATTEMPT = Attempt(
    step_id=7,
    step_name="charge",
    attempt=2,
    status=AttemptStatus.SCHEDULED,
    outcome=None,
    created_at=THEN,
    scheduled_at=THEN,
    started_at=None,
    finished_at=None,
    waited_seconds=0.0,
    queued_seconds=0.0,
    waiting_seconds=0.0,
    ran_seconds=None,
    phases=(),
    marks=(),
    worker=None,
    revision=None,
    error_class=None,
    error_message=None,
    encoded_error=None,
    error_cut=False,
    output=None,
    waiting_for=None,
    waiting_since=None,
    timeout_at=None,
    seconds_left=None,
    late_since=None,
    timed_out=False,
    batch_id=None,
)
ENTRY = TrailEntry(
    event_id=1,
    event="resumed",
    step_name="charge",
    attempt=2,
    actor="cli:alice",
    reason=None,
    from_status="paused",
    to_status="ready",
    encoded_details=None,
    created_at=THEN,
)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "charge runs at 2030-01-31 09:00:00+01:00"),
        ({"due": True}, "charge is due"),
        (
            {"status": RunStatus.PERFORMING, "attempt_status": AttemptStatus.IN_PROGRESS},
            "performing charge, attempt 2",
        ),
        ({"status": RunStatus.PAUSED}, "paused before charge"),
        (
            {"status": RunStatus.PAUSED, "attempt_status": AttemptStatus.IN_PROGRESS},
            "paused while charge runs",
        ),
        (
            {
                "status": RunStatus.PAUSED,
                "attempt_status": AttemptStatus.FAILED,
                "error_class": "TimeoutError",
            },
            "paused on charge: TimeoutError",
        ),
        (
            {"status": RunStatus.PAUSED, "attempt_status": AttemptStatus.FAILED},
            "paused after charge",
        ),
        (
            {"status": RunStatus.PAUSED, "attempt_status": AttemptStatus.COMPLETED},
            "paused after charge",
        ),
        (
            {"status": RunStatus.FINISHED, "ended_at": THEN},
            "finished on charge at 2030-01-31 09:00:00+01:00",
        ),
    ],
)
def test_a_run_is_described_by_what_it_does(changes, sentence):
    assert state_sentence(replace(RUN, **changes), ZoneInfo("Europe/Paris")) == sentence


WAITING = replace(RUN, status=RunStatus.WAITING, attempt_status=AttemptStatus.WAITING)
FOR_SIGNAL = replace(WAITING, waiting_for="paid", waiting_since=THEN)
FOR_JOBS = replace(WAITING, batch_id="0194", waiting_since=THEN, open_jobs=12, total_jobs=40)
SINCE = "charge waits for the signal paid since 2030-01-31 08:00:00+00:00"
LATE = f"{SINCE}, late since 2030-01-31 08:00:00+00:00"


@pytest.mark.parametrize(
    ("run", "changes", "sentence"),
    [
        (FOR_SIGNAL, {}, SINCE),
        (
            FOR_SIGNAL,
            {"timeout_at": THEN + timedelta(days=7)},
            f"{SINCE}, until 2030-02-07 08:00:00+00:00",
        ),
        (
            FOR_SIGNAL,
            {"timeout_at": THEN + timedelta(days=2), "late_since": THEN + timedelta(days=1)},
            f"{SINCE}, late since 2030-02-01 08:00:00+00:00, next notice at 2030-02-02 08:00:00+00:00",
        ),
        (
            FOR_SIGNAL,
            {"late_since": THEN + timedelta(days=1)},
            f"{SINCE}, late since 2030-02-01 08:00:00+00:00; no further notice is due",
        ),
        (
            FOR_SIGNAL,
            {"timeout_at": THEN, "overdue_seconds": 40.4, "on_timeout": OnTimeout.PAUSE},
            f"{SINCE}; its deadline passed 40 s ago, and the next sweep pauses the run",
        ),
        (
            FOR_SIGNAL,
            {"timeout_at": THEN, "overdue_seconds": 3600.0},
            f"{SINCE}; its deadline passed 1:00:00 ago, and the next sweep does what its on_timeout says",
        ),
        (
            FOR_SIGNAL,
            {
                "timeout_at": THEN,
                "late_since": THEN,
                "overdue_seconds": 3.0,
                "on_timeout": OnTimeout.NOTIFY,
            },
            f"{LATE}; its deadline passed 3 s ago, and the next sweep tells of it",
        ),
        (
            FOR_SIGNAL,
            {"status": RunStatus.PAUSED, "late_since": THEN},
            "paused while charge waits for the signal paid",
        ),
        (FOR_JOBS, {}, "charge waits for 12 of 40 jobs"),
        (FOR_JOBS, {"open_jobs": 0}, "charge goes on soon: all 40 jobs have ended"),
        (
            FOR_JOBS,
            {"open_jobs": None, "total_jobs": None},
            "charge waits for a batch that is gone",
        ),
        (FOR_JOBS, {"status": RunStatus.PAUSED}, "paused while charge waits for 12 of 40 jobs"),
        (WAITING, {"status": RunStatus.PAUSED}, "paused before charge sends its jobs"),
        (RUN, {"due": True, "waiting_for": "paid"}, "charge is due: the signal paid came"),
        (
            RUN,
            {"due": True, "waiting_for": "paid", "timed_out": True},
            "charge is due: the signal paid did not come in time",
        ),
        (
            RUN,
            {"status": RunStatus.PAUSED, "waiting_for": "paid"},
            "paused before charge: the signal paid came",
        ),
    ],
)
def test_a_wait_is_described_by_what_is_waited_for(run, changes, sentence):
    assert state_sentence(replace(run, **changes), UTC_ZONE) == sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Resumed by cli:alice"),
        ({"reason": "SMTP fixed"}, "Resumed by cli:alice: SMTP fixed"),
        (
            {"encoded_details": '{"step": "reserve"}', "reason": "again"},
            "Resumed by cli:alice (step reserve): again",
        ),
        (
            {"event": "step_reattempted", "encoded_details": '{"error_class": "TimeoutError"}'},
            "Step reattempted by cli:alice (charge, attempt 2, error class TimeoutError)",
        ),
        ({"event": "was_teleported"}, "Was teleported by cli:alice (charge, attempt 2)"),
        ({"event": "was_teleported", "step_name": None}, "Was teleported by cli:alice"),
    ],
)
def test_an_event_tells_who_did_what_to_which_attempt_and_why(changes, sentence):
    assert event_sentence(replace(ENTRY, **changes), None, UTC_ZONE) == sentence


@pytest.mark.parametrize(
    ("event", "details", "sentence"),
    [
        (
            "signal_received",
            {"name": "paid", "idempotency_key": None, "duplicate": False},
            "Signal paid received by webhook",
        ),
        (
            "signal_received",
            {"name": "paid", "idempotency_key": "evt-1", "duplicate": True},
            "Signal paid received again by webhook (idempotency key evt-1)",
        ),
        ("signal_claimed", {"name": "paid"}, "Signal paid claimed by webhook (charge, attempt 2)"),
        ("signal_claimed", None, "Signal claimed by webhook (charge, attempt 2)"),
        (
            "step_waiting",
            {"timeout_at": "2030-02-07T09:00:00+01:00"},
            "Step waiting by webhook (charge, attempt 2, deadline 2030-02-07 08:00:00+00:00)",
        ),
        (
            "step_waiting",
            {"wait_for": "paid", "timeout_at": None},
            "Step waiting by webhook (charge, attempt 2, for the signal paid)",
        ),
        (
            "wait_timed_out",
            {"wait_for": "paid", "action": "notify"},
            "Wait timed out by webhook (charge, attempt 2, for the signal paid, action notify)",
        ),
        (
            "fan_out_opened",
            {"size": 40, "batch_id": "0194"},
            "Fan out opened by webhook (charge, attempt 2, 40 jobs, batch 0194)",
        ),
        (
            "fan_out_finished",
            {"total_jobs": 40, "failed_jobs": 0},
            "Fan out finished by webhook (charge, attempt 2, 40 jobs, 0 failed)",
        ),
        ("cancelled", {"open_jobs": 3}, "Cancelled by webhook (3 jobs open)"),
    ],
)
def test_an_event_of_a_wait_tells_what_was_waited_for(event, details, sentence):
    encoded = None if details is None else json.dumps(details)
    entry = replace(ENTRY, event=event, actor="webhook", encoded_details=encoded)
    assert event_sentence(entry, None, UTC_ZONE) == sentence


@pytest.mark.parametrize(
    ("entry", "attempt", "sentence"),
    [
        (
            {"event": "step_scheduled"},
            {"scheduled_at": THEN + timedelta(days=2)},
            "Step scheduled by system (charge, attempt 2, due 2030-02-02 08:00:00+00:00)",
        ),
        ({"event": "step_scheduled"}, {}, "Step scheduled by system (charge, attempt 2)"),
        (
            {"event": "step_scheduled"},
            {"scheduled_at": THEN + timedelta(days=2), "status": AttemptStatus.COMPLETED},
            "Step scheduled by system (charge, attempt 2)",
        ),
        (
            {"event": "paused"},
            {"status": AttemptStatus.FAILED, "error_class": "shop.gateway.Declined"},
            "Paused by system (charge failed with shop.gateway.Declined)",
        ),
        (
            {"event": "paused", "reason": "gave up after 2 reattempts"},
            {"status": AttemptStatus.FAILED, "error_class": "ConnectionError"},
            "Paused by system (charge failed with ConnectionError): gave up after 2 reattempts",
        ),
        (
            {"event": "paused"},
            {"status": AttemptStatus.FAILED, "error_class": "pgbus.engine.errors.StepStalled"},
            "Paused by system (the worker of charge died or hung)",
        ),
        (
            {"event": "paused"},
            {"status": AttemptStatus.FAILED, "error_class": "pgbus.engine.errors.WaitTimedOut"},
            "Paused by system (charge waited in vain)",
        ),
        (
            {"event": "paused"},
            {"status": AttemptStatus.FAILED, "error_class": "pgbus.engine.errors.FanOutFailed"},
            "Paused by system (jobs of charge failed)",
        ),
        ({"event": "paused"}, {"status": AttemptStatus.COMPLETED}, "Paused by system"),
        (
            {"event": "paused", "actor": "cli:alice"},
            {"status": AttemptStatus.FAILED, "error_class": "ConnectionError"},
            "Paused by cli:alice",
        ),
    ],
)
def test_what_the_attempt_knows_completes_the_sentence(entry, attempt, sentence):
    told = replace(ENTRY, **{"actor": "system"} | entry)
    assert event_sentence(told, replace(ATTEMPT, **attempt), UTC_ZONE) == sentence


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, ""),
        (0.0125, "0.013 s"),
        (59.9, "59.900 s"),
        (60, "0:01:00"),
        (90_061, "1 day, 1:01:01"),
    ],
)
def test_a_duration_is_exact_below_a_minute_and_clock_time_above(seconds, words):
    assert duration(seconds) == words
