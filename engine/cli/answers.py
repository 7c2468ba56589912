"""What `list` and `show` print for people."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from pgbus.engine.cli.sentences import at, duration, event_sentence, state_sentence, typed
from pgbus.engine.cli.tables import aligned, printable, shortened, table
from pgbus.engine.insights.phases import PhaseKind
from pgbus.engine.states import available_actions

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.detail import RelatedRun, RunDetail
    from pgbus.engine.insights.runs import RunPage, RunSummary

#: Of an error in the table of attempts, an output below it, and a signal's payload; `--json` has the rest.
_ERROR_WIDTH = 80
_OUTPUT_WIDTH = 500
_PAYLOAD_WIDTH = 80
_BACKTRACE_LINES = 5
_REST = "; --status all shows the rest."


def page_text(page: RunPage, zone: ZoneInfo, *, hides_ended: bool) -> str:
    """Return the page as a table, with its neighbours; hint at ended runs that it leaves out."""
    if not page.runs:
        return f"No {'ongoing ' if hides_ended else ''}run matches{_REST if hides_ended else '.'}"
    head = ("run", "class", "subject", "status", "what it does", "started", "last activity")
    parts = [table(head, [_row(run, zone) for run in page.runs])]
    if page.newer:
        parts.append(f"Newer: --before {page.newer}")
    if page.older:
        parts.append(f"Older: --after {page.older}")
    if hides_ended:
        count = (
            f"{len(page.runs)} ongoing" if not (page.newer or page.older) else "Ongoing ones only"
        )
        parts.append(f"{count}{_REST}")
    return "\n".join(parts)


def _row(run: RunSummary, zone: ZoneInfo) -> tuple[str, ...]:
    return (
        run.workflow_id,
        run.workflow_class,
        _subject(run),
        run.status,
        state_sentence(run, zone),
        at(run.created_at, zone),
        at(run.updated_at, zone),
    )


def oldest_first(detail: RunDetail) -> RunDetail:
    """Return the run with its history in the order in which it happened."""
    return replace(
        detail,
        attempts=detail.attempts[::-1],
        signals=detail.signals[::-1],
        events=detail.events[::-1],
    )


def detail_text(detail: RunDetail, zone: ZoneInfo, app: str | None) -> str:
    """Tell the run's state, attempts, outputs, newest error, signals and trail, oldest first.

    `app` is the loaded one.
    """
    about: dict[tuple[str | None, int | None], Attempt] = {
        (attempt.step_name, attempt.attempt): attempt for attempt in detail.attempts
    }
    sections = [
        aligned(_facts(detail, zone, app)),
        table(
            ("step", "attempt", "status", *PhaseKind, "worker", "error"),
            [_attempt_row(attempt) for attempt in detail.attempts],
        ),
        *_outputs(detail),
        *_newest_error(detail),
        *_signals(detail, zone),
        aligned(
            [
                (
                    at(event.created_at, zone),
                    event_sentence(event, about.get((event.step_name, event.attempt)), zone),
                )
                for event in detail.events
            ]
        ),
    ]
    if detail.older_attempts or detail.older_signals or detail.older_events:
        sections.append("Older attempts, signals or events are left out; --limit shows more.")
    return "\n\n".join(sections)


def _outputs(detail: RunDetail) -> list[str]:
    rows = [
        (
            "output",
            f"{one.step_name} {one.attempt}",
            shortened(one.output.encoded or "", _OUTPUT_WIDTH),
        )
        for one in detail.attempts
        if one.output is not None
    ]
    return [aligned(rows)] if rows else []


def _newest_error(detail: RunDetail) -> list[str]:
    """Return the newest attempt's error with all its text and the first lines of its backtrace."""
    newest = detail.attempts[-1]
    if newest.encoded_error is None:
        return []
    text = f"{newest.error_class}: {newest.error_message}"
    backtrace = json.loads(newest.encoded_error)["backtrace"][:_BACKTRACE_LINES]
    lines = [*text.splitlines(), *(f"  {line}" for line in backtrace)]
    head = f"{newest.step_name}, attempt {newest.attempt}, failed:"
    return ["\n".join([head, *(printable(f"  {line}") for line in lines)])]


def _signals(detail: RunDetail, zone: ZoneInfo) -> list[str]:
    rows = [
        (
            one.name,
            one.status,
            one.idempotency_key or "",
            one.step_name or "",
            str(one.attempt or ""),
            at(one.received_at, zone),
            shortened(one.payload.encoded or "", _PAYLOAD_WIDTH),
        )
        for one in detail.signals
    ]
    head = ("signal", "status", "key", "step", "attempt", "received", "payload")
    return [table(head, rows)] if rows else []


def _actions(detail: RunDetail, app: str | None) -> str:
    run = detail.run
    known = available_actions(run.status, run.attempt_status, class_loaded=True)
    hidden = [typed(verb) for verb in known if verb not in detail.available_actions]
    actions = ", ".join(map(typed, detail.available_actions)) or "none"
    if not hidden:
        return actions
    if app:
        return f"{actions}; {', '.join(hidden)} once {app} imports {run.workflow_class}"
    return f"{actions}; with --app {', '.join(hidden)}"


def _facts(detail: RunDetail, zone: ZoneInfo, app: str | None) -> list[tuple[str, str]]:
    run = detail.run
    facts = [
        ("run", run.workflow_id),
        ("class", run.workflow_class),
        ("subject", _subject(run)),
        ("now", state_sentence(run, zone)),
        ("arguments", detail.arguments.encoded or ""),
        ("started", at(run.created_at, zone)),
        ("last activity", at(run.updated_at, zone)),
        ("actions", _actions(detail, app)),
    ]
    optional = [
        ("idempotency key", detail.idempotency_key),
        ("rerun of", detail.rerun_of and _related(detail.rerun_of)),
        ("reruns", ", ".join(map(_related, detail.reruns))),
    ]
    return [*facts, *((name, value) for name, value in optional if value)]


def _attempt_row(attempt: Attempt) -> tuple[str, ...]:
    error = ""
    if attempt.error_class:
        error = shortened(f"{attempt.error_class}: {attempt.error_message}", _ERROR_WIDTH)
    return (
        attempt.step_name,
        str(attempt.attempt),
        attempt.status,
        duration(attempt.waited_seconds),
        duration(attempt.queued_seconds),
        duration(attempt.waiting_seconds),
        duration(attempt.ran_seconds),
        attempt.worker or "",
        error,
    )


def _related(run: RelatedRun) -> str:
    return f"{run.workflow_id} ({run.status or 'deleted'})"


def _subject(run: RunSummary) -> str:
    return f"{run.subject_type} {run.subject_id}" if run.subject_type else "-"
