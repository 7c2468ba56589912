"""The words for what a run does and what happened to it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from pgbus.engine.cli.sentences import duration, event_sentence, state_sentence
from pgbus.engine.insights.attempts import Attempt
from pgbus.engine.insights.events import TrailEntry
from pgbus.engine.insights.runs import RunSummary
from pgbus.engine.states import AttemptStatus, RunStatus

THEN = datetime(2030, 1, 31, 8, 0, tzinfo=UTC)
RUN = RunSummary(
    workflow_id="0193",
    workflow_class="shop.Order",
    status=RunStatus.READY,
    subject_type=None,
    subject_id=None,
    current_step="charge",
    attempt=2,
    attempt_status=AttemptStatus.SCHEDULED,
    scheduled_at=THEN,
    due=False,
    error_class=None,
    created_at=THEN,
    updated_at=THEN,
    ended_at=None,
)
UTC_ZONE = ZoneInfo("UTC")
ATTEMPT = Attempt(
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
    ran_seconds=None,
    worker=None,
    revision=None,
    error_class=None,
    error_message=None,
    encoded_output=None,
    encoded_error=None,
)
ENTRY = TrailEntry(
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
        (
            {"status": RunStatus.WAITING, "attempt_status": AttemptStatus.WAITING},
            "waiting on charge",
        ),
    ],
)
def test_a_run_is_described_by_what_it_does(changes, sentence):
    assert state_sentence(replace(RUN, **changes), ZoneInfo("Europe/Paris")) == sentence


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
            "Paused by system (the worker of charge died)",
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
