"""The steps of a class in order: what each waits for, who sits at it, how its attempts went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from pgbus.dashboard.presenters import figures, marks
from pgbus.dashboard.words import _, code
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pgbus.dashboard.presenters.figures import Cell
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.figures import Revision
    from pgbus.engine.insights.performance import Performance, StepInsight


@dataclass(frozen=True, slots=True)
class Note:
    """What is odd about a line."""

    tone: str
    icon: str
    text: Markup


@dataclass(frozen=True, slots=True)
class Sitting:
    """Runs at a step that stand alike, with the way to them."""

    tone: str
    icon: str
    text: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step; `leads_on`: a line joins it to the one below. A `hot` one became worse."""

    name: str
    icon: str
    leads_on: bool
    details: tuple[Markup, ...]
    notes: tuple[Note, ...]
    sitting: tuple[Sitting, ...]
    cells: tuple[Cell, ...]
    hot: bool


_TONES = {
    RunStatus.READY: ("idle", "scheduled"),
    RunStatus.PERFORMING: ("runs", "performing"),
    RunStatus.WAITING: ("waits", "waiting"),
}
_PAUSED_TONES = {
    StuckReason.STALLED: ("bad", "stalled"),
    StuckReason.PAUSED_ERROR: ("bad", "failed"),
    StuckReason.PAUSED_MANUAL: ("warn", "paused"),
}


def rows(
    found: Performance,
    href: Callable[..., str],
    attention_href: Callable[[str], str],
    words: Words,
) -> tuple[StepRow, ...]:
    """Return a row a step.

    `href` leads to the runs at one, narrowed by fields of a `RunFilter`; `attention_href` to those that need somebody.
    """
    newest = found.revisions[0] if found.revisions else None
    live = [step.step_name for step in found.steps if step.declared]
    became_worse = hot(found)
    return tuple(
        StepRow(
            name=step.step_name,
            icon=_icon(step),
            leads_on=step.step_name in live[:-1],
            details=tuple(_details(step, words, is_first=live[:1] == [step.step_name])),
            notes=tuple(_notes(step, newest, href, words, loaded=found.loaded)),
            sitting=tuple(_sitting(step, href, attention_href, words)),
            cells=figures.cells(step.figures, words),
            hot=step.step_name in became_worse,
        )
        for step in found.steps
    )


def hot(found: Performance) -> set[str]:
    """Return the steps that became worse with the newest revision; their figures are of all in the window."""
    return {step for newest in found.revisions[:1] for step in (*newest.worse, *newest.slower)}


def _icon(step: StepInsight) -> str:
    if step.fan_out:
        return "fanout"
    return "signal" if step.waits_for is not None else "step"


def _details(step: StepInsight, words: Words, *, is_first: bool) -> Iterator[Markup]:
    if step.wait is not None:
        due = (
            _("due %(time)s after the start")
            if is_first
            else _("due %(time)s after the step before")
        )
        yield words.rich(due, time=words.duration(step.wait.total_seconds()))
    if step.fan_out:
        yield words.rich("fan-out, waits for its jobs")
    if step.waits_for is None:
        return
    waits_for = code(step.waits_for)
    if step.dynamic_timeout:
        yield words.rich("waits for %(signal)s, dynamic (per run)", signal=waits_for)
    elif step.wait_timeout is None:
        yield words.rich("waits for %(signal)s, without a deadline", signal=waits_for)
    else:
        timeout = words.duration(step.wait_timeout.total_seconds())
        yield words.rich("waits for %(signal)s, %(time)s", signal=waits_for, time=timeout)


def _notes(
    step: StepInsight,
    newest: Revision | None,
    href: Callable[..., str],
    words: Words,
    *,
    loaded: bool,
) -> Iterator[Note]:
    if newest is not None:
        for told in _became_worse(step.step_name, newest, words):
            yield Note("bad", "up", told)
    if step.removed:
        yield Note("warn", "attention", _removed(step, href, words))
    elif loaded and not step.declared:
        yield Note("warn", "attention", words.rich("the loaded class has no such step"))
    if few := figures.few_attempts(step.figures.ended, words):
        yield Note("warn", "info", escape(few))


def points(rise: float, words: Words) -> str:
    """Return by how many points a rate rose."""
    number = round(100 * rise, 1)
    return words.gettext("+%(number)s points", number=words.number(number))


def _became_worse(step: str, newest: Revision, words: Words) -> Iterator[Markup]:
    """Yield what the step does worse with the revision, and of how few of its attempts that is told."""
    name = marks.revision(newest.revision) if newest.revision is not None else None
    if step in newest.worse:
        change = {
            "now": words.percent(newest.by_step[step].failure_rate),
            "rise": points(newest.worse[step], words),
        }
        told = (
            words.rich("fails more with %(revision)s, %(now)s, %(rise)s", revision=name, **change)
            if name
            else words.rich("fails more with an unknown revision, %(now)s, %(rise)s", **change)
        )
        few = figures.few_attempts(newest.by_step[step].ended, words)
        yield words.rich("%(what)s (%(few)s)", what=told, few=few) if few else told
    if step in newest.slower:
        change = {
            "now": words.duration(newest.by_step[step].run.p95),
            "time": words.duration(newest.slower[step]),
        }
        yield (
            words.rich("slower with %(revision)s, p95 %(now)s, +%(time)s", revision=name, **change)
            if name
            else words.rich("slower with an unknown revision, p95 %(now)s, +%(time)s", **change)
        )


def _removed(step: StepInsight, href: Callable[..., str], words: Words) -> Markup:
    runs = sum(step.here.values())
    if not runs:
        return words.rich("a removed step; no run is on it")
    return words.nrich(
        "a removed step; %(count)s ongoing run is on it",
        "a removed step; %(count)s ongoing runs are on it",
        runs,
        count=marks.link(href(step.step_name), words.number(runs)),
    )


def _sitting(
    step: StepInsight,
    href: Callable[..., str],
    attention_href: Callable[[str], str],
    words: Words,
) -> Iterator[Sitting]:
    for status, (tone, icon) in _TONES.items():
        if runs := step.here.get(status, 0):
            to = href(step.step_name, status=status)
            yield Sitting(tone, icon, _sit(status, runs, words), to)
    for reason, (tone, icon) in _PAUSED_TONES.items():
        if runs := step.paused.get(reason, 0):
            to = href(step.step_name, stuck=reason)
            yield Sitting(tone, icon, _paused(reason, runs, words), to)
    if step.stuck:
        told = words.ngettext("%(num)s needs attention", "%(num)s need attention", step.stuck)
        yield Sitting("bad", "attention", told, attention_href(step.step_name))


def paused(by_reason: Mapping[StuckReason, int], href: str, words: Words) -> Sitting | None:
    """Return all that are paused as one, by their reason where they have the same; None without any."""
    if not by_reason:
        return None
    reason = next(iter(by_reason)) if len(by_reason) == 1 else StuckReason.PAUSED_MANUAL
    told = _paused(reason, sum(by_reason.values()), words)
    return Sitting(*_PAUSED_TONES[reason], told, href)


def _paused(reason: StuckReason, runs: int, words: Words) -> str:
    match reason:
        case StuckReason.STALLED:
            return words.ngettext("%(num)s stalled", "%(num)s stalled", runs)
        case StuckReason.PAUSED_ERROR:
            return words.ngettext("%(num)s paused on error", "%(num)s paused on error", runs)
    return words.ngettext("%(num)s paused", "%(num)s paused", runs)


def _sit(status: RunStatus, runs: int, words: Words) -> str:
    match status:
        case RunStatus.READY:
            return words.ngettext("%(num)s scheduled", "%(num)s scheduled", runs)
        case RunStatus.PERFORMING:
            return words.ngettext("%(num)s running", "%(num)s running", runs)
    return words.ngettext("%(num)s waiting", "%(num)s waiting", runs)
