"""Groups of stuck runs in words: what they share, what a press on them does, and what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from pgbus.dashboard.presenters import bulk
from pgbus.dashboard.presenters.bulk import cut
from pgbus.dashboard.presenters.confirmations import Effect
from pgbus.dashboard.presenters.resuming import jobs_again
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import SYSTEM
from pgbus.dashboard.words import _, code, foreign, quoted
from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import FanOutFailed
from pgbus.engine.insights.stuck import HeldEnd, StuckReason
from pgbus.engine.states import Move, Verb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.stuck import GroupKey, StuckGroup
    from pgbus.engine.runner.bulk import BulkResult
    from pgbus.engine.settings import Settings

#: A press on a group: by its verb, but a resume by what it lets end.
Press = Verb | HeldEnd

#: How a press looks on a button.
ICONS: dict[Press, str] = {
    Verb.RESUME: "redo",
    Move.FINISH: "finished",
    Move.STEP_CANCEL: "cancelled",
    Verb.RUN_NOW: "play1",
    Verb.CANCEL: "cancelled",
}

_LABELS: dict[Press, str] = {
    Verb.RESUME: _("Resume %(number)s…"),
    Move.FINISH: _("Finish %(number)s…"),
    Move.STEP_CANCEL: _("Let %(number)s end as cancelled…"),
    Verb.RUN_NOW: _("Run %(number)s now…"),
    Verb.CANCEL: _("Cancel %(number)s…"),
}

#: What is asked when one press cannot take all.
_SOME: dict[Press, str] = {
    Verb.RESUME: _("Resume %(number)s of %(all)s runs?"),
    Move.FINISH: _("Finish %(number)s of %(all)s runs?"),
    Move.STEP_CANCEL: _("Let %(number)s of %(all)s runs end as cancelled?"),
    Verb.RUN_NOW: _("Run %(number)s of %(all)s runs now?"),
    Verb.CANCEL: _("Cancel %(number)s of %(all)s runs for good?"),
}

_DONE: dict[Press, str] = {
    Verb.RESUME: _("Resumed %(done)s."),
    Move.FINISH: _("Finished %(done)s."),
    Move.STEP_CANCEL: _("Cancelled %(done)s."),
    Verb.RUN_NOW: _("Sent %(done)s to run now."),
    Verb.CANCEL: _("Cancelled %(done)s."),
}

_DONE_BUT: dict[Press, str] = {
    Verb.RESUME: _("Resumed %(done)s; %(moved)s had already moved on."),
    Move.FINISH: _("Finished %(done)s; %(moved)s had already moved on."),
    Move.STEP_CANCEL: _("Cancelled %(done)s; %(moved)s had already moved on."),
    Verb.RUN_NOW: _("Sent %(done)s to run now; %(moved)s had already moved on."),
    Verb.CANCEL: _("Cancelled %(done)s; %(moved)s had already moved on."),
}


_IN_DOUBT = _(
    "PostgreSQL went away while run %(id)s was in hand, so check whether that one is done."
)


def press(verb: Verb, key: GroupKey) -> Press:
    """Return what the verb is called on the runs of a group."""
    return key.held if verb is Verb.RESUME and key.held is not None else verb


def lede(groups: tuple[StuckGroup, ...], total: int, words: Words, *, exhaustive: bool) -> Markup:
    """Return how many runs need somebody, and what the most of them share."""
    cause = _cause(groups[0], words)
    if len(groups) == 1:
        return cause
    number = words.number(len(groups))
    everything = (
        words.nrich(
            "%(num)s run needs you, in %(groups)s groups.",
            "%(num)s runs need you, in %(groups)s groups.",
            total,
            groups=number,
        )
        if exhaustive
        else words.nrich(
            "%(num)s run needs you, in more than %(groups)s groups.",
            "%(num)s runs need you, in more than %(groups)s groups.",
            total,
            groups=number,
        )
    )
    return Markup("%s %s") % (everything, cause)


def _cause(group: StuckGroup, words: Words) -> Markup:
    key = group.key
    parts: dict[str, object] = {
        "step": code(key.step_name),
        "class": code(short(key.workflow_class)),
        "when": words.ago(group.first_at),
    }
    match key.reason:
        case StuckReason.PAUSED_ERROR if key.error_class is None:
            return words.nrich(
                "<strong>%(num)s run is paused</strong>: %(step)s of %(class)s has ended without "
                "completing, %(when)s.",
                "<strong>%(num)s are paused</strong>: %(step)s of %(class)s has ended without "
                "completing, the first time %(when)s.",
                group.count,
                **parts,
            )
        case StuckReason.PAUSED_ERROR:
            return words.nrich(
                "<strong>%(num)s run is paused</strong>: %(step)s of %(class)s failed with %(error)s %(when)s.",
                "<strong>%(num)s share one cause</strong>: %(step)s of %(class)s fails with %(error)s, "
                "the first time %(when)s.",
                group.count,
                error=code(short(key.error_class or "")),
                **parts,
            )
        case StuckReason.STALLED:
            return words.nrich(
                "<strong>%(num)s run is stalled</strong>: its worker died or hung in %(step)s of %(class)s "
                "%(when)s.",
                "<strong>%(num)s are stalled</strong>: their workers died or hung in %(step)s of %(class)s, "
                "the first one %(when)s.",
                group.count,
                **parts,
            )
        case StuckReason.PAUSED_MANUAL:
            return words.nrich(
                "<strong>%(num)s run was paused</strong> on %(step)s of %(class)s %(when)s.",
                "<strong>%(num)s were paused</strong> on %(step)s of %(class)s, the first one %(when)s.",
                group.count,
                **parts,
            )
        case StuckReason.OVERDUE:
            return words.nrich(
                "<strong>%(num)s run is overdue</strong>: %(step)s of %(class)s was due %(when)s.",
                "<strong>%(num)s are overdue</strong>: %(step)s of %(class)s, the first one was due %(when)s.",
                group.count,
                **parts,
            )
        case StuckReason.WAITING_OVERDUE:
            return words.nrich(
                "<strong>%(num)s run waits too long</strong>: on %(step)s of %(class)s, it began to %(when)s.",
                "<strong>%(num)s wait too long</strong>: on %(step)s of %(class)s, the first one began to %(when)s.",
                group.count,
                **parts,
            )


def told(group: StuckGroup, settings: Settings, words: Words, *, dispatched: bool) -> Markup | None:
    """Return what is to be known of a group beside its error; `dispatched`: a dispatcher is running."""
    match group.key.reason:
        case StuckReason.PAUSED_MANUAL:
            return _pause(group, words)
        case StuckReason.PAUSED_ERROR if group.key.error_class is None:
            return _pause(group, words)
        case StuckReason.OVERDUE if not dispatched:
            return words.rich(
                "No dispatcher is running, so nothing sends them again: start one, or run them now."
            )
        case StuckReason.OVERDUE:
            return words.rich("The sweep sends them again; act only if they stay here.")
        case StuckReason.WAITING_OVERDUE:
            limit = settings.workflow_waiting_visibility_threshold.total_seconds()
            return words.rich(
                "No deadline ends the wait, and it lasts longer than %(time)s. "
                "Open a run to see what it waits for.",
                time=words.duration(limit),
            )
    return None


def _pause(group: StuckGroup, words: Words) -> Markup:
    reason = group.newest_because and quoted(cut(group.newest_because))
    if group.newest_actor in (SYSTEM, None):
        if reason:
            return words.rich("The newest paused by itself: %(reason)s", reason=reason)
        return words.rich("The newest paused by itself.")
    actor = foreign(group.newest_actor)
    if reason:
        return words.rich(
            "The newest was paused by %(actor)s: %(reason)s", actor=actor, reason=reason
        )
    return words.rich("The newest was paused by %(actor)s, without a reason.", actor=actor)


def label(asked: Press, count: int, words: Words) -> str:
    """Return the words of the button that asks before it acts on so many runs."""
    return words.gettext(_LABELS[asked], number=words.number(count))


def question(asked: Press, number: int, count: int, words: Words) -> str:
    """Return what a press is asked to confirm: for so many runs, out of so many."""
    if number < count:
        return words.gettext(_SOME[asked], number=words.number(number), all=words.number(count))
    match asked:
        case Verb.RESUME:
            return words.ngettext("Resume %(num)s run?", "Resume %(num)s runs?", number)
        case Verb.RUN_NOW:
            return words.ngettext("Run %(num)s run now?", "Run %(num)s runs now?", number)
        case Move.FINISH:
            return words.ngettext("Finish %(num)s run?", "Finish %(num)s runs?", number)
        case Move.STEP_CANCEL:
            return words.ngettext(
                "Let %(num)s run end as cancelled?", "Let %(num)s runs end as cancelled?", number
            )
    return words.ngettext("Cancel %(num)s run for good?", "Cancel %(num)s runs for good?", number)


def answer(asked: Press, number: int, words: Words) -> str:
    """Return the words of the button that acts."""
    match asked:
        case Verb.RESUME:
            return words.ngettext("Resume %(num)s run", "Resume %(num)s runs", number)
        case Verb.RUN_NOW:
            return words.ngettext("Run %(num)s run now", "Run %(num)s runs now", number)
        case Move.FINISH:
            return words.ngettext("Finish %(num)s run", "Finish %(num)s runs", number)
        case Move.STEP_CANCEL:
            return words.ngettext(
                "Let %(num)s run end as cancelled", "Let %(num)s runs end as cancelled", number
            )
    return words.ngettext("Cancel %(num)s run", "Cancel %(num)s runs", number)


def effects(
    asked: Press, key: GroupKey, number: int, count: int, as_of: datetime, words: Words
) -> Iterator[Effect]:
    """Yield what a press will do to so many of the runs, and what it will not."""
    yield from _acts(asked, key, number, words)
    moved = words.rich("A run that has moved on is left alone and counted in the result.")
    yield Effect("skipped", moved)
    if number < count:
        more = words.rich(
            "One press takes at most %(number)s runs. Press again for the others.",
            number=words.number(number),
        )
        yield Effect("info", more)
    late = words.rich(
        "Runs that got stuck after %(time)s, when the page was read, are <b>not touched</b>.",
        time=words.clock(as_of),
    )
    yield Effect("shield", late)


def _acts(asked: Press, key: GroupKey, number: int, words: Words) -> Iterator[Effect]:
    step, tone = code(key.step_name), ""
    kept = words.rich("Completed steps are not run again.")
    match asked:
        case Verb.RESUME if key.reason is StuckReason.PAUSED_MANUAL:
            text = words.nrich(
                "<b>%(num)s run</b> goes on where it was stopped at %(step)s.",
                "<b>%(num)s runs</b> go on where they were stopped at %(step)s, oldest first.",
                number,
                step=step,
            )
        case Verb.RESUME:
            text = words.nrich(
                "<b>%(num)s run</b> gets a new attempt of %(step)s.",
                "<b>%(num)s runs</b> get a new attempt of %(step)s each, oldest first.",
                number,
                step=step,
            )
        case Verb.RUN_NOW:
            text = words.nrich(
                "%(step)s of <b>%(num)s run</b> is sent to the workers again, due at once.",
                "%(step)s of <b>%(num)s runs</b> is sent to the workers again, due at once, oldest first.",
                number,
                step=step,
            )
        case Move.FINISH:
            text = words.nrich(
                "<b>%(num)s run</b> ends as finished: %(step)s asked for that while it was paused.",
                "<b>%(num)s runs</b> end as finished, oldest first: %(step)s asked for that while they "
                "were paused.",
                number,
                step=step,
            )
        case Move.STEP_CANCEL:
            tone, kept = "bad", words.rich("Completed steps are not undone.")
            text = words.nrich(
                "<b>%(num)s run</b> ends as cancelled: %(step)s asked for that while it was paused.",
                "<b>%(num)s runs</b> end as cancelled, oldest first: %(step)s asked for that while they "
                "were paused.",
                number,
                step=step,
            )
        case _:
            tone, kept = "bad", words.rich("Completed steps are not undone.")
            text = words.nrich(
                "<b>%(num)s run</b> ends as cancelled. It cannot be resumed.",
                "<b>%(num)s runs</b> end as cancelled, oldest first. None can be resumed.",
                number,
            )
    yield Effect(ICONS[asked], text, tone)
    if asked is Verb.RESUME and key.error_class == qualified_name(FanOutFailed):
        yield jobs_again(words)
    if asked is not Verb.RUN_NOW:
        yield Effect("info", kept)


def outcome(asked: Press, result: BulkResult, failure: str | None, words: Words) -> tuple[str, str]:
    """Return the tone and the words of what a press did; `failure` is the first, as it may be shown."""
    if bulk.is_nothing(result):
        return "warn", words.gettext("Nothing was done: no such run is stuck any more.")
    key = _DONE_BUT[asked] if result.moved_on else _DONE[asked]
    said = words.gettext(key, done=words.number(result.done), moved=words.number(result.moved_on))
    more = bulk.besides(result, failure, words, in_doubt=_IN_DOUBT)
    return bulk.tone(result), " ".join((said, *more))
