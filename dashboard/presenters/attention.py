"""Groups of stuck runs in words: what they share, what a press on them does, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import SYSTEM
from pgbus.dashboard.words import _, code, foreign, quoted
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import Verb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.stuck import GroupKey, StuckGroup
    from pgbus.engine.runner.bulk import BulkResult
    from pgbus.engine.settings import Settings

#: Of a person's text or an error's a row or an outcome shows this much.
_LONGEST_TEXT = 200

#: How a verb looks on a button.
ICONS = {Verb.RESUME: "redo", Verb.RUN_NOW: "play1", Verb.CANCEL: "cancelled"}

_LABELS = {
    Verb.RESUME: _("Resume %(number)s…"),
    Verb.RUN_NOW: _("Run %(number)s now…"),
    Verb.CANCEL: _("Cancel %(number)s…"),
}

#: What is asked when one press cannot take all.
_SOME = {
    Verb.RESUME: _("Resume %(number)s of %(all)s runs?"),
    Verb.RUN_NOW: _("Run %(number)s of %(all)s runs now?"),
    Verb.CANCEL: _("Cancel %(number)s of %(all)s runs for good?"),
}

_DONE = {
    Verb.RESUME: _("Resumed %(done)s."),
    Verb.RUN_NOW: _("Sent %(done)s to run now."),
    Verb.CANCEL: _("Cancelled %(done)s."),
}

_DONE_BUT = {
    Verb.RESUME: _("Resumed %(done)s; %(moved)s had already moved on."),
    Verb.RUN_NOW: _("Sent %(done)s to run now; %(moved)s had already moved on."),
    Verb.CANCEL: _("Cancelled %(done)s; %(moved)s had already moved on."),
}


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that a press does, or leaves alone."""

    icon: str
    tone: str
    text: Markup


def lede(groups: tuple[StuckGroup, ...], total: int, words: Words, *, exhaustive: bool) -> Markup:
    """Return how many runs need somebody, and what the most of them share."""
    cause = _cause(groups[0], words)
    if len(groups) == 1:
        return cause
    number = words.number(len(groups))
    everything = (
        words.nrich(
            "%(num)s run needs you.",
            "%(num)s runs need you, in %(groups)s groups.",
            total,
            groups=number,
        )
        if exhaustive
        else words.nrich(
            "%(num)s run needs you.",
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
                "<strong>%(num)s run is stalled</strong>: its worker died in %(step)s of %(class)s %(when)s.",
                "<strong>%(num)s are stalled</strong>: their workers died in %(step)s of %(class)s, "
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


def told(group: StuckGroup, settings: Settings, words: Words) -> Markup | None:
    """Return what is to be known of a group that has no error."""
    match group.key.reason:
        case StuckReason.PAUSED_MANUAL:
            return _pause(group, words)
        case StuckReason.OVERDUE:
            return words.rich("The sweep sends them again; nothing is to be done unless they stay.")
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


def label(verb: Verb, count: int, words: Words) -> str:
    """Return the words of the button that asks before it acts on so many runs."""
    return words.gettext(_LABELS[verb], number=words.number(count))


def question(verb: Verb, number: int, count: int, words: Words) -> str:
    """Return what a press is asked to confirm: for so many runs, out of so many."""
    if number < count:
        return words.gettext(_SOME[verb], number=words.number(number), all=words.number(count))
    match verb:
        case Verb.RESUME:
            return words.ngettext("Resume %(num)s run?", "Resume %(num)s runs?", number)
        case Verb.RUN_NOW:
            return words.ngettext("Run %(num)s run now?", "Run %(num)s runs now?", number)
    return words.ngettext("Cancel %(num)s run for good?", "Cancel %(num)s runs for good?", number)


def answer(verb: Verb, number: int, words: Words) -> str:
    """Return the words of the button that acts."""
    match verb:
        case Verb.RESUME:
            return words.ngettext("Resume %(num)s run", "Resume %(num)s runs", number)
        case Verb.RUN_NOW:
            return words.ngettext("Run %(num)s run now", "Run %(num)s runs now", number)
    return words.ngettext("Cancel %(num)s run", "Cancel %(num)s runs", number)


def effects(
    verb: Verb, key: GroupKey, number: int, count: int, as_of: datetime, words: Words
) -> Iterator[Effect]:
    """Yield what a press will do to so many of the runs, and what it will not."""
    step = code(key.step_name)
    match verb:
        case Verb.RESUME if key.reason is StuckReason.PAUSED_MANUAL:
            text = words.nrich(
                "<b>%(num)s run</b> goes on where it was stopped at %(step)s.",
                "<b>%(num)s runs</b> go on where they were stopped at %(step)s, oldest first.",
                number,
                step=step,
            )
            yield Effect(ICONS[verb], "", text)
            yield Effect("info", "", words.rich("Completed steps are not run again."))
        case Verb.RESUME:
            text = words.nrich(
                "<b>%(num)s run</b> gets a new attempt of %(step)s.",
                "<b>%(num)s runs</b> get a new attempt of %(step)s each, oldest first.",
                number,
                step=step,
            )
            yield Effect(ICONS[verb], "", text)
            yield Effect("info", "", words.rich("Completed steps are not run again."))
        case Verb.RUN_NOW:
            text = words.nrich(
                "%(step)s of <b>%(num)s run</b> is sent to the workers again, due at once.",
                "%(step)s of <b>%(num)s runs</b> is sent to the workers again, due at once, oldest first.",
                number,
                step=step,
            )
            yield Effect(ICONS[verb], "", text)
        case _:
            text = words.nrich(
                "<b>%(num)s run</b> ends as cancelled. It cannot be resumed.",
                "<b>%(num)s runs</b> end as cancelled, oldest first. None can be resumed.",
                number,
            )
            yield Effect(ICONS[verb], "bad", text)
            yield Effect("info", "", words.rich("Completed steps are not undone."))
    moved = words.rich("A run that has moved on is left alone and counted in the result.")
    yield Effect("skipped", "", moved)
    if number < count:
        more = words.rich(
            "One press takes at most %(number)s runs. Press again for the others.",
            number=words.number(number),
        )
        yield Effect("info", "", more)
    late = words.rich(
        "Runs that got stuck after %(time)s, when the page was read, are <b>not touched</b>.",
        time=words.clock(as_of),
    )
    yield Effect("shield", "", late)


def outcome(verb: Verb, result: BulkResult, failure: str | None, words: Words) -> tuple[str, str]:
    """Return the tone and the words of what a press did; `failure` is the first, as it may be shown."""
    if result.in_doubt is None and not (result.done or result.moved_on or result.failed):
        return "warn", words.gettext("Nothing was done: no such run is stuck any more.")
    key = _DONE_BUT[verb] if result.moved_on else _DONE[verb]
    said = [words.gettext(key, done=words.number(result.done), moved=words.number(result.moved_on))]
    if failure is not None:
        said.append(
            words.ngettext(
                "%(num)s failed: %(reason)s",
                "%(num)s failed, the first one: %(reason)s",
                result.failed,
                reason=cut(failure),
            )
        )
    if result.in_doubt is not None:
        said.append(
            words.gettext(
                "PostgreSQL went away while run %(id)s was in hand, so look whether that one is done.",
                id=result.in_doubt,
            )
        )
    if result.may_be_more:
        said.append(words.gettext("More may wait: press again for them."))
    return _tone(result), " ".join(said)


def _tone(result: BulkResult) -> str:
    if result.failed or result.in_doubt is not None:
        return "bad"
    return "good" if result.done else "warn"


def cut(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return the beginning of a text that is longer."""
    return text if len(text) <= longest else f"{text[:longest]}…"
