"""The timeline of a run: what is drawn, and in which frame."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations

from pgbus.dashboard.presenters.timeline import KINDS, chart, drawing, shortened
from pgbus.dashboard.words import Words
from pgbus.engine.insights.attempts import Attempt
from pgbus.engine.insights.detail import Timeline
from pgbus.engine.insights.phases import Mark, MarkKind, Pause, Phase, PhaseKind
from pgbus.engine.states import AttemptStatus, RunStatus

WAITED, QUEUED, WAITING, RAN = PhaseKind
T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)
WORDS = Words(NullTranslations(), Locale("en"), ZoneInfo("Europe/Berlin"), T0 + timedelta(hours=3))


def at(minutes):
    return None if minutes is None else T0 + timedelta(minutes=minutes)


def ms(minutes):
    return round(at(minutes).timestamp() * 1000)


def attempt(
    number, phases, *, status=AttemptStatus.COMPLETED, ended=None, marks=(), step="capture"
):
    """An attempt with phases as (kind, first minute, last or None)."""
    spent = tuple(Phase(kind, at(begin), at(end)) for kind, begin, end in phases)
    return Attempt(
        step_id=number, step_name=step, attempt=number, status=status, outcome=None,
        created_at=spent[0].begin, scheduled_at=spent[0].begin, started_at=None,
        finished_at=at(ended), waited_seconds=0, queued_seconds=0, waiting_seconds=0,
        ran_seconds=None, phases=spent, marks=tuple(marks), worker=None, revision=None,
        error_class=None, error_message=None, encoded_error=None, error_cut=False, output=None,
        waiting_for=None, waiting_since=None, timeout_at=None, seconds_left=None, late_since=None,
        timed_out=False, batch_id=None,
    )  # fmt: skip


def timeline(*attempts, now=180, status=RunStatus.PAUSED, pauses=()):
    """A timeline of attempts, oldest first, as insights give it."""
    return Timeline(
        at(now), SimpleNamespace(status=status), tuple(reversed(attempts)), tuple(pauses)
    )


DONE = attempt(1, [(QUEUED, 0, 1), (RAN, 1, 5)], ended=5)
FAILED = attempt(
    2, [(WAITED, 5, 60), (RAN, 60, 61)], status=AttemptStatus.FAILED, ended=61
)  # fmt: skip


def drawn(run):
    return json.loads(drawing(run, WORDS))


def test_each_attempt_is_a_row_and_each_phase_a_bar_of_its_kind():
    told = drawn(timeline(DONE, FAILED))
    assert told["rows"] == ["capture 1", "capture 2"]
    assert {
        kind: (bars["x"], bars["length"], bars["y"]) for kind, bars in told["bars"].items()
    } == {
        "queued": ([ms(0)], [60_000], [0]),
        "completed": ([ms(1)], [240_000], [0]),
        "waited": ([ms(5)], [55 * 60_000], [1]),
        "failed": ([ms(60)], [60_000], [1]),
    }


@pytest.mark.parametrize(
    ("status", "kind", "glyph"),
    [
        (AttemptStatus.COMPLETED, "completed", "✓"),
        (AttemptStatus.FAILED, "failed", "✕"),
        (AttemptStatus.CANCELLED, "ended", "⊘"),
        (AttemptStatus.SKIPPED, "ended", "»"),
    ],
)
def test_how_a_body_ended_is_told_by_more_than_a_colour(status, kind, glyph):
    told = drawn(timeline(attempt(1, [(RAN, 0, 5)], status=status, ended=5)))
    assert list(told["bars"]) == [kind]
    assert told["ends"] == {"x": [ms(5)], "y": [0], "text": [glyph]}


def test_what_lasts_is_drawn_until_now_and_has_no_end():
    running = attempt(1, [(QUEUED, 0, 1), (RAN, 1, None)], status=AttemptStatus.IN_PROGRESS)
    told = drawn(timeline(running, now=10, status=RunStatus.PERFORMING))
    assert told["bars"]["running"]["length"] == [9 * 60_000]
    assert told["ends"]["x"] == []
    assert told["now"] == ms(10)


def test_the_body_of_a_fan_out_that_waits_for_its_jobs_has_completed():
    waits = attempt(1, [(RAN, 0, 2), (WAITING, 2, None)], status=AttemptStatus.WAITING)
    told = drawn(timeline(waits, now=10, status=RunStatus.WAITING))
    assert told["bars"]["completed"]["length"] == [2 * 60_000]
    assert told["bars"]["waiting"]["length"] == [8 * 60_000]
    assert told["ends"]["x"] == []


def test_pauses_are_a_row_of_their_own_above_the_attempts():
    told = drawn(
        timeline(DONE, pauses=[Pause(at(2), at(4), "bo", None), Pause(at(100), None, "bo", None)])
    )
    assert told["rows"] == ["Pauses", "capture 1"]
    assert told["bars"]["paused"]["y"] == [0, 0]
    assert told["bars"]["paused"]["length"] == [2 * 60_000, 80 * 60_000]
    assert told["bars"]["queued"]["y"] == [1]


def test_a_pause_before_the_first_attempt_shown_is_left_out():
    later = replace(DONE, created_at=at(50), phases=(Phase(RAN, at(50), at(55)),))
    run = timeline(later, pauses=[Pause(at(2), at(4), "bo", None)])
    assert drawn(run)["rows"] == ["capture 1"]
    assert "paused" not in {kind.name for kind in chart(run, WORDS).legend}


def test_deadlines_and_late_notices_are_marked():
    waits = attempt(
        1, [(WAITING, 0, None)], status=AttemptStatus.WAITING,
        marks=[
            Mark(MarkKind.DEADLINE, at(30)), Mark(MarkKind.LATE_NOTICE, at(31)),
            Mark(MarkKind.DEADLINE, at(60)),
        ],
    )  # fmt: skip
    told = drawn(timeline(waits, now=40, status=RunStatus.WAITING))
    assert told["marks"]["deadline"]["x"] == [ms(30), ms(60)]
    assert told["marks"]["late_notice"]["x"] == [ms(31)]


def test_a_hover_tells_what_from_when_to_when_and_how_long_in_the_zone_of_the_page():
    (text,) = drawn(timeline(DONE))["bars"]["completed"]["text"]
    assert text == (
        "capture 1<br>ran, completed<br>Sun, Nov 29, 2026 13:01:00 +01:00<br>"
        "Sun, Nov 29, 2026 13:05:00 +01:00<br>4 min"
    )


def test_names_are_escaped_for_the_chart_which_reads_html():
    evil = '<a href="javascript:alert(1)">&'
    told = drawn(timeline(replace(DONE, step_name=evil)))
    assert "<a" not in told["rows"][0]
    assert not re.search("<(?!br>)", told["bars"]["completed"]["text"][0])


def test_a_long_name_is_cut_and_keeps_the_attempts_number():
    assert shortened("a" * 40 + " 12") == "a" * 15 + "…" + "a" * 12 + " 12"
    assert shortened("capture 12") == "capture 12"


def spans(run):
    """The ranges in minutes."""
    return {
        name: tuple(round((edge - ms(0)) / 60_000, 2) for edge in edges)
        for name, edges in drawn(run)["ranges"].items()
    }


def test_the_whole_reaches_from_the_first_attempt_until_now_or_the_end():
    ongoing = spans(timeline(DONE, now=100))
    assert ongoing["all"] == (-1, 105)
    ended = spans(timeline(DONE, now=100, status=RunStatus.FINISHED))
    assert ended["all"] == (-0.05, 5.25)
    assert drawn(timeline(DONE, status=RunStatus.FINISHED))["now"] is None


def test_a_deadline_ahead_is_shown_unless_it_would_dwarf_the_run():
    def waiting(until):
        marks = [Mark(MarkKind.DEADLINE, at(until))]
        one = attempt(1, [(WAITING, 0, None)], status=AttemptStatus.WAITING, marks=marks)
        return timeline(one, now=100, status=RunStatus.WAITING)

    assert spans(waiting(500))["all"] == (-5, 525)
    assert spans(waiting(501))["all"] == (-1, 105)
    assert "deadline" in {kind.name for kind in chart(waiting(500), WORDS).legend}
    assert "deadline" not in {kind.name for kind in chart(waiting(501), WORDS).legend}


def test_a_closer_look_is_offered_at_the_last_failure_and_the_last_of_many_hours():
    found = spans(timeline(DONE, FAILED, now=200))
    assert found["failure"] == (59.48, 61.6)
    assert found["hour"] == (139.4, 203)
    assert [zoom.label for zoom in chart(timeline(DONE, FAILED, now=200), WORDS).zooms] == [
        "Whole run", "Last failure", "Last hour",
    ]  # fmt: skip
    assert set(spans(timeline(DONE, now=120))) == {"all"}


def test_a_run_of_no_length_still_has_a_range():
    instant = attempt(1, [(RAN, 0, 0)], ended=0)
    first, last = drawn(timeline(instant, now=0))["ranges"]["all"]
    assert first < ms(0) < last


def test_the_legend_names_what_is_drawn_and_nothing_else():
    run = timeline(DONE, FAILED, pauses=[Pause(at(2), at(4), "bo", None)])
    told = drawn(run)
    legend = [kind.name for kind in chart(run, WORDS).legend]
    assert legend == ["waited", "queued", "completed", "failed", "paused"]
    assert set(legend) == {*told["bars"], *told["marks"]}


def test_every_kind_differs_from_every_other_in_more_than_its_colour():
    assert len({(kind.shape, kind.hatched, kind.icon, kind.word) for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    ("rows", "height"), [(1, 48 + 30), (12, 48 + 360), (13, 48 + 13 * 22), (100, 48 + 1600)]
)
def test_rows_become_lower_when_there_are_many(rows, height):
    run = timeline(*(attempt(number, [(RAN, 0, 1)], ended=1) for number in range(1, rows + 1)))
    assert chart(run, WORDS).height == height


def test_the_span_is_told_in_words():
    assert re.sub("<[^>]*>", "", chart(timeline(DONE, now=180), WORDS).span) == "13:00 to now, 3 h"
    ended = chart(timeline(DONE, status=RunStatus.FINISHED), WORDS)
    assert re.sub("<[^>]*>", "", ended.span) == "13:00 to 13:05, 5 min"


def test_it_is_drawn_anew_when_something_happened_or_bars_grew_visibly():
    def version(*attempts, **options):
        return chart(timeline(*attempts, **options), WORDS).version

    assert version(DONE, now=180) == version(DONE, now=180.1)
    assert version(DONE, now=180) != version(DONE, FAILED, now=180)
    assert version(DONE, now=180) != version(DONE, now=182)
    over = {"status": RunStatus.FINISHED}
    assert version(DONE, now=180, **over) == version(DONE, now=500, **over)
