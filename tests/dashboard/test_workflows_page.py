"""The list of runs: its tabs, filters and pages."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from itertools import chain

import pytest
from support.sites import site_of, visible_text

from pgbus import Pgbus, Workflow, step


class ListedWorkflow(Workflow, queue="listed"):
    @step
    def first(self):
        if self.arguments.get("fails"):
            raise TimeoutError("no answer")

    @step(wait=timedelta(days=2))
    def second(self):
        """Never reached here."""


class OtherListedWorkflow(Workflow, queue="listed"):
    @step
    def only(self):
        """Ends at once."""


LISTED = f"{__name__}.ListedWorkflow"


def rows(answer):
    """Returns the ids of the runs that a page lists, in its order."""
    assert answer.status_code == 200
    return re.findall(r'data-key="([0-9a-f-]{36})"', answer.text)


def link(answer, rel):
    found = re.search(rf'href="([^"]*)" rel="{rel}"', answer.text)
    return unescape(found[1]) if found else None


@pytest.fixture
def runs(bus, driver):
    """One finished, one paused on an error, one scheduled in two days, one ready; oldest first."""
    finished = bus.start(OtherListedWorkflow)
    paused = bus.start(ListedWorkflow, fails=True)
    scheduled = bus.start(ListedWorkflow)
    driver.drain()
    ready = bus.start(ListedWorkflow)
    return {
        "finished": finished.workflow_id,
        "paused": paused.workflow_id,
        "scheduled": scheduled.workflow_id,
        "ready": ready.workflow_id,
    }


def test_ongoing_runs_are_listed_newest_first_with_what_they_do(client, runs):
    answer = client.get("/pgbus/workflows")
    assert rows(answer) == [runs["ready"], runs["scheduled"], runs["paused"]]
    assert "Scheduled: second runs in" in visible_text(answer)
    assert "Paused on first: TimeoutError. Resume tries it again, or cancel." in visible_text(
        answer
    )


@pytest.mark.parametrize(
    ("query", "listed"),
    [
        ("status=all", ["ready", "scheduled", "paused", "finished"]),
        ("status=finished", ["finished"]),
        ("status=paused", ["paused"]),
        ("status=ready", ["ready", "scheduled"]),
        ("current_step=second", ["scheduled"]),
        ("error_class=TimeoutError", ["paused"]),
        ("error_class=none&status=all", ["ready", "scheduled", "finished"]),
        ("stuck=paused_error", ["paused"]),
        ("stuck=stalled", []),
        (f"workflow_class={LISTED}", ["ready", "scheduled", "paused"]),
        (f"workflow_class={LISTED}&current_step=first", ["ready", "paused"]),
        ("created_from=2000-01-01T00:00", ["ready", "scheduled", "paused"]),
        ("created_to=2000-01-01T00:00", []),
        ("ended_from=2000-01-01T00:00&status=all", ["finished"]),
        ("ended_to=2000-01-01T00:00&status=all", []),
        ("subject_type=Order", []),
        ("workflow_class=&current_step=++&stuck=", ["ready", "scheduled", "paused"]),
    ],
)
def test_filters_combine_and_are_the_address(client, runs, query, listed):
    assert rows(client.get(f"/pgbus/workflows?{query}")) == [runs[name] for name in listed]


def test_a_run_is_found_by_its_id_in_any_spelling(client, runs):
    spelt = runs["finished"].upper().replace("-", "")
    answer = client.get(f"/pgbus/workflows?status=all&workflow_id={spelt}")
    assert rows(answer) == [runs["finished"]]


def test_tabs_count_what_the_other_filters_leave(client, runs):
    text = visible_text(client.get(f"/pgbus/workflows?workflow_class={LISTED}"))
    assert "Ongoing 3 Ready 2 Performing 0 Waiting 0 Paused 1 Finished 0 Cancelled 0 All 3" in text


@pytest.mark.parametrize(
    ("query", "name", "wanted"),
    [
        ("status=broken", "status", "ready, performing"),
        ("stuck=very", "stuck", "stalled, paused_error"),
        ("workflow_id=7", "workflow_id", "a whole id"),
        ("created_from=yesterday", "created_from", "a moment such as"),
        ("ended_to=9999-12-31T23:59:59-23:00", "ended_to", "a moment such as"),
        ("created_from=0001-01-01T00:00Z", "created_from", "a moment such as"),
        ("created_to=9999-12-31T23:59Z", "created_to", "a moment such as"),
        ("workflow_class=%00", "workflow_class", "without NUL"),
        (f"current_step={'x' * 1001}", "current_step", "at most 1,000"),
        ("after=xyz", "after", "a place of a page"),
        ("before=AAAA", "before", "a place of a page"),
        ("after=a&before=b", "before", "nothing, where the other cursor is given"),
    ],
)
def test_a_parameter_that_cannot_be_read_is_named_with_the_mend(client, query, name, wanted):
    answer = client.get(f"/pgbus/workflows?{query}")
    assert answer.status_code == 400
    assert f"{name} is" in visible_text(answer)
    assert wanted in visible_text(answer)


def test_paging_goes_both_ways_through_runs_of_one_microsecond(bus, client, database):
    started = [run.workflow_id for run in ListedWorkflow.start_many([(None, {})] * 60)]
    database.rows("UPDATE pgbus.workflows SET created_at = '2026-11-29 12:00:00.000001+00'")
    newest_first = sorted(started, reverse=True)

    answer = client.get("/pgbus/workflows?current_step=first")
    seen = [rows(answer)]
    while older := link(answer, "next"):
        answer = client.get(older)
        assert "current_step=first" in older
        seen.append(rows(answer))
    assert [len(page) for page in seen] == [25, 25, 10]
    assert [*chain.from_iterable(seen)] == newest_first

    back = [seen[-1]]
    while newer := link(answer, "prev"):
        answer = client.get(newer)
        back.append(rows(answer))
    assert back == seen[::-1]


def test_a_place_whose_run_is_gone_still_leads_on(bus, client, database):
    ListedWorkflow.start_many([(None, {})] * 30)
    answer = client.get("/pgbus/workflows")
    older = link(answer, "next")
    expected = rows(client.get(older))
    database.rows(f"DELETE FROM pgbus.workflows WHERE workflow_id = '{rows(answer)[-1]}'")
    assert rows(client.get(older)) == expected


def test_an_empty_database_says_how_a_run_is_started(client):
    text = visible_text(client.get("/pgbus/workflows"))
    assert "No runs yet" in text
    assert ".start(...)" in text


def test_a_list_that_is_empty_by_its_filters_offers_the_others(client, runs):
    answer = client.get(
        f"/pgbus/workflows?status=paused&workflow_class={__name__}.OtherListedWorkflow"
    )
    assert "No run matches" in visible_text(answer)
    assert "Search all statuses" in visible_text(answer)
    assert "status=all" in answer.text


def test_a_filter_is_taken_off_by_its_chip(client, runs):
    answer = client.get("/pgbus/workflows?current_step=second&error_class=none")
    chips = re.findall(r'class="chip">.*?href="([^"]*)"', answer.text, re.DOTALL)
    assert [unescape(href) for href in chips] == [
        "/pgbus/workflows?error_class=none",
        "/pgbus/workflows?current_step=second",
    ]


def test_moments_of_the_filter_are_in_the_zone_of_the_page(make_site, runs, database):
    database.rows("UPDATE pgbus.workflows SET created_at = '2026-11-29 11:30+00'")
    client = make_site(time_zone="Europe/Berlin").test_client()
    assert rows(client.get("/pgbus/workflows?created_from=2026-11-29T12:30"))
    assert not rows(client.get("/pgbus/workflows?created_from=2026-11-29T12:31"))
    assert rows(client.get("/pgbus/workflows?created_from=2026-11-29T11:30Z"))
    text = client.get("/pgbus/workflows?created_from=2026-11-29T11:30Z").text
    assert 'value="2026-11-29T12:30"' in text


def test_a_run_of_a_class_that_is_not_loaded_here_says_so(client, runs, database):
    database.rows("UPDATE pgbus.workflows SET workflow_class = 'gone.away.OrderWorkflow'")
    assert "class not loaded here" in visible_text(client.get("/pgbus/workflows"))


def test_subjects_are_linked_where_the_host_has_a_page_for_them(make_site, runs, database):
    database.rows(
        "UPDATE pgbus.workflows SET subject_type = 'Order', subject_id = workflow_id::text"
    )
    answer = (
        make_site(subject_url=lambda kind, key: f"/{kind}/{key}")
        .test_client()
        .get("/pgbus/workflows")
    )
    assert f'href="/Order/{runs["ready"]}"' in answer.text


def test_counts_beyond_ten_thousand_say_so(client, runs, database):
    database.rows(
        "INSERT INTO pgbus.workflows (workflow_id, workflow_class, definition_digest, status, arguments,"
        " current_step, step_id, created_at, updated_at)"
        " SELECT gen_random_uuid(), 'many.Many', '', 'ready', '{}', 'x', (SELECT max(step_id)"
        " FROM pgbus.workflow_steps), now(), now() FROM generate_series(1, 10001)"
    )
    assert "Ready 10,000+" in visible_text(client.get("/pgbus/workflows"))


def test_postgresql_away_is_said_and_comes_back_by_itself(crashable_server):
    url = crashable_server.url("postgres")
    bus = Pgbus(database_url=url)
    bus.migrate()
    client = site_of(bus).test_client()
    assert client.get("/pgbus/workflows").status_code == 200
    crashable_server.stop()
    answer = client.get("/pgbus/workflows")
    assert (answer.status_code, answer.headers["Refresh"]) == (503, "5")
    assert "PostgreSQL does not answer" in visible_text(answer)
    crashable_server.start()
    assert client.get("/pgbus/workflows").status_code == 200
    bus.close()


def test_a_database_that_is_not_migrated_is_told_with_the_mend(empty_database):
    bus = Pgbus(database_url=empty_database.url)
    answer = site_of(bus).test_client().get("/pgbus/workflows")
    bus.close()
    assert answer.status_code == 503
    assert "pgbus migrate" in visible_text(answer)
