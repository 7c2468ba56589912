"""What a resume of a run will do: with which step, when, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters.confirmations import Effect
from pgbus.dashboard.presenters.offers import Offer
from pgbus.dashboard.words import _, code
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import FanOutFailed
from pgbus.engine.insights.resume import ResumeKind
from pgbus.engine.states import Verb

if TYPE_CHECKING:
    from datetime import datetime

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.detail import RunDetail
    from pgbus.engine.insights.resume import ResumePlan
    from pgbus.engine.insights.runs import RunSummary


@dataclass(frozen=True, slots=True)
class _Resume:
    """How one kind of resume is called, and what it does: at once, or at a later time."""

    icon: str
    label: str
    title: str
    now: str
    later: str = ""


_RESUMES = {
    ResumeKind.RETRY: _Resume(
        "redo",
        _("Retry %(step)s"),
        _("Retry %(step)s?"),
        _("Attempt %(attempt)s of %(step)s starts as soon as a worker is free."),
        _("Attempt %(attempt)s of %(step)s starts at %(time)s."),
    ),
    ResumeKind.CONTINUE: _Resume(
        "play1",
        _("Continue with %(step)s"),
        _("Continue with %(step)s?"),
        _("%(step)s starts as soon as a worker is free."),
        _("%(step)s starts at %(time)s."),
    ),
    ResumeKind.FINISH: _Resume(
        "finished",
        _("Finish the run"),
        _("Finish the run?"),
        _("No step is left: the run ends as finished."),
    ),
    ResumeKind.CANCEL: _Resume(
        "cancelled",
        _("Let the run end as cancelled"),
        _("Let the run end as cancelled?"),
        _("%(here)s asked for that while the run was paused."),
    ),
    ResumeKind.RUN_AT_TIME: _Resume(
        "scheduled",
        _("Run %(step)s at its time"),
        _("Run %(step)s at its time?"),
        _("That time has come: %(step)s starts as soon as a worker is free."),
        _("%(step)s starts at %(time)s."),
    ),
    ResumeKind.LET_STEP_END: _Resume(
        "performing",
        _("Let %(step)s end"),
        _("Let %(step)s end?"),
        _("%(step)s still runs; what follows it starts again."),
    ),
    ResumeKind.OPEN_FAN_OUT: _Resume(
        "fanout",
        _("Send the jobs of %(step)s"),
        _("Send the jobs of %(step)s?"),
        _("Its jobs are sent now, and the run waits for them."),
    ),
}
#: What a new attempt of a step does first that waits for a signal.
_AWAITS = {
    "now": _("%(step)s waits for signal %(signal)s first."),
    "later": _("%(step)s waits for signal %(signal)s from %(time)s on."),
}
_STARTS_ATTEMPT = frozenset({ResumeKind.RETRY, ResumeKind.CONTINUE, ResumeKind.RUN_AT_TIME})
_KEEP_WAITING = {
    "batch": _("The run goes on waiting for the jobs of its batch."),
    "deadline": _("The run goes on waiting for signal %(signal)s, %(left)s until its deadline."),
    "signal": _("The run goes on waiting for signal %(signal)s, without a deadline."),
}


def resume(detail: RunDetail, words: Words) -> Offer | None:
    """Offer to resume the run; None where it cannot be."""
    plan, run = detail.resume, detail.run
    if plan is None or plan.kind is ResumeKind.REFUSED:
        return None
    unless_moved = Effect(
        "info", words.rich(_("If the run has moved on by then, nothing is changed."))
    )
    if plan.kind is ResumeKind.KEEP_WAITING:
        said = _Resume("waiting", _("Keep waiting"), _("Keep waiting?"), _keep_waiting(plan, run))
    else:
        said = _RESUMES[plan.kind]
    step, begins, awaited = plan.step_name or "", _begins(plan, words), _awaited(detail, plan)
    if awaited is not None:
        said = replace(said, **_AWAITS)
    line = words.rich(
        said.later if begins and said.later else said.now,
        step=code(step),
        here=code(run.current_step),
        attempt=words.number(run.attempt + 1),
        time=words.clock(begins or words.now),
        signal=code(awaited or run.waiting_for or ""),
        left=words.duration(plan.wait_seconds),
    )
    effects = [Effect(said.icon, line), unless_moved]
    if plan.kind is ResumeKind.RETRY and run.error_class == qualified_name(FanOutFailed):
        effects.insert(1, jobs_again(words))
    label = words.gettext(said.label, step=step)
    return Offer(
        verb=Verb.RESUME,
        label=label,
        icon=said.icon,
        line=line,
        title=words.gettext(said.title, step=step),
        effects=tuple(effects),
        button=label,
    )


def jobs_again(words: Words) -> Effect:
    """Return what a new attempt of a failed fan-out does that nobody would expect."""
    text = words.rich("All its jobs are sent again, those that completed too.")
    return Effect("attention", text, "warn")


def _awaited(detail: RunDetail, plan: ResumePlan) -> str | None:
    """Return the signal that the resumed step waits for before its body runs; None when it starts at once."""
    run = detail.run
    came = plan.kind is ResumeKind.RUN_AT_TIME and run.waiting_for is not None
    if plan.kind not in _STARTS_ATTEMPT or came:
        return None
    return next((step.waits_for for step in detail.steps if step.name == plan.step_name), None)


def _keep_waiting(plan: ResumePlan, run: RunSummary) -> str:
    if run.batch_id is not None:
        return _KEEP_WAITING["batch"]
    return _KEEP_WAITING["signal" if plan.wait_seconds is None else "deadline"]


def _begins(plan: ResumePlan, words: Words) -> datetime | None:
    """Return when the step starts; None for at once."""
    begins = words.now + timedelta(seconds=plan.wait_seconds or 0)
    begins = max(begins, plan.not_before or begins)
    return begins if begins > words.now else None
