"""A run's timeline: a row an attempt, bars for where its time went, marks for how it ended and its deadlines.

Moments are milliseconds since 1970, so that no script has to know of zones to place them; texts are
escaped for the chart, which reads some HTML in them.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pgbus.dashboard.words import _, pgettext
from pgbus.engine.insights.phases import MarkKind, PhaseKind
from pgbus.engine.states import ONGOING, AttemptStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.detail import RunDetail, Timeline
    from pgbus.engine.insights.phases import Pause, Phase


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of bar or mark: its colour's class, its word, its shape, and the icon at its end."""

    name: str
    colour: str
    word: str
    shape: str = "bar"
    icon: str | None = None
    hatched: bool = False


#: In the order of the legend; each is told apart by more than its colour.
KINDS = (
    Kind("waited", "c-waited", pgettext("legend: time", "until due")),
    Kind("queued", "c-queued", pgettext("legend: time", "queued")),
    Kind("waiting", "c-waiting", pgettext("legend: time", "waiting for a signal or batch")),
    Kind("running", "c-run", pgettext("legend: time", "running")),
    Kind("completed", "c-good", pgettext("legend: time", "ran, completed"), icon="finished"),
    Kind("failed", "c-bad", pgettext("legend: time", "ran, failed"), icon="failed", hatched=True),
    Kind("ended", "c-skip", pgettext("legend: time", "ran, skipped or cancelled"), icon="skipped"),
    Kind("paused", "c-paused", pgettext("legend: time", "paused"), hatched=True),
    Kind("deadline", "c-mark", pgettext("legend: time", "deadline"), shape="diamond"),
    Kind("late_notice", "c-mark", pgettext("legend: time", "late notice"), shape="hollow"),
)

#: What the bar of a body's run is called by what became of it; that of a fan-out that waits has returned.
_RAN = {
    AttemptStatus.COMPLETED: "completed",
    AttemptStatus.WAITING: "completed",
    AttemptStatus.FAILED: "failed",
    AttemptStatus.CANCELLED: "ended",
    AttemptStatus.SKIPPED: "ended",
}
_ENDS = {
    AttemptStatus.COMPLETED: "✓",
    AttemptStatus.FAILED: "✕",
    AttemptStatus.CANCELLED: "⊘",
    AttemptStatus.SKIPPED: "»",
}
_WORDS = {kind.name: kind.word for kind in KINDS}
_MARKS = {MarkKind.DEADLINE: "deadline", MarkKind.LATE_NOTICE: "late_notice"}

_HEAD = 48
#: The height of a row, by how many there are at most.
_ROW_HEIGHTS = ((12, 30), (40, 22))
_LOW_ROW = 16
_LONGEST_LABEL = 30

#: A deadline much further ahead than the run is old would leave no room for the run.
_FURTHEST_AHEAD = 4
_HOUR = timedelta(hours=1)
_SHORTEST = timedelta(milliseconds=50)
#: Open bars grow; a new drawing is due when the whole has become longer by this factor.
_VISIBLE = 1.005


_ZOOMS = {"all": _("Whole run"), "failure": _("Last failure"), "hour": _("Last hour")}


@dataclass(frozen=True, slots=True)
class Zoom:
    """A part of the time to look at."""

    name: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The frame of a timeline; `version` changes when it is to be drawn anew."""

    span: Markup
    legend: tuple[Kind, ...]
    height: int
    zooms: tuple[Zoom, ...]
    version: str


def chart(run: RunDetail | Timeline, words: Words) -> Chart:
    """Return the frame of the timeline of a run's attempts."""
    begin, end = _span(run)
    ongoing = run.run.status in ONGOING
    key = _("%(begin)s to now, %(length)s") if ongoing else _("%(begin)s to %(end)s, %(length)s")
    rows = len(run.attempts) + bool(_pauses(run))
    drawn = set(_kinds(run))
    return Chart(
        span=words.rich(
            key,
            begin=words.clock(begin),
            end=words.clock(end),
            length=words.duration((end - begin).total_seconds()),
        ),
        legend=tuple(kind for kind in KINDS if kind.name in drawn),
        height=_HEAD + rows * _row_height(rows),
        zooms=tuple(Zoom(name, words.gettext(_ZOOMS[name])) for name in _ranges(run)),
        version=_version(run, end - begin if ongoing else None),
    )


def drawing(run: RunDetail | Timeline, words: Words) -> str:
    """Return what is drawn in the frame, as JSON."""
    drawn = _Drawing(words)
    drawn.pauses(_pauses(run), run.as_of)
    for attempt in reversed(run.attempts):
        drawn.attempt(attempt, run.as_of)
    document = {
        "rows": drawn.rows,
        "bars": drawn.bars,
        "marks": drawn.marks,
        "ends": drawn.ends,
        "ranges": {name: _padded(*shown) for name, shown in _ranges(run).items()},
        "now": _ms(run.as_of) if run.run.status in ONGOING else None,
        "now_word": words.gettext("now"),
        "zone": str(words.zone),
        "language": words.tag,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _span(run: RunDetail | Timeline) -> tuple[datetime, datetime]:
    """Return when the first of the attempts was scheduled, and now or when the last one ended."""
    begin = min(attempt.created_at for attempt in run.attempts)
    if run.run.status in ONGOING:
        return begin, max(run.as_of, begin)
    return begin, max(attempt.finished_at or attempt.created_at for attempt in run.attempts)


def _pauses(run: RunDetail | Timeline) -> list[Pause]:
    begin, _end = _span(run)
    return [pause for pause in run.pauses if pause.end is None or pause.end > begin]


def _kinds(run: RunDetail | Timeline) -> Iterator[str]:
    if _pauses(run):
        yield "paused"
    _first, last = _ranges(run)["all"]
    for attempt in run.attempts:
        yield from (_kind(attempt, phase) for phase in attempt.phases)
        yield from (_MARKS[mark.kind] for mark in attempt.marks if mark.at <= last)


def _kind(attempt: Attempt, phase: Phase) -> str:
    return _RAN.get(attempt.status, "running") if phase.kind is PhaseKind.RAN else phase.kind.value


class _Drawing:
    """What is drawn: columns of bars by kind, marks by kind, and glyphs at the ends."""

    def __init__(self, words: Words) -> None:
        self.rows: list[str] = []
        self.bars: dict[str, dict[str, list[Any]]] = {}
        self.marks: dict[str, dict[str, list[Any]]] = {}
        self.ends: dict[str, list[Any]] = {"x": [], "y": [], "text": []}
        self._words = words

    def pauses(self, pauses: Iterable[Pause], as_of: datetime) -> None:
        """Draw the pauses, if any, in a row of their own."""
        title = self._words.gettext("Pauses")
        for place, pause in enumerate(pauses):
            if not place:
                self.rows.append(title)
            self._bar("paused", title, pause.begin, pause.end, as_of)

    def attempt(self, attempt: Attempt, as_of: datetime) -> None:
        """Draw an attempt in the next row."""
        title = f"{attempt.step_name} {self._words.number(attempt.attempt)}"
        self.rows.append(_escaped(shortened(title)))
        for phase in attempt.phases:
            self._bar(_kind(attempt, phase), title, phase.begin, phase.end, as_of)
        for mark in attempt.marks:
            self._add(
                self.marks,
                _MARKS[mark.kind],
                _ms(mark.at),
                self._told(title, _MARKS[mark.kind], mark.at),
            )
        if attempt.finished_at is not None and attempt.status in _ENDS:
            for name, value in (
                ("x", _ms(attempt.finished_at)),
                ("y", len(self.rows) - 1),
                ("text", _ENDS[attempt.status]),
            ):
                self.ends[name].append(value)

    def _bar(
        self, kind: str, title: str, begin: datetime, end: datetime | None, as_of: datetime
    ) -> None:
        last = max(end or as_of, begin)
        self._add(self.bars, kind, _ms(begin), self._told(title, kind, begin, last))
        self.bars[kind].setdefault("length", []).append(_ms(last) - _ms(begin))

    def _add(self, group: dict[str, dict[str, list[Any]]], kind: str, at: int, text: str) -> None:
        columns = group.setdefault(kind, {})
        for name, value in (("x", at), ("y", len(self.rows) - 1), ("text", text)):
            columns.setdefault(name, []).append(value)

    def _told(self, title: str, kind: str, begin: datetime, end: datetime | None = None) -> str:
        words = self._words
        lines = [title, words.gettext(_WORDS[kind]), words.exact(begin)]
        if end is not None:
            lines += [words.exact(end), words.duration((end - begin).total_seconds())]
        return "<br>".join(map(_escaped, lines))


def shortened(text: str) -> str:
    """Return a row's name, cut in its middle so that the attempt's number stays."""
    if len(text) <= _LONGEST_LABEL:
        return text
    half = _LONGEST_LABEL // 2
    return f"{text[:half]}…{text[-half:]}"


def _furthest(attempts: Iterable[Attempt], begin: datetime, end: datetime) -> datetime:
    """Return the last moment to show: a deadline ahead, when it is not so far as to dwarf the run."""
    furthest = end + (end - begin) * _FURTHEST_AHEAD
    moments = (mark.at for attempt in attempts for mark in attempt.marks)
    return max([end, *(moment for moment in moments if moment <= furthest)])


def _ranges(run: RunDetail | Timeline) -> dict[str, tuple[datetime, datetime]]:
    """Return the whole, and the parts worth a closer look: the body that failed last, the last hour."""
    begin, end = _span(run)
    found = {"all": (begin, _furthest(run.attempts, begin, end))}
    failed = next((one for one in run.attempts if one.status is AttemptStatus.FAILED), None)
    ran = [phase for phase in failed.phases if phase.kind is PhaseKind.RAN] if failed else []
    if ran and ran[-1].end is not None:
        margin = max(ran[-1].end - ran[-1].begin, _SHORTEST) / 2
        found["failure"] = (ran[-1].begin - margin, ran[-1].end + margin)
    if end - begin > 2 * _HOUR:
        found["hour"] = (end - _HOUR, end)
    return found


def _padded(begin: datetime, end: datetime) -> list[int]:
    """Return the range with some room on both sides: for the outlines, and the glyphs at the end."""
    length = max(end - begin, 2 * _SHORTEST)
    return [_ms(begin - length / 100), _ms(end + length / 20)]


def _row_height(rows: int) -> int:
    return next((height for most, height in _ROW_HEIGHTS if rows <= most), _LOW_ROW)


def _version(run: RunDetail | Timeline, growing: timedelta | None) -> str:
    """Return a text that is another when something happened, or open bars grew by a visible part."""
    told: list[object] = [run.pauses]
    told += [(one.step_id, one.status, one.phases, one.marks) for one in run.attempts]
    if growing is not None:
        told.append(int(math.log(max(growing.total_seconds(), 1), _VISIBLE)))
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)
