"""Insights by class: what stands out, in words, and numbers that lead to exactly the runs they count."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import quote, unquote
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations
from contracts.documents import ROOT
from support.histories import DECLINED, Writer, write
from support.refunds import REFUND, a_day
from support.sites import site_of, visible_text

from pgbus import Pgbus, Workflow, removed_step, step
from pgbus.dashboard.pages import definitions
from pgbus.dashboard.presenters import distribution, figures, revisions, shares
from pgbus.dashboard.presenters.shares import Share
from pgbus.dashboard.presenters.verdict import verdict
from pgbus.dashboard.words import Words
from pgbus.engine.insights import reading
from pgbus.engine.insights.figures import Figures, Percentiles, Revision
from pgbus.engine.insights.headline import Headline, Worse
from pgbus.engine.insights.performance import Bin, Durations

PAGE = "/pgbus/workflows/definitions"
NOW = datetime(2026, 11, 29, 2, 12, tzinfo=UTC)
HOURS = timedelta(hours=3)
HOSTILE = (
    "gone.'<script>alert(1)</script>",
    "../../..//evil.example/\\evil",
    "a/attempts",
    "50%2F %s %(name)s",
    "what?window=1h#top",
)

_LINK = re.compile(r'<a\b[^>]*?href="([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)
_CURRENT = re.compile(r'<a [^>]*aria-current="page"[^>]*>[^\n]*<span class="count">([\d,]+)</span>')
#: Not that of a window's length.
_NUMBER = re.compile(r"\s*([\d,]+)(?!\S| [dh]\b)")
#: Tags within a sentence.
_WITHIN = re.compile(r"</?(?:a|code|wbr)\b[^>]*>")
_FIELD = re.compile(r'<input[^>]*?\bname="(\w+)"[^>]*?\bvalue="([^"]*)"')


class SurveyedWorkflow(Workflow):
    @step(wait=timedelta(minutes=5))
    def look(self): ...

    @step(wait_for="weather", wait_timeout=timedelta(days=2))
    def measure(self): ...

    archive = removed_step()

    @step(wait=timedelta(hours=2))
    def draw(self): ...


class UnsurveyedWorkflow(Workflow):
    @step
    def look(self): ...


FORTY = [f"reconcile_statement_of_partner_with_ledger_{number:02}" for number in range(40)]
ReconciliationOfPartnerStatementsWorkflow = type(
    "ReconciliationOfPartnerStatementsWorkflow",
    (Workflow,),
    {"__module__": __name__} | {name: step(lambda _self: None) for name in FORTY},
)

SURVEYED = f"{__name__}.SurveyedWorkflow"
LONG = f"{__name__}.ReconciliationOfPartnerStatementsWorkflow"


@pytest.fixture
def words():
    return Words(NullTranslations(), Locale("en"), ZoneInfo("Europe/Berlin"), NOW)


@pytest.fixture
def populate(bus):
    """Writes runs of every shape and state, of these classes with these steps."""

    def populate(classes, runs):
        settings = bus.settings
        ages = (settings.workflow_stall_threshold, settings.workflow_waiting_visibility_threshold)
        with bus.services.database.transaction() as connection:
            now = reading.now(connection)
            edges = [now - timedelta(hours=hours) for hours in (26, 12, 1, 0)]
            write(connection, Writer(classes, edges, now, ages).history([7], runs))

    return populate


def class_page(name, query=""):
    return f"{PAGE}/{quote(name, safe='')}{query}"


def numbers(answer):
    """The links of a page whose text is a number, each with it."""
    main = answer.text.partition("<main")[2].partition("</main>")[0]
    for href, inner in _LINK.findall(main):
        if number := _NUMBER.match(unescape(re.sub(r"<[^>]*>", "", inner))):
            yield unescape(href), number[1]


def counted(client, href):
    """How many runs a list, or Attention, says it has."""
    answer = client.get(href)
    assert answer.status_code == 200, href
    return _CURRENT.search(answer.text)[1]


def row(answer, key):
    """The text of the first row with this key, in one line."""
    found, *_others = re.findall(
        rf'<tr role="row" data-key="{re.escape(key)}".*?</tr>', answer.text, re.DOTALL
    )
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", _WITHIN.sub("", found))).split())


def test_every_number_of_runs_leads_to_exactly_those(client, populate):
    gone = HOSTILE[0]
    steps = ["look", "look", "measure", "draw", "archive", "<b>sketch"]
    populate({SURVEYED: steps, gone: ["anneal"]}, 400)
    followed, needy = set(), False
    for page in (PAGE, class_page(SURVEYED), class_page(gone, "?window=7d")):
        answer = client.get(page)
        links = dict(numbers(answer))
        assert len(links) == len({*numbers(answer)}), "one link, one number"
        for href, number in links.items():
            assert counted(client, href) == number, (page, href)
            needy |= "/attention?" in href and "current_step=" in href
            followed.add(re.sub(r"=[^&]*", "", href.partition("?")[2].replace("status=", "")))
    assert needy
    assert followed >= {
        "workflow_class",
        "paused&workflow_class",
        "all&workflow_class&created_from&created_to",
        "finished&workflow_class&ended_from&ended_to",
        "cancelled&workflow_class&ended_from&ended_to",
        "workflow_class&current_step",
        *(f"{status}&workflow_class&current_step" for status in ("ready", "performing")),
        "waiting&workflow_class&current_step",
        "workflow_class&current_step&stuck",
        "workflow_class&current_step&created_from&created_to",
        "paused&workflow_class&current_step&created_from&created_to",
        "finished&workflow_class&created_from&created_to",
        "cancelled&workflow_class&created_from&created_to",
    }


def test_a_number_of_the_window_stays_exact_through_the_lists_own_form(client, bus, database):
    run = bus.start(UnsurveyedWorkflow)
    page = client.get(class_page(run.workflow_class)).text
    href = unescape(re.search(r'Started</h2><p class="big"><a href="([^"]*)"', page)[1])
    since = unquote(re.search("created_from=([^&]*)", href)[1])
    for moved, number in (("0", "1"), ("-1", "0")):
        database.rows(
            "UPDATE pgbus.workflows"
            " SET created_at = CAST(%s AS timestamptz) + CAST(%s || ' microseconds' AS interval)",
            since, moved,
        )  # fmt: skip
        answer = client.get(href)
        form = answer.text.partition('<details id="filter">')[2].partition("</form>")[0]
        fields = {name: unescape(value) for name, value in _FIELD.findall(form)}
        assert "T" in fields["created_from"]
        again = client.get("/pgbus/workflows", query_string=fields)
        assert _CURRENT.search(answer.text)[1] == _CURRENT.search(again.text)[1] == number


def test_a_step_that_fails_more_since_a_deploy_is_the_first_sentence_and_the_mark(client, bus):
    a_day(bus)
    answer = client.get(class_page(REFUND))
    first = re.search(r'<p class="lede">(.*?)</p>', answer.text)[1]
    assert re.search(
        r"^<strong>\d\d(\.\d)?% of the attempts of <code>pay</code> now fail</strong>, before \d(\.\d)?%\."
        r" It began with revision <code>b81d07e</code>, first seen <time .*>2 h ago</time>\.$",
        first,
    )
    assert re.search(r"fails more with b81d07e, [\d.]+%, \+\d\d(\.\d)? points", row(answer, "pay"))
    assert (
        answer.text.count(
            '<tr role="row" class="hot"><td role="cell" class="full"><code>pay</code>'
        )
        == 1
    )
    assert row(answer, "b81d07e").startswith("b81d07e Regression")
    assert row(answer, "9c41e7b").startswith("9c41e7b — ")
    assert row(answer, "77ab3f0").startswith("77ab3f0 — 3 attempts, too few samples 5 h ago 3 ")
    assert answer.text.count("Regression") == 1


def test_the_pipeline_says_what_each_step_waits_for(client, bus):
    a_day(bus)
    answer = client.get(class_page(REFUND))
    assert "waits for goods_returned, 7 d" in row(answer, "receive")
    assert "waits for payout, dynamic (per run)" in row(answer, "settle")
    assert "due 10 min after the step before" in row(answer, "pay")
    assert "fan-out, waits for its jobs" in row(answer, "tell")
    assert "a removed step; 3 ongoing runs are on it" in row(answer, "legacy_export")
    places = [
        answer.text.index(f'data-key="{name}"') for name in ("check", "receive", "pay", "tell")
    ]
    assert places == sorted(places)


def test_a_class_that_nothing_is_wrong_with_says_so_in_few_words(client, bus, driver):
    run = bus.start(UnsurveyedWorkflow)
    driver.drain()
    text = visible_text(client.get(class_page(run.workflow_class)))
    assert "Nothing stands out in the last 24 h." in text
    assert "1 attempt, too few samples" in text
    assert "1 run, too few samples" in text
    assert "Nothing of this class ran" not in text


def test_a_class_that_did_nothing_says_how_a_run_is_started(client):
    text = visible_text(client.get(class_page(SURVEYED, "?window=1h")))
    assert "Nothing ran in the last hour." in text
    assert "Look through a longer window, up to 30 d." in text
    assert "Start a run: SurveyedWorkflow.start(...)" in text
    assert "No run started or ended." in text
    assert "look due 5 min after the start no run — —" in text


def test_a_run_that_was_cancelled_at_a_step_did_not_go_on_from_it(client, bus):
    bus.start(UnsurveyedWorkflow).cancel()
    funnel = client.get(class_page(f"{__name__}.UnsurveyedWorkflow")).text.partition("h-fun")[2]
    bars = re.findall(r'<rect class="(c-[a-z]+)" x="0\.0%" width="100\.0%"/>', funnel)
    assert bars == ["c-skip", "c-skip"]


def test_the_list_tells_the_odd_classes_in_words(client, bus, driver, database, monkeypatch):
    # The classes of other modules' tests may be loaded, too.
    monkeypatch.setattr(definitions, "PAGE_SIZE", 10_000)
    a_day(bus)
    bus.start(UnsurveyedWorkflow)
    driver.drain()
    gone = bus.start(UnsurveyedWorkflow)
    for table in ("workflows", "workflow_definitions"):
        database.rows(
            f"UPDATE pgbus.{table} SET workflow_class = 'gone.Away'"
            + (f" WHERE workflow_id = '{gone.workflow_id}'" if table == "workflows" else "")
        )
    answer = client.get(f"{PAGE}?window=1h")
    assert "Runs of 1 class need attention." in visible_text(answer)
    assert "Never started" in row(answer, SURVEYED)
    assert "3 ongoing runs are on legacy_export, a removed step" in row(answer, REFUND)
    away = row(answer, "gone.Away")
    assert (
        "Does not load here: its runs can be looked at, paused and cancelled, not resumed" in away
    )
    assert "No run finished in the last hour" in away
    assert "No run finished" not in row(answer, f"{__name__}.UnsurveyedWorkflow")


def test_a_window_that_is_none_is_a_400_page_that_names_it(client):
    for page in (PAGE, class_page(SURVEYED)):
        answer = client.get(f"{page}?window=2h")
        assert answer.status_code == 400
        assert "window is 2h. Expected: 1h, 24h, 7d, 30d." in visible_text(answer)
        assert client.get(f"{page}?window=").status_code == 200


def test_a_name_that_no_class_and_no_run_has_is_a_404_page_and_never_imported(client):
    for name in ("antigravity.Flight", "antigravity", "nobody", "a\0b", "/", "//x"):
        answer = client.get(class_page(name))
        assert answer.status_code == 404, name
    assert "No such class" in client.get(class_page("antigravity.Flight")).text
    assert "antigravity" not in sys.modules


def test_names_that_look_like_something_else_are_names(client, populate):
    populate({name: [f"<i>{name}"] for name in HOSTILE}, 100)
    answer = client.get(PAGE)
    links = {unescape(href) for href, _text in _LINK.findall(answer.text)}
    for name in HOSTILE:
        assert class_page(name) in links
        page = client.get(class_page(name))
        assert (page.status_code, name in visible_text(page)) == (200, True), name
        assert "<script>alert" not in page.text
        assert "Class not loaded here" in page.text
        assert class_page(name, "?window=7d") in map(
            unescape, re.findall('href="([^"]*)"', page.text)
        )


def test_the_other_pages_of_workflows_are_where_they_were(client, bus):
    run = bus.start(UnsurveyedWorkflow)
    for part in ("", "/attempts", "/events"):
        answer = client.get(f"/pgbus/workflows/{run.workflow_id}{part}")
        assert f'href="{class_page(run.workflow_class)}"' in answer.text
    assert f'href="{PAGE}"' in client.get("/pgbus/workflows").text


def test_a_window_longer_than_runs_are_kept_says_where_it_begins(database):
    bus = Pgbus(database_url=database.url, workflow_retention=timedelta(hours=6))
    text = visible_text(site_of(bus).test_client().get(class_page(SURVEYED)))
    short = visible_text(site_of(bus).test_client().get(class_page(SURVEYED, "?window=1h")))
    bus.close()
    assert "Runs are deleted 6 h after they ended: the window begins there." in text
    assert "Nothing ran in the last 6 h." in text
    assert "in the last hour" in short
    assert "are deleted" not in short


def test_forty_steps_with_long_names_and_five_regressions_fit_on_a_page(client, populate, database):
    populate({LONG: FORTY}, 2000)
    # Runs wait at each step, and at every second one some failed.
    database.rows(
        "DELETE FROM pgbus.workflows WHERE lane IN ('moving', 'sleeping') OR lane = 'paused'"
        " AND (settled_error <> %s OR right(current_step, 1)::integer %% 2 = 1)",
        DECLINED,
    )
    database.rows("UPDATE pgbus.workflow_steps SET revision = repeat(md5((step_id % 6)::text), 2)")
    answer = client.get(class_page(LONG, "?window=30d"))
    assert [name for name in FORTY if f'data-key="{name}"' not in answer.text] == []
    assert answer.text.count("Regression") == 5
    assert re.search(
        r'fails more with <code title="(\w{12})(\w{52})">\1…</code>, \S+%, \S+ points'
        r" \(\d+ attempts?, too few samples\)",
        answer.text,
    )
    assert len(answer.data) < 150_000


def test_the_guide_has_the_definitions_of_the_page(client, words):
    guide = (ROOT / "docs" / "guide" / "insights.md").read_text(encoding="utf-8").replace("*", "")
    text = visible_text(client.get(class_page(SURVEYED)))
    for term, told in figures.DEFINITIONS:
        assert f"| {words.gettext(term)} | {told} |" in guide
        assert told in text


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            Headline(kind=Worse.RUN_TIME, since=NOW - HOURS, now=61.5, before=4.0, step_name="pay"),
            (
                "One in twenty attempts of pay now takes longer than 1 min 2 s, before 4 s."
                " It began with an unknown revision, first seen 3 h ago."
            ),
        ),
        (
            Headline(
                kind=Worse.FAILURE_RATE,
                since=NOW,
                now=0.5,
                before=0.25,
                step_name="pay",
                revision="r1",
                came_back=True,
            ),
            "50% of the attempts of pay now fail, before 25%. It came back with revision r1.",
        ),
        (
            Headline(
                kind=Worse.PILE_UP,
                since=NOW - HOURS,
                now=23,
                before=0,
                step_name="pay",
            ),
            "23 runs need attention at pay, the first 3 h ago.",
        ),
        (
            Headline(kind=Worse.FALLING_BEHIND, since=NOW, now=7, before=1200),
            "Fewer runs end than start. Started in the last 24 h: 1,200, ended: 7.",
        ),
    ],
    ids=lambda part: getattr(part, "kind", None),
)
def test_each_change_for_the_worse_has_its_sentence(words, found, told):
    sentences = said(found, words)
    assert re.sub(r"<[^>]*>", "", " ".join(sentences)) == told
    if found.kind is Worse.PILE_UP:
        assert '<a href="/attention?step=pay">23</a> runs' in sentences[0]
    if found.kind is Worse.FALLING_BEHIND:
        assert '<a href="/started">1,200</a>, ended: <a href="/ended">7</a>.' in sentences[0]


def said(found, words, *, ran=True, attention=0):
    return verdict(
        found,
        words,
        within="in the last 24 h",
        ran=ran,
        attention=attention,
        attention_href=lambda step: f"/attention?step={step}",
        started_href="/started",
        ended_href="/ended",
    )


def test_without_a_change_those_that_need_attention_are_told_else_that_nothing_is_wrong(words):
    (told,) = said(None, words, attention=2)
    assert re.sub(r"</?strong>", "", told) == (
        "No change stands out in the last 24 h;"
        ' <a href="/attention?step=None">2</a> runs need attention.'
    )
    assert said(None, words) == ("Nothing stands out in the last 24 h.",)
    assert said(None, words, ran=False) == ("Nothing ran in the last 24 h.",)


def revision(name, *, compared=True, worse=None, slower=None):
    return Revision(
        revision=name,
        running=name == "r2",
        first_at=NOW,
        total=Figures(40, 4),
        by_step={"pay": Figures(2, 2), "ship": Figures(38, 2)},
        compared=compared,
        worse=worse or {},
        slower=slower or {},
    )


def test_a_revision_is_marked_for_each_step_that_fails_more_or_takes_longer(words):
    newest, before, first = revisions.rows(
        [
            revision("r2", worse={"pay": 0.5}, slower={"ship": 5.0, "pay": 2.0}),
            revision("r1"),
            revision("r0", compared=False),
        ],
        words,
    )
    assert [words.gettext(badge.word) for badge in newest.marks] == ["Regression", "Slower"]
    assert [(step.name, step.rises, step.few) for step in newest.steps] == [
        ("ship", ("p95 +5 s",), None),
        ("pay", ("+50 points", "p95 +2 s"), "2 attempts, too few samples"),
    ]
    heads = figures.heads(words)
    marked = [
        [head for head, cell in zip(heads, step.cells, strict=True) if cell.worse]
        for step in newest.steps
    ]
    assert marked == [["Run p95"], ["Run p95", "Failed"]]
    assert (newest.running is not None, before.running) == (True, None)
    assert (before.marks, before.told) == ((), "no step is worse")
    assert (first.marks, first.told) == ((), "—")


def test_percentiles_stand_among_the_bars_where_their_durations_lie(words):
    found = Durations(
        Percentiles(4, 2.0, 3599.0, 4000.0),
        (Bin(0, 1, 1), Bin(1, 5, 2), Bin(900, 3600, 1), Bin(31_536_000, None, 1)),
    )
    assert [line.at for line in distribution.lines(found, words)] == ["0.75", "2.50"]
    assert distribution.end(found, words) == ""
    assert distribution.end(replace(found, bins=found.bins[:3]), words) == "1 h"
    assert [row.label for row in distribution.rows(found, words)] == [
        "< 1 s", "1 s to 5 s", "15 min to 1 h", "≥ 365 d",
    ]  # fmt: skip


def test_a_share_that_is_there_can_be_seen():
    assert shares.bar(1000, [("c-run", 500), ("c-bad", 1), ("c-good", 0)]) == (
        Share("c-run", "0.0", "50.0"),
        Share("c-bad", "50.0", "0.6"),
    )
