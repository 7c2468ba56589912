"""Which change for the worse the insights of a class open with: the rule, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgbus.engine.insights.figures import Figures, Percentiles, Revision, _slower, _worse
from pgbus.engine.insights.headline import Headline, Worse, headline
from pgbus.engine.insights.stuck import StuckAtStep
from pgbus.engine.insights.throughput import Bucket
from pgbus.engine.insights.windows import Span, Window

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
SPAN = Span(Window.DAY, NOW - timedelta(days=1), NOW, capped=False)
DEPLOYED = NOW - timedelta(hours=3)


def figures(ended=20, failed=0, p95=1.0, samples=100):
    return Figures(ended, failed, run=Percentiles(samples, p95, p95, p95))


def revisions(before, now, names=("r2", "r1")):
    """The newest and the one before it, given the figures of their steps."""
    return [
        Revision(
            revision=name,
            running=True,
            first_at=first_at,
            total=Figures(),
            by_step=steps,
            compared=True,
            worse=_worse(steps, earlier),
            slower=_slower(steps, earlier),
        )
        for name, first_at, steps, earlier in (
            (names[0], DEPLOYED, now, before),
            (names[1], SPAN.since, before, {}),
        )
    ]


def told(before=None, now=None, stuck=(), counted=(0, 0, 0)):
    """The headline of a class, its throughput spread over two buckets."""
    found = revisions(before, now) if before and now else []
    at_steps = [StuckAtStep(step, runs, NOW) for step, runs in dict(stuck).items()]
    buckets = [Bucket(NOW, 0, 0, 0), Bucket(NOW, *counted)]
    return headline(found, at_steps, buckets, SPAN)


@pytest.mark.parametrize(
    ("before", "now", "rises"),
    [
        (figures(20, 1), figures(20, 2), False),
        (figures(20, 0), figures(20, 6), False),
        (figures(20, 0), figures(20, 7), True),
        (figures(20, 1), figures(20, 10), True),
        (figures(100, 2), figures(100, 7), False),
        (figures(1000, 20), figures(1000, 71), True),
        (figures(20, 0), figures(19, 19), False),
        (figures(19, 0), figures(20, 20), False),
        (figures(20, 3), figures(20, 1), False),
    ],
)
def test_a_failure_rate_is_worse_by_more_than_five_points_of_twenty_and_than_chance(
    before, now, rises
):
    expected = Headline(
        kind=Worse.FAILURE_RATE,
        since=DEPLOYED,
        now=now.failed / now.ended,
        before=before.failed / before.ended,
        step_name="pay",
        revision="r2",
    )
    assert told({"pay": before}, {"pay": now}) == (expected if rises else None)


@pytest.mark.parametrize(
    ("before", "now", "slower"),
    [
        (figures(p95=1.0), figures(p95=2.0), True),
        (figures(p95=1.0), figures(p95=1.99), False),
        (figures(p95=0.4), figures(p95=1.4), True),
        (figures(p95=0.4), figures(p95=1.39), False),
        (figures(p95=10.0), figures(p95=20.0), True),
        (figures(p95=10.0), figures(p95=19.9), False),
        (figures(p95=1.0, samples=99), figures(p95=9.0), False),
        (figures(p95=1.0), figures(p95=9.0, samples=99), False),
        (figures(p95=None, samples=0), figures(p95=9.0), False),
    ],
)
def test_a_p95_of_a_hundred_is_worse_that_doubled_and_rose_by_a_second(before, now, slower):
    expected = Headline(
        kind=Worse.RUN_TIME,
        since=DEPLOYED,
        now=now.run.p95,
        before=before.run.p95 or 0,
        step_name="pay",
        revision="r2",
    )
    assert told({"pay": before}, {"pay": now}) == (expected if slower else None)


def test_twenty_stuck_runs_at_a_step_are_a_pile_up():
    assert told(stuck={"pay": 19, "ship": 19}) is None
    expected = Headline(kind=Worse.PILE_UP, since=NOW, now=20, before=0, step_name="ship")
    assert told(stuck={"pay": 19, "ship": 20}) == expected


@pytest.mark.parametrize(
    ("counted", "behind"),
    [
        ((20, 10, 5), True),
        ((20, 10, 6), False),
        ((19, 0, 0), False),
        ((1_000_000, 799_999, 0), True),
        ((1_000_000, 800_000, 0), False),
    ],
)
def test_fewer_than_four_in_five_ended_as_started_is_falling_behind(counted, behind):
    expected = Headline(
        kind=Worse.FALLING_BEHIND,
        since=SPAN.since,
        now=counted[1] + counted[2],
        before=counted[0],
    )
    assert told(counted=counted) == (expected if behind else None)


def test_the_first_of_the_kinds_is_told():
    fails, slows = figures(20, 20), figures(p95=9.0)
    found = {"stuck": {"pay": 20}, "counted": (20, 0, 0)}
    assert told({"a": figures(), "b": figures()}, {"a": slows, "b": fails}, **found).kind == (
        Worse.FAILURE_RATE
    )
    assert told({"a": figures()}, {"a": slows}, **found).kind == Worse.RUN_TIME
    assert told(**found).kind == Worse.PILE_UP
    assert told(counted=found["counted"]).kind == Worse.FALLING_BEHIND


def test_of_several_steps_the_one_where_it_is_worst_is_told():
    before = {name: figures(p95=1.0) for name in ("a", "b", "c")}
    now = {"a": figures(20, 8, p95=9.0), "b": figures(20, 9), "c": figures(20, 9)}
    assert told(before, now).step_name == "b"
    assert told(before, {"a": figures(p95=3.0), "b": figures(p95=4.0)}).step_name == "b"
    assert told(stuck={"c": 21, "a": 20, "b": 21}).step_name == "b"


def test_a_step_that_the_revision_before_did_not_run_is_compared_with_nothing():
    assert told({"pay": figures()}, {"ship": figures(20, 20, p95=99.0)}) is None


def test_a_first_revision_is_compared_with_nothing():
    (newest, _) = revisions({}, {"pay": figures(20, 20)})
    assert headline([newest], [], [], SPAN) is None


def test_a_revision_that_was_seen_before_the_one_before_it_came_back():
    newest, before = revisions({"pay": figures()}, {"pay": figures(20, 20)})
    assert not headline([newest, before], [], [], SPAN).came_back
    older = replace(newest, first_at=before.first_at - timedelta(days=7))
    assert headline([older, before], [], [], SPAN).came_back


def test_an_unknown_revision_is_one_like_others():
    found = revisions({"pay": figures()}, {"pay": figures(20, 20)}, names=(None, "r1"))
    assert headline(found, [], [], SPAN).revision is None
