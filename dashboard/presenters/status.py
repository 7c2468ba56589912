"""What a run does and what happens next, as a badge and a sentence: one case each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from pgbus.dashboard.presenters import marks
from pgbus.dashboard.presenters.sentences import (
    Ago,
    BatchLink,
    Clock,
    JobsDone,
    Lasting,
    Name,
    Person,
    Sentence,
    short,
)
from pgbus.dashboard.words import _, pgettext
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import FanOutFailed, StepNotDefined, WaitTimedOut
from pgbus.engine.insights.stuck import NO_END, StuckReason
from pgbus.engine.states import AttemptStatus, Move, OnTimeout, RunStatus

if TYPE_CHECKING:
    from pgbus.dashboard.presenters.sentences import Part
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.runs import RunSummary

#: Who acts where no person does: step messages, the sweep, the workflow's own code.
SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Badge:
    """A state: its word (a message), its tone and its icon, of which each alone would do."""

    word: str
    tone: str
    icon: str


@dataclass(frozen=True, slots=True)
class Status:
    """A run's state in words; `because` is the reason that somebody gave, as they wrote it."""

    badge: Badge
    sentence: Sentence
    because: str | None = None


_READY = Badge(pgettext("run status", "Ready"), "idle", "ready")
_SCHEDULED = Badge(pgettext("run status", "Scheduled"), "idle", "scheduled")
_PERFORMING = Badge(pgettext("run status", "Performing"), "runs", "performing")
_WAITING = Badge(pgettext("run status", "Waiting"), "waits", "waiting")
_WAITING_LATE = Badge(pgettext("run status", "Waiting, late"), "warn", "late")
_WAITING_LONG = Badge(pgettext("run status", "Waiting too long"), "warn", "late")
_OVERDUE = Badge(pgettext("run status", "Overdue"), "warn", "late")
_PAUSED = Badge(pgettext("run status", "Paused"), "warn", "paused")
_PAUSED_ERROR = Badge(pgettext("run status", "Paused on error"), "bad", "failed")
_STALLED = Badge(pgettext("run status", "Stalled"), "bad", "stalled")
_FINISHED = Badge(pgettext("run status", "Finished"), "good", "finished")
_CANCELLED = Badge(pgettext("run status", "Cancelled"), "idle", "cancelled")

#: How an operator calls what the filter calls by its code.
STUCK_WORDS = {
    StuckReason.PAUSED_ERROR: pgettext("filter", "paused on error"),
    StuckReason.STALLED: pgettext("filter", "stalled"),
    StuckReason.PAUSED_MANUAL: pgettext("filter", "paused"),
    StuckReason.OVERDUE: pgettext("filter", "overdue"),
    StuckReason.WAITING_OVERDUE: pgettext("filter", "waiting too long"),
}


#: What a resume makes of a run, by what the filter calls it.
HELD_WORDS = {
    Move.FINISH.value: pgettext("filter", "the run finishes"),
    Move.STEP_CANCEL.value: pgettext("filter", "the run is cancelled"),
    NO_END: pgettext("filter", "the run goes on"),
}

_STUCK_BADGES = {
    StuckReason.STALLED: _STALLED,
    StuckReason.PAUSED_ERROR: _PAUSED_ERROR,
    StuckReason.PAUSED_MANUAL: _PAUSED,
    StuckReason.OVERDUE: _OVERDUE,
    StuckReason.WAITING_OVERDUE: _WAITING_LONG,
}

#: What the deadline of a wait does, by what the step declares; None where that is not known here.
_UNLESS = {
    OnTimeout.PAUSE: _(
        "Waiting for signal %(signal)s for %(time)s; unless it comes by %(until)s, the run pauses."
    ),
    OnTimeout.CANCEL: _(
        "Waiting for signal %(signal)s for %(time)s; unless it comes by %(until)s, the run is cancelled."
    ),
    OnTimeout.SKIP: _(
        "Waiting for signal %(signal)s for %(time)s; unless it comes by %(until)s, %(step)s is skipped."
    ),
    OnTimeout.RUN: _(
        "Waiting for signal %(signal)s for %(time)s; at %(until)s %(step)s runs without it."
    ),
    OnTimeout.NOTIFY: _(
        "Waiting for signal %(signal)s for %(time)s; unless it comes by %(until)s, a late notice is given."
    ),
    None: _("Waiting for signal %(signal)s for %(time)s, until %(until)s."),
}
_PASSED = {
    OnTimeout.PAUSE: _(
        "Signal %(signal)s did not come in time: the deadline passed %(passed)s, the next sweep pauses the run."
    ),
    OnTimeout.CANCEL: _(
        "Signal %(signal)s did not come in time: the deadline passed %(passed)s, the next sweep cancels the run."
    ),
    OnTimeout.SKIP: _(
        "Signal %(signal)s did not come in time: the deadline passed %(passed)s, the next sweep skips %(step)s."
    ),
    OnTimeout.RUN: _(
        "Signal %(signal)s did not come in time: the deadline passed %(passed)s, the next sweep "
        "runs %(step)s without it."
    ),
    OnTimeout.NOTIFY: _(
        "Signal %(signal)s did not come in time: the deadline passed %(passed)s, the next sweep gives a late notice."
    ),
    None: _(
        "Signal %(signal)s did not come in time: the deadline passed %(passed)s, the next sweep acts on it."
    ),
}


def status(run: RunSummary) -> Status:
    """Return what the run does, or how it ended."""
    match run.status:
        case RunStatus.READY:
            return _ready(run)
        case RunStatus.PERFORMING:
            key = _("Performing %(step)s, attempt %(attempt)s.")
            return _said(run, _PERFORMING, key, attempt=run.attempt)
        case RunStatus.WAITING:
            return _waiting(run)
        case RunStatus.PAUSED:
            return _paused(run)
        case RunStatus.FINISHED:
            return _finished(run)
        case RunStatus.CANCELLED:
            return _cancelled(run)


def stuck_badge(reason: StuckReason, error_class: str | None) -> Badge:
    """Return how a run looks that does not move on by itself; one that asked to be tried again has no error."""
    if reason is StuckReason.PAUSED_ERROR and error_class is None:
        return _PAUSED
    return _STUCK_BADGES[reason]


def misplaced(run: RunSummary) -> str:
    """Return the message that says why a run has no place among its class's steps; "" for one that has."""
    if not run.class_loaded:
        return _("class not loaded here")
    if run.step_removed:
        return _("removed step")
    return "" if run.step_declared else _("undeclared step")


def place(run: RunSummary, tone: str, words: Words) -> Markup | str:
    """Return where a run stands among its class's steps, or why it has no place there."""
    if run.place is None:
        return words.gettext(misplaced(run))
    told = words.gettext(
        "%(number)s of %(total)s",
        number=words.number(run.place.number),
        total=words.number(run.place.total),
    )
    return Markup('<span class="nowrap">%s %s</span>') % (marks.rail(run.place, tone), told)


def _ready(run: RunSummary) -> Status:
    if run.class_loaded and not run.step_declared:
        return _off_the_class(run)
    if run.stuck is StuckReason.OVERDUE:
        key = _("Overdue: %(step)s was due %(when)s, the sweep sends it again.")
        return _said(run, _OVERDUE, key, when=Ago(run.scheduled_at))
    if not run.due:
        key = _("Scheduled: %(step)s runs %(when)s.")
        if run.attempt > 1:
            key = _("Scheduled: %(step)s is tried again %(when)s, attempt %(attempt)s.")
        return _said(run, _SCHEDULED, key, when=Ago(run.scheduled_at), attempt=run.attempt)
    key = _("Ready: %(step)s is in the queue, the next free worker takes it.")
    if run.waiting_for is not None:
        key = _("Ready: signal %(signal)s came, the next free worker takes %(step)s.")
        if run.timed_out:
            key = _("Ready: signal %(signal)s did not come in time, %(step)s runs without it.")
    return _said(run, _READY, key)


def _off_the_class(run: RunSummary) -> Status:
    badge = _SCHEDULED if run.status is RunStatus.READY else _WAITING
    if run.step_removed:
        key = _("On %(step)s, a step that %(class)s has removed; the run is moved on.")
        return _said(run, badge, key)
    key = _("On %(step)s, which %(class)s no longer declares; the run pauses there.")
    return _said(run, Badge(badge.word, "warn", badge.icon), key)


def _waiting(run: RunSummary) -> Status:
    if run.batch_id is not None:
        return _said(run, _WAITING, _batch_key(run))
    if run.class_loaded and not run.step_declared:
        return _off_the_class(run)
    if run.overdue_seconds is not None and run.timeout_at is not None:
        return _said(run, _WAITING_LATE, _PASSED[run.on_timeout], passed=Ago(run.timeout_at))
    if run.late_since is not None:
        late = Lasting(run.late_since)
        if run.timeout_at is not None:
            key = _(
                "Waiting for signal %(signal)s for %(time)s, late for %(late)s; the next notice comes at %(until)s."
            )
            return _said(run, _WAITING_LATE, key, until=Clock(run.timeout_at), late=late)
        key = _(
            "Waiting for signal %(signal)s for %(time)s, late for %(late)s; no further notice is due."
        )
        return _said(run, _WAITING_LATE, key, late=late)
    if run.timeout_at is not None:
        return _said(run, _WAITING, _UNLESS[run.on_timeout], until=Clock(run.timeout_at))
    if run.stuck is StuckReason.WAITING_OVERDUE:
        key = _("Waiting for signal %(signal)s for %(time)s, and no deadline ends that.")
        return _said(run, _WAITING_LONG, key)
    return _said(
        run, _WAITING, _("Waiting for signal %(signal)s for %(time)s, without a deadline.")
    )


def _batch_key(run: RunSummary) -> str:
    if run.open_jobs is None:
        return _("Waiting for batch %(batch)s, which is gone.")
    if run.open_jobs == 0:
        return _("Batch %(batch)s is done, all its jobs have ended; the run goes on in a moment.")
    return _("Waiting for batch %(batch)s, %(progress)s.")


def _paused(run: RunSummary) -> Status:
    match run.stuck:
        case StuckReason.STALLED:
            return _said(run, _STALLED, _stall_key(run))
        case StuckReason.PAUSED_ERROR if run.error_class is not None:
            return _said(run, _PAUSED_ERROR, _error_key(run))
    return _said(run, _PAUSED, _pause_key(run), because=run.moved_because)


def _stall_key(run: RunSummary) -> str:
    if run.held is Move.STEP_CANCEL:
        return _(
            "Paused on %(step)s: its worker died or hung. Resume lets the run end as cancelled."
        )
    return _("Paused on %(step)s: its worker died or hung. Resume tries it again, or cancel.")


def _error_key(run: RunSummary) -> str:
    if not run.class_loaded:
        return _("Paused on %(step)s: %(error)s. Resume it where its class is loaded, or cancel.")
    if run.held is Move.STEP_CANCEL:
        return _("Paused on %(step)s: %(error)s. Resume lets the run end as cancelled.")
    match run.error_class:
        case str(name) if name == qualified_name(WaitTimedOut):
            return _(
                "Paused on %(step)s: its signal did not come in time. Resume waits again, or cancel."
            )
        case str(name) if name == qualified_name(FanOutFailed):
            return _(
                "Paused on %(step)s: jobs of its batch failed. Resume sends all of them again, or cancel."
            )
        case str(name) if name == qualified_name(StepNotDefined):
            return _(
                "Paused: %(class)s does not declare %(step)s. Resume at another step, or cancel."
            )
    return _("Paused on %(step)s: %(error)s. Resume tries it again, or cancel.")


def _pause_key(run: RunSummary) -> str:
    by_itself = run.moved_by in (SYSTEM, None)
    match run.attempt_status:
        case AttemptStatus.SCHEDULED if run.waiting_for is not None:
            return _("Paused by %(actor)s; signal %(signal)s came meanwhile. Resume runs %(step)s.")
        case AttemptStatus.SCHEDULED:
            return _("Paused by %(actor)s before %(step)s. Resume lets it run at its time.")
        case AttemptStatus.IN_PROGRESS:
            return _(
                "Paused by %(actor)s while %(step)s runs. It runs to its end, then nothing more starts."
            )
        case AttemptStatus.WAITING if run.waiting_since is None:
            return _("Paused by %(actor)s before %(step)s sends its jobs. Resume sends them.")
        case AttemptStatus.WAITING if run.batch_id is not None:
            return _(
                "Paused by %(actor)s while batch %(batch)s goes on. Resume waits for it again."
            )
        case AttemptStatus.WAITING:
            return _("Paused by %(actor)s while waiting for signal %(signal)s. Resume waits again.")
        case AttemptStatus.FAILED | AttemptStatus.CANCELLED:
            return _(
                "Paused by %(actor)s after attempt %(attempt)s of %(step)s. Resume tries it again."
            )
        case _ if _finishes(run):
            if by_itself:
                return _("Paused by itself after %(step)s. Resume finishes the run.")
            return _("Paused by %(actor)s after %(step)s. Resume finishes the run.")
        case _ if run.place is None:
            if by_itself:
                return _("Paused by itself after %(step)s. Resume it where its class is loaded.")
            return _("Paused by %(actor)s after %(step)s. Resume it where its class is loaded.")
        case _ if by_itself:
            return _("Paused by itself after %(step)s. Resume goes on with %(next)s.")
    return _("Paused by %(actor)s after %(step)s. Resume goes on with %(next)s.")


def _finishes(run: RunSummary) -> bool:
    """Tell whether the step has ended after which the run does, by its own wish or as the last."""
    if run.class_loaded and run.held is Move.FINISH:
        return True
    return run.place is not None and run.place.following is None


def _finished(run: RunSummary) -> Status:
    key = _("Finished %(when)s.")
    return _said(run, _FINISHED, key, because=run.moved_because, **_ended(run))


def _cancelled(run: RunSummary) -> Status:
    if run.moved_by not in (SYSTEM, None):
        key = _("Cancelled %(when)s by %(actor)s.")
    elif run.error_class is not None:
        key = _("Cancelled %(when)s by its own rules, on %(step)s: %(error)s.")
    else:
        key = _("Cancelled %(when)s by its own rules, on %(step)s.")
    return _said(run, _CANCELLED, key, because=run.moved_because, **_ended(run))


def _ended(run: RunSummary) -> dict[str, Part]:
    return {"when": Ago(run.ended_at or run.updated_at)}


def _said(
    run: RunSummary, badge: Badge, key: str, *, because: str | None = None, **more: Part
) -> Status:
    """Return the message with those of the run's facts that it has places for."""
    parts = _facts(run) | more
    used = {name: part for name, part in parts.items() if f"%({name})s" in key}
    return Status(badge, Sentence(key, used), because)


def _facts(run: RunSummary) -> dict[str, Part]:
    facts: dict[str, Part] = {
        "step": Name(run.current_step),
        "class": Name(short(run.workflow_class), run.workflow_class),
        "attempt": run.attempt,
        "actor": Person(run.moved_by or SYSTEM),
        "signal": Name(run.waiting_for or ""),
        "next": Name((run.place.following if run.place else None) or ""),
        "time": Lasting(run.waiting_since or run.updated_at),
        "error": Name(short(run.error_class or ""), run.error_class),
    }
    if run.batch_id is not None:
        total, still_open = run.total_jobs or 0, run.open_jobs or 0
        name = f"{short(run.workflow_class)}#{run.current_step}"
        facts |= {
            "batch": BatchLink(name, run.batch_id),
            "progress": JobsDone(total - still_open, total),
        }
    return facts
