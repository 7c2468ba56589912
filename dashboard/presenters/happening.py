"""What an operator opens a run's page for: what happened to it, or what it is about, in two or three lines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters import marks
from pgbus.dashboard.presenters.sentences import JobsDone, jobs_done
from pgbus.dashboard.presenters.status import SYSTEM, status
from pgbus.dashboard.words import _, code, foreign, quoted
from pgbus.engine.states import AttemptStatus, RunStatus, SignalStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.attempts import AttemptTable, ErrorView
    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.detail import RunDetail


@dataclass(frozen=True, slots=True)
class Progress:
    """A bar: how much of a wait has passed, in hundredths, and what stands at its ends."""

    hundredths: int
    label: str
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class Happening:
    """What happened, or is to happen; `error` with its first lines where one is the cause."""

    tone: str
    icon: str
    title: str
    lines: tuple[Markup, ...]
    progress: Progress | None
    error: ErrorView | None


_TITLES = {
    RunStatus.READY: _("What happens next"),
    RunStatus.PERFORMING: _("What it is doing"),
    RunStatus.WAITING: _("What it waits for"),
    RunStatus.PAUSED: _("What happened"),
    RunStatus.FINISHED: _("What happened"),
    RunStatus.CANCELLED: _("What happened"),
}
_WHOLE = 100
_LEAST = timedelta(seconds=1)


def happening(detail: RunDetail, viewer: Viewer, table: AttemptTable) -> Happening:
    """Return what stands at the top of a run's page, the sentence of its title aside."""
    run, badge = detail.run, status(detail.run).badge
    failed = detail.attempts[0].status is AttemptStatus.FAILED
    tried_again = run.attempt_status is AttemptStatus.SCHEDULED and _failures(detail)
    cause = next((line.error for line in table.lines if line.error), None)
    return Happening(
        badge.tone,
        badge.icon,
        viewer.words.gettext(_TITLES[run.status]),
        tuple(_lines(detail, viewer)),
        _progress(detail, viewer),
        cause if failed or tried_again else None,
    )


def _lines(detail: RunDetail, viewer: Viewer) -> Iterator[Markup]:
    run, words = detail.run, viewer.words
    failures = _failures(detail)
    if failures:
        ended = sum(one.finished_at is not None for one in detail.attempts)
        maybe_more = detail.older_attempts and len(failures) == ended
        yield _failed(failures, viewer, maybe_more=maybe_more)
    match run.status:
        case RunStatus.PAUSED:
            yield from _paused(detail, viewer)
        case RunStatus.WAITING:
            yield _waiting(detail, viewer)
        case RunStatus.READY:
            key = _("Attempt %(attempt)s of %(step)s is due %(when)s.")
            if run.due:
                key = _("Attempt %(attempt)s of %(step)s has been due for %(time)s.")
            yield words.rich(
                key,
                attempt=words.number(run.attempt),
                step=code(run.current_step),
                when=words.ago(run.scheduled_at),
                time=words.since(run.scheduled_at),
            )
        case RunStatus.PERFORMING:
            yield _performing(detail.attempts[0], viewer)
        case RunStatus.FINISHED | RunStatus.CANCELLED:
            yield from _ended(detail, viewer)


def _failures(detail: RunDetail) -> list[Attempt]:
    """Return the failed attempts of the step that the run is on, in a row just before now."""
    ended = [one for one in detail.attempts if one.finished_at is not None]
    return list(
        takewhile(
            lambda one: one.step_name == detail.run.current_step and one.error_class is not None,
            ended,
        )
    )


def _failed(failures: list[Attempt], viewer: Viewer, *, maybe_more: bool) -> Markup:
    words, last = viewer.words, failures[0]
    parts = {
        "step": code(last.step_name),
        "when": words.ago(last.finished_at or last.created_at),
        "worker": code(last.worker or ""),
    }
    if maybe_more:
        return words.nrich(
            "%(step)s failed at least %(num)s time in a row, the last time %(when)s.",
            "%(step)s failed at least %(num)s times in a row, the last time %(when)s.",
            len(failures),
            **parts,
        )
    if last.worker is None:
        return words.nrich(
            "%(step)s failed %(when)s.",
            "%(step)s failed %(num)s times in a row, the last time %(when)s.",
            len(failures),
            **parts,
        )
    return words.nrich(
        "%(step)s failed %(when)s on %(worker)s.",
        "%(step)s failed %(num)s times in a row, the last time %(when)s on %(worker)s.",
        len(failures),
        **parts,
    )


def _paused(detail: RunDetail, viewer: Viewer) -> Iterator[Markup]:
    run, words = detail.run, viewer.words
    by_itself = run.moved_by in (SYSTEM, None)
    if run.paused_at is None or (by_itself and not run.moved_because and run.error_class):
        return
    key = _("Paused %(when)s.") if by_itself else _("Paused %(when)s by %(actor)s.")
    if run.moved_because:
        key = _("Paused %(when)s: %(reason)s")
        if not by_itself:
            key = _("Paused %(when)s by %(actor)s: %(reason)s")
    yield words.rich(
        key,
        when=words.ago(run.paused_at),
        actor=foreign(run.moved_by or SYSTEM),
        reason=quoted(run.moved_because or ""),
    )


def _waiting(detail: RunDetail, viewer: Viewer) -> Markup:
    run, words = detail.run, viewer.words
    step = code(run.current_step)
    if run.batch_id is not None:
        return words.rich(
            _("%(step)s goes on when all jobs of batch %(batch)s have ended."),
            step=step,
            batch=marks.link(
                viewer.url("batch", batch_id=run.batch_id), marks.short_id(run.batch_id)
            ),
        )
    pending = sum(one.status is SignalStatus.PENDING for one in detail.signals)
    if not pending:
        return words.rich(
            _("%(step)s takes signal %(signal)s. None is pending."),
            step=step,
            signal=code(run.waiting_for or ""),
        )
    return words.nrich(
        "%(step)s takes signal %(signal)s. %(num)s other signal is pending, which it does not take.",
        "%(step)s takes signal %(signal)s. %(num)s other signals are pending, which it does not take.",
        pending,
        step=step,
        signal=code(run.waiting_for or ""),
    )


def _performing(attempt: Attempt, viewer: Viewer) -> Markup:
    words = viewer.words
    return words.rich(
        _("Attempt %(attempt)s of %(step)s has run for %(time)s on %(worker)s."),
        attempt=words.number(attempt.attempt),
        step=code(attempt.step_name),
        time=words.since(attempt.started_at or attempt.created_at),
        worker=code(attempt.worker or "?"),
    )


def _ended(detail: RunDetail, viewer: Viewer) -> Iterator[Markup]:
    run, words = detail.run, viewer.words
    if run.moved_because:
        yield words.rich(_("The reason given: %(reason)s"), reason=quoted(run.moved_because))
    if run.ended_at is not None:
        length = (run.ended_at - run.created_at).total_seconds()
        yield words.rich(_("It took %(time)s from its start."), time=words.duration(length))


def _progress(detail: RunDetail, viewer: Viewer) -> Progress | None:
    """Return how much of a wait for a signal with a deadline, or of a batch, is over."""
    run, words = detail.run, viewer.words
    if run.status is not RunStatus.WAITING or run.waiting_since is None:
        return None
    if run.batch_id is not None:
        total, still_open = run.total_jobs or 0, run.open_jobs or 0
        if not total:
            return None
        told = jobs_done(JobsDone(total - still_open, total), words)
        return Progress((total - still_open) * _WHOLE // total, told, "", told)
    if run.timeout_at is None:
        return None
    waited, whole = words.now - run.waiting_since, run.timeout_at - run.waiting_since
    return Progress(
        round(min(max(waited / max(whole, _LEAST), 0), 1) * _WHOLE),
        words.gettext(
            "Waited %(time)s of %(whole)s",
            time=words.duration(waited.total_seconds()),
            whole=words.duration(whole.total_seconds()),
        ),
        words.rich(_("Began to wait: %(time)s"), time=words.clock(run.waiting_since)),
        words.rich(_("Deadline: %(time)s"), time=words.clock(run.timeout_at)),
    )
