"""Each trouble of the bus is told by the doctor and the tools, and by the console in the same words."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from gettext import NullTranslations
from html import unescape
from zoneinfo import ZoneInfo

import pytest
from babel import Locale

from pgbus.dashboard.presenters import health, queues
from pgbus.dashboard.presenters.queues import QueueTotal
from pgbus.dashboard.words import Words
from pgbus.engine.cli import hints
from pgbus.engine.insights.health import Hint, Problem
from pgbus.engine.insights.queues import QueuePause

ZONE = ZoneInfo("UTC")
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ENGLISH = Words(NullTranslations(), Locale("en"), ZONE, NOW)
SINCE = NOW - timedelta(hours=2)
#: What tells a moment as a date, and as how long ago it was.
MOMENTS = re.compile(r"since 2026-\S+ \S+(?=:)|at 2026-\S+ \S+(?=\.)|for 2 h|2 h ago")

HINTS = [
    Hint(problem=Problem.OLD_SCHEMA),
    Hint(problem=Problem.NO_WORKER),
    *(Hint(problem=Problem.NO_DISPATCHER, number=number) for number in (0, 1, 12_345)),
    Hint(problem=Problem.NO_LISTEN, subject="mill:1"),
    Hint(problem=Problem.VACUUM_HELD_BACK, subject="psql of <ann>, pid 7", since=SINCE),
    *(
        Hint(problem=Problem.BLOATED_QUEUE, subject="pgbus_mail", number=90_000, since=since)
        for since in (None, SINCE)
    ),
    *(Hint(problem=Problem.CLOCKS_APART, subject="mill:1", seconds=by) for by in (-7.0, 31.0)),
]
#: The queues' own sentences tell these.
OF_QUEUES = [
    Hint(problem=problem, subject="mail", number=number, since=since)
    for problem, since in ((Problem.UNREAD_QUEUE, None), (Problem.PAUSED_QUEUE, SINCE))
    for number in (1, 2, 10_001)
]


def read(*html):
    return unescape(re.sub(r"<[^>]*>", "", " ".join(html)))


def told(hint):
    """What the doctor and the tools say of a hint."""
    return f"{hints.trouble(hint, ZONE)} {hints.mend(hint)}"


def test_every_trouble_is_here():
    assert {hint.problem for hint in (*HINTS, *OF_QUEUES)} == {*Problem}


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint.problem)
def test_a_trouble_is_told_everywhere_in_the_same_words(hint):
    (line,) = health.lines([hint], ENGLISH)
    assert MOMENTS.sub("(moment)", read(line.title, line.mend)) == MOMENTS.sub(
        "(moment)", told(hint)
    )


@pytest.mark.parametrize("hint", OF_QUEUES, ids=lambda hint: hint.problem)
def test_a_queue_in_trouble_is_told_everywhere_in_the_same_words(hint):
    pause = hint.since and QueuePause(since=hint.since, actor="ann", reason=None)
    queue = QueueTotal("mail", hint.number, 0, 0, NOW, served=False, pause=pause)
    sentence = read(queues.sentence(queue, ENGLISH))
    if pause:
        sentence = sentence.replace("is paused", "has been paused since 2026-11-29 10:00:00+00:00")
        assert hints.mend(hint) == "Workers read it again after pgbus queues resume mail."
    else:
        assert read(queues.note(queue, ENGLISH)) == hints.mend(hint)
    assert sentence == hints.trouble(hint, ZONE)
