"""What the console says of a run, one test for each situation there is."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations

from pgbus.dashboard.presenters import sentences
from pgbus.dashboard.presenters.status import status
from pgbus.dashboard.words import Words
from pgbus.engine.insights.runs import RunSummary, StepPlace
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import AttemptStatus, Move, OnTimeout, RunStatus

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ENGLISH = Words(NullTranslations(), Locale("en"), ZoneInfo("UTC"), NOW)
READY = RunSummary(
    workflow_id="01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58",
    workflow_class="shop.OrderWorkflow",
    status=RunStatus.READY,
    subject_type="Order",
    subject_id="7",
    current_step="capture",
    step_id=1,
    attempt=1,
    attempt_status=AttemptStatus.SCHEDULED,
    scheduled_at=NOW,
    due=True,
    queue_paused=False,
    held=None,
    error_class=None,
    created_at=NOW - timedelta(hours=1),
    updated_at=NOW,
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
    place=StepPlace(4, 7, "receipt"),
)
SIGNALLED = replace(READY, waiting_for="shipped")
WAITING = replace(
    SIGNALLED,
    status=RunStatus.WAITING,
    attempt_status=AttemptStatus.WAITING,
    waiting_since=NOW - timedelta(hours=3),
)
UNTIL_SIX = replace(WAITING, timeout_at=NOW + timedelta(hours=6))
PASSED = replace(WAITING, timeout_at=NOW - timedelta(minutes=2), overdue_seconds=120.0)
LATE = replace(WAITING, late_since=NOW - timedelta(hours=1), on_timeout=OnTimeout.NOTIFY)
BATCH = replace(
    WAITING,
    waiting_for=None,
    current_step="notify_vendors",
    batch_id="01a0ea1f-0000-7d18-b2c4-e91d07f4aa58",
    open_jobs=5,
    total_jobs=12,
)
PAUSED = replace(READY, status=RunStatus.PAUSED, paused_at=NOW, moved_by="dashboard:Jürgen")
AFTER = replace(PAUSED, attempt_status=AttemptStatus.COMPLETED, stuck=StuckReason.PAUSED_MANUAL)
FAILED = replace(
    PAUSED,
    attempt_status=AttemptStatus.FAILED,
    moved_by="system",
    error_class="builtins.TimeoutError",
    stuck=StuckReason.PAUSED_ERROR,
)
ENDED = replace(READY, ended_at=NOW - timedelta(days=2), attempt_status=AttemptStatus.COMPLETED)


def told(run: RunSummary) -> tuple[str, str, str]:
    """Returns the badge's word and tone, and the sentence as plain text."""
    it = status(run)
    html = sentences.rendered(it.sentence, ENGLISH, lambda endpoint, **values: f"/{endpoint}")
    return ENGLISH.gettext(it.badge.word), it.badge.tone, re.sub(r"<[^>]*>", "", html)


@pytest.mark.parametrize(
    ("run", "word", "tone", "sentence"),
    [
        pytest.param(
            replace(READY, status=RunStatus.PERFORMING, attempt=2),
            *("Performing", "runs", "Performing capture, attempt 2."),
            id="performing",
        ),
        pytest.param(
            READY,
            *("Ready", "idle", "Ready: capture is in the queue, the next free worker takes it."),
            id="due and queued",
        ),
        pytest.param(
            SIGNALLED,
            *("Ready", "idle", "Ready: signal shipped came, the next free worker takes capture."),
            id="woken by its signal",
        ),
        pytest.param(
            replace(SIGNALLED, timed_out=True),
            *(
                "Ready",
                "idle",
                "Ready: signal shipped did not come in time, capture runs without it.",
            ),
            id="woken by its deadline",
        ),
        pytest.param(
            replace(READY, due=False, scheduled_at=NOW + timedelta(days=2)),
            *("Scheduled", "idle", "Scheduled: capture runs in 2 d."),
            id="scheduled",
        ),
        pytest.param(
            replace(READY, due=False, scheduled_at=NOW + timedelta(minutes=5), attempt=3),
            *("Scheduled", "idle", "Scheduled: capture is tried again in 5 min, attempt 3."),
            id="scheduled again",
        ),
        pytest.param(
            replace(READY, scheduled_at=NOW - timedelta(hours=2), stuck=StuckReason.OVERDUE),
            *("Overdue", "warn", "Overdue: capture was due 2 h ago, the sweep sends it again."),
            id="overdue",
        ),
        pytest.param(
            replace(READY, step_declared=False, step_removed=True, place=None),
            "Scheduled",
            "idle",
            "On capture, a step that OrderWorkflow has removed; the run is moved on.",
            id="on a removed step",
        ),
        pytest.param(
            replace(READY, step_declared=False, place=None),
            "Scheduled",
            "warn",
            "On capture, which OrderWorkflow no longer declares; the run pauses there.",
            id="on an undeclared step",
        ),
        pytest.param(
            replace(WAITING, step_declared=False, step_removed=True, place=None),
            "Waiting",
            "waits",
            "On capture, a step that OrderWorkflow has removed; the run is moved on.",
            id="waiting on a removed step",
        ),
        pytest.param(
            WAITING,
            *("Waiting", "waits", "Waiting for signal shipped for 3 h, without a deadline."),
            id="waiting without a deadline",
        ),
        pytest.param(
            replace(WAITING, stuck=StuckReason.WAITING_OVERDUE),
            *(
                "Waiting too long",
                "warn",
                "Waiting for signal shipped for 3 h, and no deadline ends that.",
            ),
            id="waiting too long",
        ),
        *(
            pytest.param(
                replace(UNTIL_SIX, on_timeout=what),
                *("Waiting", "waits", f"Waiting for signal shipped for 3 h{then}"),
                id=f"waiting, then {what}",
            )
            for what, then in {
                OnTimeout.PAUSE: "; unless it comes by 18:00, the run pauses.",
                OnTimeout.CANCEL: "; unless it comes by 18:00, the run is cancelled.",
                OnTimeout.SKIP: "; unless it comes by 18:00, capture is skipped.",
                OnTimeout.RUN: "; at 18:00 capture runs without it.",
                OnTimeout.NOTIFY: "; unless it comes by 18:00, a late notice is given.",
                None: ", until 18:00.",
            }.items()
        ),
        *(
            pytest.param(
                replace(PASSED, on_timeout=what),
                "Waiting, late",
                "warn",
                "Signal shipped did not come in time: the deadline passed 2 min ago, the next sweep "
                + then,
                id=f"past its deadline, then {what}",
            )
            for what, then in {
                OnTimeout.PAUSE: "pauses the run.",
                OnTimeout.CANCEL: "cancels the run.",
                OnTimeout.SKIP: "skips capture.",
                OnTimeout.RUN: "runs capture without it.",
                OnTimeout.NOTIFY: "gives a late notice.",
                None: "acts on it.",
            }.items()
        ),
        pytest.param(
            replace(LATE, timeout_at=NOW + timedelta(hours=1)),
            "Waiting, late",
            "warn",
            "Waiting for signal shipped for 3 h, late for 1 h; the next notice comes at 13:00.",
            id="late, the next notice to come",
        ),
        pytest.param(
            replace(LATE, stuck=StuckReason.WAITING_OVERDUE),
            "Waiting, late",
            "warn",
            "Waiting for signal shipped for 3 h, late for 1 h; no further notice is due.",
            id="late, no further notice",
        ),
        pytest.param(
            BATCH,
            *(
                "Waiting",
                "waits",
                "Waiting for batch OrderWorkflow#notify_vendors, 7 of 12 jobs done.",
            ),
            id="waiting for a batch",
        ),
        pytest.param(
            replace(BATCH, open_jobs=0),
            "Waiting",
            "waits",
            "Batch OrderWorkflow#notify_vendors is done, all its jobs have ended; "
            "the run goes on in a moment.",
            id="its batch is done",
        ),
        pytest.param(
            replace(BATCH, open_jobs=None, total_jobs=None),
            *("Waiting", "waits", "Waiting for batch OrderWorkflow#notify_vendors, which is gone."),
            id="its batch is gone",
        ),
        pytest.param(
            replace(
                FAILED, error_class="pgbus.engine.errors.StepStalled", stuck=StuckReason.STALLED
            ),
            "Stalled",
            "bad",
            "Paused on capture: its worker died or hung. Resume tries it again, or cancel.",
            id="stalled",
        ),
        pytest.param(
            replace(
                FAILED,
                error_class="pgbus.engine.errors.StepStalled",
                stuck=StuckReason.STALLED,
                held=Move.STEP_CANCEL,
            ),
            "Stalled",
            "bad",
            "Paused on capture: its worker died or hung. Resume lets the run end as cancelled.",
            id="stalled, by a class that cancels then",
        ),
        pytest.param(
            replace(FAILED, held=Move.STEP_CANCEL),
            "Paused on error",
            "bad",
            "Paused on capture: TimeoutError. Resume lets the run end as cancelled.",
            id="paused on an error that cancels",
        ),
        pytest.param(
            replace(FAILED, held=Move.STEP_CANCEL, class_loaded=False, place=None),
            "Paused on error",
            "bad",
            "Paused on capture: TimeoutError. Resume it where its class is loaded, or cancel.",
            id="paused on an error that cancels, its class not loaded here",
        ),
        pytest.param(
            FAILED,
            "Paused on error",
            "bad",
            "Paused on capture: TimeoutError. Resume tries it again, or cancel.",
            id="paused on an error",
        ),
        pytest.param(
            replace(FAILED, class_loaded=False, place=None, step_declared=False),
            "Paused on error",
            "bad",
            "Paused on capture: TimeoutError. Resume it where its class is loaded, or cancel.",
            id="paused on an error, its class not loaded here",
        ),
        pytest.param(
            replace(FAILED, error_class="pgbus.engine.errors.WaitTimedOut"),
            "Paused on error",
            "bad",
            "Paused on capture: its signal did not come in time. Resume waits again, or cancel.",
            id="paused by its deadline",
        ),
        pytest.param(
            replace(FAILED, error_class="pgbus.engine.errors.FanOutFailed"),
            "Paused on error",
            "bad",
            "Paused on capture: jobs of its batch failed. Resume sends all of them again, or cancel.",
            id="paused by failed jobs",
        ),
        pytest.param(
            replace(FAILED, error_class="pgbus.engine.errors.StepNotDefined"),
            "Paused on error",
            "bad",
            "Paused: OrderWorkflow does not declare capture. Resume at another step, or cancel.",
            id="paused on an undeclared step",
        ),
        pytest.param(
            PAUSED,
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen before capture. Resume lets it run at its time.",
            id="paused while scheduled",
        ),
        pytest.param(
            replace(PAUSED, waiting_for="shipped"),
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen; signal shipped came meanwhile. Resume runs capture.",
            id="paused, its signal came",
        ),
        pytest.param(
            replace(
                PAUSED,
                attempt_status=AttemptStatus.WAITING,
                waiting_for="shipped",
                waiting_since=NOW,
            ),
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen while waiting for signal shipped. Resume waits again.",
            id="paused while waiting for a signal",
        ),
        pytest.param(
            replace(BATCH, status=RunStatus.PAUSED, moved_by="alice"),
            "Paused",
            "warn",
            "Paused by alice while batch OrderWorkflow#notify_vendors goes on. "
            "Resume waits for it again.",
            id="paused while its batch works",
        ),
        pytest.param(
            replace(PAUSED, attempt_status=AttemptStatus.WAITING),
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen before capture sends its jobs. Resume sends them.",
            id="paused before its jobs are sent",
        ),
        pytest.param(
            replace(PAUSED, attempt_status=AttemptStatus.IN_PROGRESS),
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen while capture runs. It runs to its end, then nothing more "
            "starts.",
            id="paused while running",
        ),
        pytest.param(
            AFTER,
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen after capture. Resume goes on with receipt.",
            id="paused between two steps",
        ),
        pytest.param(
            replace(AFTER, place=StepPlace(7, 7, None)),
            *(
                "Paused",
                "warn",
                "Paused by dashboard:Jürgen after capture. Resume finishes the run.",
            ),
            id="paused after the last step",
        ),
        pytest.param(
            replace(AFTER, held=Move.FINISH),
            *(
                "Paused",
                "warn",
                "Paused by dashboard:Jürgen after capture. Resume finishes the run.",
            ),
            id="paused after a step that asked to finish",
        ),
        pytest.param(
            replace(AFTER, held=Move.FINISH, class_loaded=False, place=None),
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen after capture. Resume it where its class is loaded.",
            id="paused after a step that asked to finish, its class not loaded here",
        ),
        pytest.param(
            replace(AFTER, held=Move.ADVANCE),
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen after capture. Resume goes on with receipt.",
            id="paused while running, after it ended",
        ),
        pytest.param(
            replace(AFTER, moved_by="system"),
            *("Paused", "warn", "Paused by itself after capture. Resume goes on with receipt."),
            id="paused by its own code",
        ),
        pytest.param(
            replace(AFTER, moved_by="system", place=StepPlace(7, 7, None)),
            *("Paused", "warn", "Paused by itself after capture. Resume finishes the run."),
            id="paused by its own code after the last step",
        ),
        pytest.param(
            replace(AFTER, class_loaded=False, place=None),
            "Paused",
            "warn",
            "Paused by dashboard:Jürgen after capture. Resume it where its class is loaded.",
            id="paused, its class not loaded here",
        ),
        pytest.param(
            replace(AFTER, moved_by="system", class_loaded=False, place=None),
            *(
                "Paused",
                "warn",
                "Paused by itself after capture. Resume it where its class is loaded.",
            ),
            id="paused by its own code, its class not loaded here",
        ),
        pytest.param(
            replace(FAILED, error_class=None, held=Move.REATTEMPT, moved_by="alice"),
            *(
                "Paused",
                "warn",
                "Paused by alice after attempt 1 of capture. Resume tries it again.",
            ),
            id="paused before another attempt",
        ),
        pytest.param(
            replace(ENDED, status=RunStatus.FINISHED, moved_by="system"),
            *("Finished", "good", "Finished 2 d ago."),
            id="finished",
        ),
        pytest.param(
            replace(ENDED, status=RunStatus.CANCELLED, moved_by="cli:bob"),
            *("Cancelled", "idle", "Cancelled 2 d ago by cli:bob."),
            id="cancelled by a person",
        ),
        pytest.param(
            replace(ENDED, status=RunStatus.CANCELLED, moved_by="system"),
            *("Cancelled", "idle", "Cancelled 2 d ago by its own rules, on capture."),
            id="cancelled by a guard",
        ),
        pytest.param(
            replace(
                ENDED,
                status=RunStatus.CANCELLED,
                moved_by="system",
                error_class="builtins.TimeoutError",
            ),
            *("Cancelled", "idle", "Cancelled 2 d ago by its own rules, on capture: TimeoutError."),
            id="cancelled by a policy",
        ),
    ],
)
def test_every_situation_has_a_sentence(run, word, tone, sentence):
    assert told(run) == (word, tone, sentence)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(AFTER, id="paused"),
        pytest.param(replace(ENDED, status=RunStatus.CANCELLED), id="cancelled"),
        pytest.param(replace(ENDED, status=RunStatus.FINISHED), id="finished"),
    ],
)
def test_a_reason_is_given_with_the_sentence(run):
    assert status(replace(run, moved_because="SMTP fixed")).because == "SMTP fixed"


def test_the_name_of_a_batch_is_a_link():
    sentence = status(BATCH).sentence
    assert sentence.links
    assert '<a href="/batch">' in sentences.rendered(
        sentence, ENGLISH, lambda name, **_: f"/{name}"
    )


def test_names_from_data_are_shown_as_text():
    hostile = replace(READY, current_step="<script>alert(1)</script>")
    html = sentences.rendered(status(hostile).sentence, ENGLISH, str)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_every_state_of_a_run_and_its_attempt_has_a_sentence():
    for run_status in RunStatus:
        for attempt_status in AttemptStatus:
            for stuck in (None, *StuckReason):
                run = replace(READY, status=run_status, attempt_status=attempt_status, stuck=stuck)
                assert told(run)[2]
