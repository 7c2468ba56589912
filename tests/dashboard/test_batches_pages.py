"""The list of batches and the page of one, as an operator reads them."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from babel.core import Locale
from babel.support import NullTranslations

from pgbus import Batch, FanOut, Workflow, fan_out, job
from pgbus.dashboard.pages import batches as pages
from pgbus.dashboard.presenters import batches as presenter
from pgbus.dashboard.words import Words
from pgbus.engine.insights.batches import BatchRun, BatchSummary, OpenBatches
from pgbus.engine.insights.documents import Document

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ENGLISH = Words(NullTranslations(), Locale("en"), ZoneInfo("UTC"), NOW)
PAGE = "/pgbus/batches"
HOSTILE = "<script>alert(1)</script>"

OPEN = BatchSummary(
    batch_id="01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58",
    description="Exports",
    properties=Document("{}", 2),
    total_jobs=12,
    completed_jobs=7,
    discarded_jobs=0,
    dead_lettered_jobs=0,
    created_at=NOW - timedelta(minutes=4),
    finished_at=None,
    withdrawn_at=None,
    run=None,
)
FAILING = replace(OPEN, dead_lettered_jobs=2)
DONE = replace(OPEN, completed_jobs=12, finished_at=NOW - timedelta(minutes=1))
FAILED = replace(DONE, completed_jobs=9, dead_lettered_jobs=2, discarded_jobs=1)
WITHDRAWN = replace(OPEN, withdrawn_at=NOW, discarded_jobs=2)
RUN = BatchRun("01a0ea1f-7a31-7d18-b2c4-e91d07f4aa59", "shop.OrderWorkflow", "notify_vendors")


def plain(markup):
    return html.unescape(re.sub(r"<[^>]*>", "", str(markup)))


@pytest.mark.parametrize(
    ("batch", "word", "sentence"),
    [
        (OPEN, "In progress", "7 of 12 jobs done, in 4 min so far."),
        (
            replace(OPEN, total_jobs=1, completed_jobs=0),
            "In progress",
            "0 of 1 job done, in 4 min so far.",
        ),
        (
            FAILING,
            "In progress, jobs failed",
            "7 of 12 jobs done, 2 failed, in 4 min so far.",
        ),
        (DONE, "Done", "All 12 jobs were done after 3 min."),
        (replace(DONE, total_jobs=1, completed_jobs=1), "Done", "Its job was done after 3 min."),
        (FAILED, "Ended, jobs failed", "3 of 12 jobs failed, all had ended after 3 min."),
        (
            replace(DONE, total_jobs=1, completed_jobs=0, dead_lettered_jobs=1),
            "Ended, jobs failed",
            "1 of 1 job failed, after 3 min.",
        ),
        (replace(DONE, total_jobs=0, completed_jobs=0), "Done", "It has no jobs."),
        (
            WITHDRAWN,
            "Withdrawn",
            "Its run no longer waits: 3 of 12 jobs are still to end.",
        ),
        (
            replace(WITHDRAWN, total_jobs=1, completed_jobs=0, discarded_jobs=0),
            "Withdrawn",
            "Its run no longer waits: 1 of 1 job is still to end.",
        ),
        (
            replace(FAILED, withdrawn_at=NOW),
            "Withdrawn",
            "3 of 12 jobs failed, all had ended after 3 min.",
        ),
    ],
)
def test_a_batch_says_how_far_it_is(batch, word, sentence):
    assert ENGLISH.gettext(presenter.badge(batch).word) == word
    assert plain(presenter.sentence(batch, ENGLISH)) == sentence


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (OPEN, None),
        (replace(OPEN, run=RUN), "Its run goes on when the last job has ended."),
        (
            replace(WITHDRAWN, run=RUN),
            "Jobs that were not delivered yet are discarded on delivery.",
        ),
        (
            replace(OPEN, completed_jobs=12, run=RUN),
            "Every job has ended; the next sweep finishes the batch.",
        ),
        (replace(DONE, run=RUN), None),
    ],
)
def test_a_batch_says_what_its_end_sets_going(batch, told):
    assert presenter.consequence(batch, ENGLISH) == told


@pytest.mark.parametrize(
    ("batch", "title"),
    [
        (OPEN, "Exports"),
        (replace(OPEN, description=None), "Batch without a description"),
        (replace(OPEN, run=RUN), "OrderWorkflow#notify_vendors"),
        (replace(OPEN, run=replace(RUN, workflow_class=None)), "Exports"),
        (replace(OPEN, run=replace(RUN, step_name=None)), "Exports"),
    ],
)
def test_a_batch_is_called_by_its_step_or_as_it_was_described(batch, title):
    assert plain(presenter.title(batch, ENGLISH)) == title


def test_the_bar_has_a_part_for_what_is_done_and_one_for_what_failed():
    found = presenter.progress(replace(FAILING, total_jobs=16), ENGLISH)
    assert (found.done, found.failed) == ("43.8", "12.5")
    assert found.told == "Done: 7, failed: 2, open: 7"
    nothing = presenter.progress(replace(DONE, total_jobs=0, completed_jobs=0), ENGLISH)
    assert (nothing.done, nothing.failed) == ("0.0", "0.0")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (OpenBatches(0, 0), "No batch is open."),
        (OpenBatches(1, 0), "1 batch is open, and none of its jobs has failed."),
        (OpenBatches(1, 1), "1 batch is open, and some of its jobs have failed."),
        (OpenBatches(5, 0), "5 batches are open, and none of their jobs has failed."),
        (OpenBatches(10_001, 2), "10,000+ batches are open; in 2 of them jobs have failed."),
    ],
)
def test_the_list_opens_with_what_is_open(found, sentence):
    assert plain(presenter.opening(found, ENGLISH)) == sentence


@job(queue="leaflets")
def fold(number=0): ...


@job(queue="leaflets", max_retries=0)
def tear(number=0):
    raise OSError("torn")


@job(queue="leaflets")
def praise(**anything): ...


class Mailing(Workflow):
    @fan_out
    def leaflets(self, batch: FanOut):
        batch.add_many(fold, [(1,), (2,)])


@pytest.fixture
def opened(bus):
    """Opens a batch of these jobs, and returns its id."""

    def opened(*jobs, **options):
        with bus.active(), Batch.open(**options) as builder:
            for number, each in enumerate(jobs, 1):
                builder.add(each, number)
        return builder.batch_id

    return opened


@pytest.fixture
def page(client):
    def page(path=PAGE, status=200):
        answer = client.get(path)
        assert answer.status_code == status
        return answer.text

    return page


def words(page):
    main = page[page.index("<main") : page.index("</main>")]
    return re.sub(r"\s+", " ", plain(re.sub(r"</(td|th|p|h1|h2|span|a|dd|dt|li|pre)>", " ", main)))


def listed(page):
    return re.findall(r'<tr role="row" data-key="([^"]+)"', page)


def link(page, rel):
    [href] = re.findall(rf'<a class="btn" href="([^"]+)" rel="{rel}"', page)
    return html.unescape(href)


def test_without_batches_the_list_says_how_one_comes_to_be(page):
    told = words(page())
    assert "No batch is open." in told
    assert "No batch yet" in told
    assert "Batch.open(description=" in told


def test_a_filter_without_batches_leads_to_all(page, opened):
    opened(fold)
    told = page(f"{PAGE}?show=failed")
    assert "No such batch" in words(told)
    assert f'<a class="btn" href="{PAGE}">All batches</a>' in told


def test_the_list_shows_batches_newest_first_with_their_progress(page, opened, work):
    failed = opened(tear, fold, description="Spring", properties={"number": 12345678901234567890})
    work()
    whole = opened(fold, fold)
    work(most=1)
    text = page()
    assert listed(text) == [whole, failed]
    told = words(text)
    assert "1 of 2 jobs done, in" in told
    assert "1 of 2 jobs failed, all had ended after" in told
    assert 'Spring {"number": 12345678901234567890}' in told
    assert f'<a href="{PAGE}/{failed}">' in text
    assert '<rect class="c-good" width="50.0"' in text
    assert '<rect class="c-bad" x="50.0" width="50.0"' in text


@pytest.mark.parametrize(
    ("show", "expected"), [("all", 3), ("open", 1), ("finished", 2), ("failed", 1)]
)
def test_the_list_can_be_narrowed(page, opened, work, show, expected):
    opened(tear)
    opened(fold)
    work()
    opened(fold)
    text = page(f"{PAGE}?show={show}")
    assert len(listed(text)) == expected
    current = re.findall(r'<a href="([^"]*)" aria-current="page" data-now>', text)
    assert current[-1] == (PAGE if show == "all" else f"{PAGE}?show={show}")


def test_pages_of_the_list_keep_their_filter(page, opened, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    newest_first = [opened(fold) for _ in range(5)][::-1]
    first = page(f"{PAGE}?show=open")
    second = page(link(first, "next"))
    third = page(link(second, "next"))
    assert listed(first) + listed(second) + listed(third) == newest_first
    assert listed(page(link(third, "prev"))) == listed(second)
    query = parse_qs(urlsplit(link(second, "next")).query)
    assert query == {"show": ["open"], "after": [newest_first[3]]}
    assert 'rel="prev"' not in first
    assert 'rel="next"' not in third
    assert f'<a class="btn" href="{PAGE}?show=open">Newest</a>' in third


def test_the_page_of_a_batch_tells_all_there_is(page, opened, work):
    batch_id = opened(
        fold,
        tear,
        fold,
        description="Summer",
        properties={"edition": 7},
        on_complete=praise,
        on_failure=praise,
    )
    work(most=2)
    text = page(f"{PAGE}/{batch_id}")
    told = words(text)
    assert "1 of 3 jobs done, 1 failed, in" in told
    assert "Done: 1, failed: 1, open: 1" in told
    assert f"What failed 1 \N{MULTIPLICATION SIGN} {__name__}.tear Dead-lettered" in told
    assert "All 3 Open 1 Completed 1 Discarded 0 Dead-lettered 1" in told
    assert "Description Summer" in told
    assert f"At the end {__name__}.praise" in told
    assert f"When any failed {__name__}.praise" in told
    assert "When all are done" not in told
    assert '{"edition": 7}' in told
    assert listed(text) == ["3", "2", "1"]
    assert f'data-copy="{batch_id}"' in text


def test_members_are_listed_by_how_they_ended(page, opened, work):
    batch_id = opened(fold, tear, fold, tear)
    work()
    text = page(f"{PAGE}/{batch_id}?outcome=dead_lettered")
    assert listed(text) == ["4", "2"]
    assert "No such job" in words(page(f"{PAGE}/{batch_id}?outcome=discarded"))


def test_pages_of_members_lead_on_and_keep_the_outcome(page, opened, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    batch_id = opened(*[fold] * 5)
    first = page(f"{PAGE}/{batch_id}?outcome=open")
    second = page(link(first, "next"))
    assert listed(second) == ["3", "2"]
    assert link(second, "next") == f"{PAGE}/{batch_id}?outcome=open&after=2"
    assert listed(page(link(second, "prev"))) == ["5", "4"]
    assert f'<a class="btn" href="{PAGE}/{batch_id}?outcome=open">Newest</a>' in second
    assert "Newest" not in first


def test_a_fan_outs_batch_leads_to_its_run(bus, driver, database, page):
    with bus.active():
        run = Mailing.start()
    driver.perform(driver.take()[0])
    [batch_id] = listed(page())
    for text in (page(), page(f"{PAGE}/{batch_id}")):
        assert f'<a href="/pgbus/workflows/{run.workflow_id}">Mailing' in text
        assert "Mailing#leaflets" in words(text)
    assert "Its run goes on when the last job has ended." in words(page(f"{PAGE}/{batch_id}"))
    assert "step_id" not in page(), "what only the engine reads"
    database.rows("DELETE FROM pgbus.workflows")
    assert f"{run.workflow_id[-8:]}, deleted" in words(page())


def test_large_properties_are_shown_when_they_are_asked_for(page, opened):
    batch_id = opened(properties={"text": "x" * 3000})
    text = page(f"{PAGE}/{batch_id}")
    assert "xxx" not in text
    assert "3 KB" in words(text)
    [href] = re.findall(r'<a class="btn" href="([^"]+)">Show all</a>', text)
    assert "x" * 3000 in page(html.unescape(href))


def test_a_batch_that_does_not_exist_is_not_found(page):
    assert "01890a5d-ac96-774b-bcce-b302099a8057" not in page(f"{PAGE}/nonsense", status=404)
    page(f"{PAGE}/01890a5d-ac96-774b-bcce-b302099a8057", status=404)


@pytest.mark.parametrize(
    "query",
    [
        "show=none",
        "after=7",
        "before=x",
        "after=01890a5d-ac96-774b-bcce-b302099a8057&before=01890a5d-ac96-774b-bcce-b302099a8057",
    ],
)
def test_a_bad_parameter_of_the_list_is_named(page, query):
    name = query.split("&")[-1].split("=")[0]
    assert f"<code>{name}</code> is" in page(f"{PAGE}?{query}", status=400)


@pytest.mark.parametrize(
    "query",
    [
        "outcome=lost",
        "after=-1",
        "before=x",
        "after=2147483648",
        "after=1&before=1",
        "properties=x",
    ],
)
def test_a_bad_parameter_of_one_batch_is_named(page, opened, query):
    batch_id = opened(fold)
    name = query.split("&")[-1].split("=")[0]
    assert f"<code>{name}</code> is" in page(f"{PAGE}/{batch_id}?{query}", status=400)


def test_what_hosts_write_is_text(database, page, opened):
    batch_id = opened(fold, description=HOSTILE, properties={HOSTILE: HOSTILE})
    database.rows("UPDATE pgbus.batch_jobs SET job = %s, queue = %s", HOSTILE, HOSTILE)
    for text in (page(), page(f"{PAGE}/{batch_id}")):
        assert HOSTILE not in text
        assert html.escape(HOSTILE) in text.replace("<wbr>", "")


def test_a_full_list_and_a_large_batch_stay_small(page, opened):
    for _ in range(30):
        opened(fold, description="d" * 200, properties={"p": "q" * 300})
    assert len(page()) < 150_000
    batch_id = opened(*[fold] * 300)
    assert len(page(f"{PAGE}/{batch_id}")) < 150_000
