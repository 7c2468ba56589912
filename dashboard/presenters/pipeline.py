"""The steps of a class in order: what each waits for, who sits at it, how its attempts went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import escape

from pgbus.dashboard.presenters import figures, marks
from pgbus.dashboard.words import _, code
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from markupsafe import Markup

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
    """Runs of one status at a step, with the way to them."""

    tone: str
    icon: str
    text: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step; `rail` is the path of the line that joins it to its neighbours, None where none does."""

    name: str
    icon: str
    rail: str | None
    details: tuple[Markup, ...]
    notes: tuple[Note, ...]
    sitting: tuple[Sitting, ...]
    cells: tuple[Cell, ...]
    hot: bool


_TONES = {
    RunStatus.READY: ("idle", "scheduled"),
    RunStatus.PERFORMING: ("runs", "performing"),
    RunStatus.WAITING: ("waits", "waiting"),
    RunStatus.PAUSED: ("warn", "paused"),
}


def rows(
    found: Performance, href: Callable[[str, RunStatus | None], str], words: Words
) -> tuple[StepRow, ...]:
    """Return a row a step; `href` leads to the ongoing runs at one, of a status or of any."""
    newest = found.revisions[0] if found.revisions else None
    live = [step.step_name for step in found.steps if step.declared]
    return tuple(
        StepRow(
            name=step.step_name,
            icon=_icon(step),
            rail=_rail(live.index(step.step_name), len(live)) if step.declared else None,
            details=tuple(_details(step, words, is_first=live[:1] == [step.step_name])),
            notes=tuple(_notes(step, newest, href, words, loaded=found.loaded)),
            sitting=tuple(_sitting(step, href, words)),
            cells=figures.cells(step.figures, words, worse=_is_worse(step, newest)),
            hot=_is_worse(step, newest),
        )
        for step in found.steps
    )


def _is_worse(step: StepInsight, newest: Revision | None) -> bool:
    return newest is not None and step.step_name in newest.worse


def _icon(step: StepInsight) -> str:
    if step.fan_out:
        return "fanout"
    return "signal" if step.waits_for is not None else "step"


def _rail(place: int, steps: int) -> str | None:
    if steps == 1:
        return None
    return f"M12 {0 if place else 50}V{100 if place + 1 < steps else 50}"


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
    href: Callable[[str, RunStatus | None], str],
    words: Words,
    *,
    loaded: bool,
) -> Iterator[Note]:
    if newest is not None and step.step_name in newest.worse:
        yield Note("bad", "up", _rise(newest.worse[step.step_name], newest.revision, words))
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


def _rise(rise: float, revision: str | None, words: Words) -> Markup:
    if revision is None:
        return words.rich("fails more with an unknown revision, %(rise)s", rise=points(rise, words))
    return words.rich(
        "fails more with %(revision)s, %(rise)s", revision=code(revision), rise=points(rise, words)
    )


def _removed(
    step: StepInsight, href: Callable[[str, RunStatus | None], str], words: Words
) -> Markup:
    runs = sum(step.here.values())
    if not runs:
        return words.rich("a removed step; no run is on it")
    return words.nrich(
        "a removed step; %(count)s ongoing run is on it",
        "a removed step; %(count)s ongoing runs are on it",
        runs,
        count=marks.link(href(step.step_name, None), words.number(runs)),
    )


def _sitting(
    step: StepInsight, href: Callable[[str, RunStatus | None], str], words: Words
) -> Iterator[Sitting]:
    for status, (tone, icon) in _TONES.items():
        if runs := step.here.get(status, 0):
            yield Sitting(tone, icon, _sit(status, runs, words), href(step.step_name, status))


def _sit(status: RunStatus, runs: int, words: Words) -> str:
    match status:
        case RunStatus.READY:
            return words.ngettext("%(num)s scheduled", "%(num)s scheduled", runs)
        case RunStatus.PERFORMING:
            return words.ngettext("%(num)s running", "%(num)s running", runs)
        case RunStatus.WAITING:
            return words.ngettext("%(num)s waiting", "%(num)s waiting", runs)
    return words.ngettext("%(num)s paused", "%(num)s paused", runs)
