"""The audit trail in sentences, one test an event."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations

from pgbus.dashboard.presenters.trail import _LOOKS, _TOLD, trail
from pgbus.dashboard.words import Words
from pgbus.engine.insights.events import TrailEntry
from pgbus.engine.states import Event, OnTimeout

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
WORDS = Words(NullTranslations(), Locale("en"), ZoneInfo("UTC"), NOW)
BATCH = "01a0ea1f-0000-7d18-b2c4-e91d07f4aa58"
ENTRY = TrailEntry(
    event_id=7,
    event="resumed",
    step_name="capture",
    attempt=2,
    actor="system",
    reason=None,
    from_status="paused",
    to_status="ready",
    encoded_details=None,
    created_at=NOW - timedelta(minutes=14),
)


def url(endpoint, **values):
    return f"/{endpoint}/{values['batch_id']}"


def line(*, longest_reason=None, details=None, **changes):
    encoded = None if details is None else json.dumps(details)
    entry = replace(ENTRY, encoded_details=encoded, **changes)
    (found,) = trail([entry], words=WORDS, url=url, longest_reason=longest_reason)
    return found


def text(**changes):
    """Returns what the line says, its quotation marked by quotes."""
    html = re.sub("</?q>", '"', str(line(**changes).text))
    return unescape(re.sub("<[^>]*>", "", html))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"event": "started", "actor": "app"}, "Started by app"),
        (
            {"event": "started", "actor": "app", "reason": "checkout"},
            'Started by app: "checkout"',
        ),
        ({"event": "step_scheduled"}, "capture scheduled, attempt 2"),
        ({"event": "step_started"}, "capture taken by a worker, attempt 2"),
        ({"event": "step_completed"}, "capture completed, attempt 2"),
        (
            {"event": "step_failed", "details": {"error_class": "shop.errors.Declined"}},
            "capture failed, attempt 2: Declined",
        ),
        ({"event": "step_skipped"}, "capture skipped, attempt 2"),
        ({"event": "step_skipped", "actor": "cli:bo"}, "capture skipped by cli:bo"),
        (
            {"event": "step_skipped", "details": {"error_class": "a.Gone"}},
            "capture skipped after Gone, attempt 2",
        ),
        (
            {
                "event": "step_skipped",
                "actor": "cli:bo",
                "details": {"batch_id": BATCH, "open_jobs": 3},
            },
            "capture skipped by cli:bo (3 jobs were still open)",
        ),
        ({"event": "step_reattempted"}, "Attempt 2 of capture is followed by another"),
        (
            {"event": "step_reattempted", "details": {"error_class": "a.TimeoutError"}},
            "Attempt 2 of capture failed with TimeoutError and is followed by another",
        ),
        ({"event": "paused"}, "Paused after attempt 2 of capture"),
        (
            {"event": "paused", "reason": "gave up after 5 reattempts"},
            'Paused after attempt 2 of capture: "gave up after 5 reattempts"',
        ),
        ({"event": "paused", "actor": "dashboard:alice"}, "Paused by dashboard:alice"),
        (
            {"event": "resumed", "actor": "dashboard:alice", "reason": "SMTP fixed"},
            'Resumed by dashboard:alice: "SMTP fixed"',
        ),
        (
            {"event": "resumed", "actor": "cli:bo", "details": {"step": "reserve"}},
            "Resumed at reserve by cli:bo",
        ),
        ({"event": "cancelled", "actor": "cli:bo"}, "Cancelled by cli:bo"),
        ({"event": "cancelled"}, "Cancelled after attempt 2 of capture"),
        (
            {
                "event": "cancelled",
                "actor": "cli:bo",
                "details": {"batch_id": BATCH, "open_jobs": 1},
            },
            "Cancelled by cli:bo (1 job was still open)",
        ),
        ({"event": "finished"}, "Finished"),
        ({"event": "run_now", "actor": "cli:bo"}, "capture sent at once by cli:bo"),
        (
            {
                "event": "rescheduled",
                "actor": "cli:bo",
                "details": {"scheduled_at": "2026-11-29T14:30:00+00:00"},
            },
            "capture rescheduled to 14:30 by cli:bo",
        ),
        ({"event": "rerun", "actor": "cli:bo"}, "Rerun by cli:bo"),
        (
            {"event": "stall_detected", "details": {"detection": "sweep"}},
            "The worker of capture died or hung, attempt 2",
        ),
        (
            {"event": "late_completion_ignored"},
            "Attempt 2 of capture ended after all; its outcome did not count any more",
        ),
        (
            {"event": "signal_received", "actor": "webhook", "details": {"name": "paid"}},
            "Signal paid received from webhook",
        ),
        (
            {
                "event": "signal_received",
                "actor": "webhook",
                "details": {"name": "paid", "duplicate": True},
            },
            "Signal paid received again from webhook; its key is known, nothing changed",
        ),
        (
            {"event": "signal_claimed", "details": {"name": "paid", "signal_id": 3}},
            "Signal paid taken by capture, attempt 2",
        ),
        (
            {"event": "step_waiting", "details": {"wait_for": "paid", "timeout_at": None}},
            "capture began to wait for signal paid",
        ),
        (
            {
                "event": "step_waiting",
                "details": {"wait_for": "paid", "timeout_at": "2026-11-29T18:00:00+00:00"},
            },
            "capture began to wait for signal paid, until 18:00",
        ),
        (
            {"event": "step_waiting", "details": {"batch_id": BATCH}},
            "capture began to wait for batch …07f4aa58",
        ),
        (
            {"event": "fan_out_opened", "details": {"batch_id": BATCH, "size": 12}},
            "capture sent the jobs of batch …07f4aa58 (12 jobs)",
        ),
        (
            {
                "event": "fan_out_finished",
                "details": {"batch_id": BATCH, "failed_jobs": 3, "total_jobs": 12},
            },
            "The jobs of capture have ended (3 of 12 jobs failed)",
        ),
        (
            {"event": "fan_out_finished", "details": {"failed_jobs": 0, "total_jobs": 1}},
            "The jobs of capture have ended (1 job)",
        ),
        (
            {
                "event": "fan_out_finished",
                "details": {"batch_id": BATCH, "failed_jobs": None, "total_jobs": None},
            },
            "The jobs of capture have ended",
        ),
        (
            {"event": "teleported_far", "actor": "cli:bo"},
            "Teleported far by cli:bo (capture, attempt 2)",
        ),
        (
            {"event": "teleported", "actor": "cli:bo", "step_name": None, "attempt": None},
            "Teleported by cli:bo",
        ),
    ],
)
def test_an_event_is_told(changes, told):
    assert text(**changes) == told


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("pause", "Signal paid did not come in time: capture failed"),
        ("cancel", "Signal paid did not come in time: the run is cancelled"),
        ("skip", "Signal paid did not come in time: capture is skipped"),
        ("run", "Signal paid did not come in time: capture runs without it"),
        ("notify", "Signal paid is late: capture goes on waiting"),
        ("another", "capture waited for signal paid beyond its deadline"),
    ],
)
def test_a_missed_deadline_is_told_with_what_it_did(action, told):
    details = {"wait_for": "paid", "action": action, "timeout_at": "2026-11-29T06:00:00+00:00"}
    assert text(event="wait_timed_out", details=details) == told


def test_every_event_has_a_message_and_a_look():
    assert set(_TOLD) == set(_LOOKS) == set(Event)
    assert {action.value for action in OnTimeout} == {"pause", "cancel", "skip", "run", "notify"}


def test_a_batch_is_linked():
    found = line(event="fan_out_opened", details={"batch_id": BATCH, "size": 1})
    assert f'<a href="/batch/{BATCH}">' in found.text


def test_a_line_tells_when_and_looks_like_its_event():
    found = line(event="step_failed", details={"error_class": "a.B"})
    assert (found.key, found.tone, found.icon) == (7, "bad", "failed")
    assert ">14 min ago</time>" in found.when


@pytest.mark.parametrize("details", [[1], "text", 7, {}, {"wait_for": None, "timeout_at": "soon"}])
@pytest.mark.parametrize("event", list(Event))
def test_details_of_another_form_than_expected_break_nothing(event, details):
    assert text(event=event, details=details)


def test_texts_of_people_and_code_are_escaped():
    evil = "<img src=x onerror=alert(1)>"
    for event in [*Event, evil]:
        found = line(
            event=event, actor=evil, reason=evil, step_name=evil,
            details={
                "name": evil, "wait_for": evil, "step": evil, "error_class": evil, "batch_id": evil,
                "timeout_at": evil, "scheduled_at": evil, "action": evil,
            },
        )  # fmt: skip
        assert "<img" not in found.text, event


def test_a_reason_of_many_words_is_cut_where_there_are_many_entries():
    assert text(event="resumed", actor="bo", reason="a" * 400, longest_reason=300).endswith(
        f'"{"a" * 300}…"'
    )
    assert text(event="resumed", actor="bo", reason="a" * 400).endswith(f'"{"a" * 400}"')
    assert text(event="resumed", actor="bo", reason="a" * 300, longest_reason=300).endswith('a"')
