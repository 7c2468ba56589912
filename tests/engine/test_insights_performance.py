"""Each figure of a class is what its definition says, over runs of every shape."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.histories import Writer, write
from support.reckoning import Reckoning

from pgbus import FanOut, Workflow, fan_out, removed_step, step
from pgbus.engine.errors import ClassNotFound
from pgbus.engine.insights import classes, windows
from pgbus.engine.insights.figures import Percentiles
from pgbus.engine.insights.performance import Bin, Durations, performance
from pgbus.engine.insights.reading import now, reading
from pgbus.engine.insights.windows import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.storage.database import Connection


class Assembly(Workflow):
    @step(wait=timedelta(hours=2))
    def cut(self): ...

    @step(wait_for="welder_free", wait_timeout=timedelta(days=2))
    def weld(self): ...

    @step(wait_for="paint_dry", wait_timeout=lambda _self: None)
    def paint(self): ...

    rivet = removed_step()

    @fan_out
    def polish(self, batch: FanOut): ...


class Stamping(Workflow):
    @step
    def press(self): ...


ASSEMBLY, STAMPING = f"{__name__}.Assembly", f"{__name__}.Stamping"
REMOVED = {ASSEMBLY: ["rivet"]}
LIVE = {ASSEMBLY: ["cut", "weld", "paint", "polish"], STAMPING: ["press"]}

#: Loaded ones with a gravestone, and a step that nobody declares; one that does not load.
STEPS = {
    ASSEMBLY: ["cut", "cut", "weld", "paint", "polish", "rivet", "<b>solder"],
    STAMPING: ["press"],
    "gone.'Factory": ["anneal", "quench", "temper", "stamp", "ship"],
}
ZONES = [UTC, *map(ZoneInfo, ("Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe"))]


class Undone(Exception):
    pass


@pytest.fixture
def undone(bus):
    """Lends a connection whose writes are undone, so that all that happens is of one moment."""

    @contextmanager
    def undone() -> Iterator[Connection]:
        with suppress(Undone), bus.services.database.transaction() as connection:
            yield connection
            raise Undone

    return undone


def plain(answer):
    """The answer as dictionaries and lists."""
    if isinstance(answer, dict):
        return {name: plain(value) for name, value in answer.items()}
    return [plain(value) for value in answer] if isinstance(answer, list | tuple) else answer


@settings(
    max_examples=25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=8, unique=True),
    runs_of_each=st.sampled_from([1, 2, 6, 50, 150]),
    window=st.sampled_from(Window),
    zone=st.sampled_from(ZONES),
    kept=st.sampled_from([None, timedelta(days=30), timedelta(hours=5)]),
)
def test_every_figure_is_that_of_a_slow_reckoning(
    bus, undone, seeds, runs_of_each, window, zone, kept
):
    configured = replace(bus.settings, workflow_retention=kept)
    thresholds = (
        configured.workflow_stall_threshold,
        configured.workflow_waiting_visibility_threshold,
    )
    with undone() as connection:
        span = windows.span(configured, window, now(connection))
        begins = span.begins(zone)
        writer = Writer(STEPS, [span.since, *begins[1:], span.until], span.until, thresholds)
        history = writer.history(seeds, runs_of_each)
        write(connection, history)
        summaries = {
            one.workflow_class: one for one in classes.summaries(connection, configured, span)
        }
        for name in {run.workflow_class for run in history.runs}:
            wanted = Reckoning(
                history,
                name,
                LIVE.get(name, []),
                REMOVED.get(name, []),
                span.since,
                span.until,
                *thresholds,
            )
            summary = plain(asdict(summaries[name]))
            assert summary == {"loaded": name in LIVE, "ever_started": True} | wanted.summary()
            found = plain(asdict(performance(connection, configured, name, span, zone)))
            found["steps"] = [
                {key: one[key] for key in ("step_name", "here", "paused", "stuck", "figures")}
                for one in found["steps"]
            ]
            expected = wanted.performance(begins)
            assert {key: found[key] for key in expected} == expected


@pytest.fixture
def told(bus):
    """How a class did in the last day."""

    def told(workflow_class):
        with reading(bus.services) as connection:
            span = windows.span(bus.settings, Window.DAY, now(connection))
            return performance(connection, bus.settings, workflow_class, span, UTC)

    return told


def test_a_class_without_runs_tells_its_steps(told):
    found = told(ASSEMBLY)
    cut, weld, paint, polish = found.steps
    assert (cut.step_name, cut.wait, cut.declared) == ("cut", timedelta(hours=2), True)
    assert (weld.waits_for, weld.wait_timeout, weld.dynamic_timeout) == (
        "welder_free",
        timedelta(days=2),
        False,
    )
    assert (paint.waits_for, paint.wait_timeout, paint.dynamic_timeout) == ("paint_dry", None, True)
    assert (polish.fan_out, polish.wait, polish.waits_for) == (True, None, None)
    assert (found.loaded, found.revisions, found.headline) == (True, (), None)
    assert found.durations == Durations(Percentiles(), ())


@pytest.mark.rows_by_hand
def test_only_a_gravestone_that_has_something_to_tell_is_there(database, told):
    run = Assembly.start()
    assert "rivet" not in {one.step_name for one in told(ASSEMBLY).steps}
    database.rows("UPDATE pgbus.workflows SET current_step = 'rivet'")
    rivet = told(ASSEMBLY).steps[-1]
    assert (rivet.step_name, rivet.removed, rivet.declared) == ("rivet", True, False)
    assert (rivet.here, run.status) == ({"ready": 1}, "ready")


@pytest.mark.rows_by_hand
def test_a_run_that_ended_before_it_began_by_a_clock_put_back_took_no_time(database, told):
    Assembly.start().cancel()
    database.rows(
        "UPDATE pgbus.workflows SET status = 'finished', created_at = ended_at + interval '1 second'"
    )
    assert told(ASSEMBLY).durations.bins == (Bin(0, 1, 1),)


def test_a_name_that_no_class_and_no_run_has_is_not_found_nor_imported(told):
    with pytest.raises(ClassNotFound, match=r"'antigravity\.Fly'"):
        told("antigravity.Fly")
    assert "antigravity" not in sys.modules


def test_a_class_that_never_had_a_run_is_in_the_list(bus):
    with reading(bus.services) as connection:
        span = windows.span(bus.settings, Window.DAY, now(connection))
        (found,) = [
            one
            for one in classes.summaries(connection, bus.settings, span)
            if one.workflow_class == STAMPING
        ]
    assert (found.loaded, found.ever_started, found.ongoing, found.p50) == (True, False, 0, None)
