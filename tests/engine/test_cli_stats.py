"""`pgbus workflows stats`: the figures of classes as operators and scripts read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from pgbus import Workflow, step
from pgbus.engine.cli import main
from pgbus.engine.cli.stats import _headline
from pgbus.engine.insights import windows
from pgbus.engine.insights.headline import Headline, Worse
from pgbus.engine.insights.performance import performance
from pgbus.engine.insights.reading import now, reading
from pgbus.engine.insights.windows import Window

ZONE = "Asia/Kathmandu"


class Laundry(Workflow):
    @step(wait=90)
    def wash(self):
        if self.arguments.get("fails"):
            raise OSError("no water")

    @step(wait_for="dry", wait_timeout=timedelta(hours=2))
    def fold(self): ...

    @step(wait_for="fetched", wait_timeout=lambda _self: None)
    def hand_over(self): ...


LAUNDRY = f"{__name__}.Laundry"


@pytest.fixture
def pgbus(database, monkeypatch):
    """Runs the command in this process, on the test's database."""
    monkeypatch.setenv("PGBUS_DATABASE_URL", database.url)
    monkeypatch.setenv("PGBUS_TIME_ZONE", ZONE)

    def pgbus(*arguments, expect=0):
        result = CliRunner().invoke(main, ["workflows", "stats", *arguments])
        assert result.exit_code == expect, (result.output, result.exception)
        return result

    return pgbus


@pytest.fixture
def laundry(driver):
    """One that failed, two that wait to be folded, one not begun."""
    for fails in (True, False, False):
        Laundry.start(fails=fails).run_now()
    driver.drain()
    Laundry.start()


def cells(text, first):
    """The cells of the lines that begin with this one, without those that are empty."""
    lines = [line for line in text.splitlines() if line.startswith(first)]
    return [[cell for cell in line.split("  ") if cell] for line in lines]


def test_the_list_has_a_row_for_each_class(pgbus, laundry):
    told = pgbus().stdout
    assert told.startswith("The last 24h, since ")
    ((name, *row),) = cells(told, LAUNDRY)
    assert (name, [cell.strip() for cell in row]) == (LAUNDRY, ["4", "1", "1", "0", "0"])


def test_the_list_says_what_is_odd(pgbus, laundry, database, tmp_path, monkeypatch):
    (tmp_path / "laundry_app.py").write_text(
        "from pgbus import Pgbus, Workflow, step\n"
        "class Ironing(Workflow):\n"
        "    @step\n"
        "    def iron(self): ...\n"
        "bus = Pgbus()\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    database.rows(
        "INSERT INTO pgbus.workflow_definitions VALUES ('gone.Starching', 'd', '[]', now())"
    )
    told = pgbus("--app", "laundry_app:bus").stdout
    assert cells(told, "gone.Starching")[0][-1].strip() == "not loaded by laundry_app:bus"
    assert cells(told, "laundry_app.Ironing")[0][-1].strip() == "never started"


def test_a_class_tells_of_its_steps_revisions_funnel_and_throughput(pgbus, laundry):
    told = pgbus(LAUNDRY, "--window", "1h").stdout
    assert "\nnow        Nothing stands out.\n" in told
    assert "\nongoing    1 ready, 2 waiting, 1 paused\n" in told
    _, steps, revisions, funnel, throughput = told.split("\n\n")
    ((_, now, stuck, ended, failed, reattempted, skipped, *_, about),) = cells(steps, "wash")
    assert [cell.strip() for cell in (now, stuck, ended, failed, reattempted, skipped)] == [
        "1 ready, 1 paused", "1", "3", "33.3 %", "0.0 %", "0.0 %",
    ]  # fmt: skip
    assert about.strip() == "after 0:01:30, too few samples"
    assert cells(steps, "fold")[0][-1].strip() == "waits for dry, timeout 2:00:00"
    assert (
        cells(steps, "hand_over")[0][-1].strip() == "waits for fetched, timeout dynamic (per run)"
    )
    ((_, of_all, ended, *_), (_, of_step, *_)) = cells(revisions, "r1")
    assert (of_all.strip(), ended.strip(), of_step.strip()) == ("all", "3", "wash")
    assert [[cell.strip() for cell in row] for row in cells(funnel, "fold")] == [
        ["fold", "2", "2 waiting"]
    ]
    *_, latest = throughput.splitlines()
    assert "+05:45  4" in latest


def test_json_has_the_same_numbers_as_the_service(pgbus, bus, laundry, database):
    with reading(bus.services) as connection:
        span = windows.span(bus.settings, Window.WEEK, now(connection))
        found = performance(connection, bus.settings, LAUNDRY, span, UTC)
    told = json.loads(pgbus(LAUNDRY, "--window", "7d", "--json").stdout)
    wash = told["steps"][0]
    assert wash["here"] == {"ready": 1, "paused": 1}
    assert (wash["wait"], told["steps"][1]["wait_timeout"]) == (90, 7200)
    assert wash["figures"]["failure_rate"] == pytest.approx(1 / 3)
    assert wash["figures"]["run"]["p95"] == found.steps[0].figures.run.p95
    assert wash["figures"]["few"] is True
    assert told["revisions"][0]["by_step"]["wash"]["failed"] == 1
    assert sum(bucket["started"] for bucket in told["throughput"]) == told["started"] == 4
    assert (told["span"]["window"], told["headline"]) == ("7d", None)
    listed = json.loads(pgbus("--json").stdout)
    (row,) = [one for one in listed["classes"] if one["workflow_class"] == LAUNDRY]
    assert (row["ongoing"], row["attention"]) == (4, 1)


def test_how_long_runs_took_is_told_once_some_have_finished(pgbus, bus, driver, database):
    Laundry.start().pause().resume_at("hand_over").signal("fetched")
    driver.drain()
    told = pgbus(LAUNDRY).stdout
    assert "FINISHED WITHIN" in told
    assert cells(told, "0.000 s to 1.000 s")[0][-1].strip() == "1"
    assert "(created to finished)" in told


def test_a_pile_up_is_told_in_a_sentence(pgbus, bus):
    for _ in range(20):
        Laundry.start().pause()
    assert "20 runs need attention at wash, the first since " in pgbus(LAUNDRY).stdout


@pytest.mark.parametrize(
    ("headline", "expected"),
    [
        (
            {"kind": Worse.FAILURE_RATE, "now": 0.125, "before": 0.02, "step_name": "wash", "revision": "r2"},
            "12.5 % of the attempts of wash fail since revision r2 ({since}); 2.0 % before.",
        ),
        (
            {"kind": Worse.RUN_TIME, "now": 90, "before": 1.5, "step_name": "wash"},
            "The p95 of the run time of wash is 0:01:30 since revision unknown ({since}); 1.500 s before.",
        ),
        (
            {"kind": Worse.FALLING_BEHIND, "now": 3, "before": 40},
            "40 runs started and 3 ended since {since}.",
        ),
    ],
)  # fmt: skip
def test_what_changed_for_the_worse_is_a_sentence(headline, expected):
    since = datetime(2026, 5, 4, 12, tzinfo=UTC)
    told = _headline(Headline(since=since, **headline), UTC)
    assert told == expected.format(since="2026-05-04 12:00:00+00:00")


def test_an_unknown_class_is_refused(pgbus):
    told = pgbus("Laundry", expect=1).stderr
    assert "No class and no run here is called 'Laundry'." in told
    assert "whole dotted name" in told
    assert "error" in json.loads(pgbus("Laundry", "--json", expect=1).stderr)


def test_a_window_that_is_none_is_wrong_usage(pgbus):
    told = pgbus("--window", "2h", expect=2).stderr
    assert "'2h' is not one of '1h', '24h', '7d', '30d'." in told


def test_a_hostile_class_name_is_shown_on_one_line(pgbus, bus, database):
    hostile = "gone.\x1b[2J\nClass"
    Laundry.start().cancel()
    database.rows("UPDATE pgbus.workflows SET workflow_class = %s", hostile)
    told = pgbus(hostile).stdout
    assert "\x1b" not in told
    assert told.splitlines()[0] == "class      gone. [2J Class"
    assert "loaded     no, so its steps are by name: give --app" in told
