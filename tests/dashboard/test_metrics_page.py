"""`/metrics`: the gauges that the database knows, for whoever is let in or has the token."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.sites import site_of

from pgbus import Pgbus, Workflow, step
from pgbus.engine.observe.metrics import METRICS, Kind

TOKEN = "the scraper's own"


class Scraped(Workflow):
    @step
    def act(self):
        raise LookupError


CLASS = f"{__name__}.Scraped"


def families(answer):
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def told(answer):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families(answer).values()
        for sample in family.samples
    }


def test_the_gauges_are_served_with_zeros(client, bus, driver):
    Scraped.start()
    driver.drain()
    Scraped.start()
    answer = client.get("/pgbus/metrics")
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    found = families(answer)
    assert {name: family.documentation for name, family in found.items()} == {
        metric.name: metric.help for metric in METRICS if metric.kind is Kind.GAUGE
    }
    assert {family.type for family in found.values()} == {"gauge"}
    values = told(answer)
    assert values["pgbus_workflows", CLASS, "paused"] == 1
    assert values["pgbus_workflows", CLASS, "ready"] == 1
    assert values["pgbus_workflows", CLASS, "performing"] == 0
    assert values["pgbus_workflows_stuck", CLASS, "paused_error"] == 1
    assert values["pgbus_workflows_stuck", CLASS, "overdue"] == 0
    assert values["pgbus_queue_depth", "workflows"] == 1
    assert 0 <= values["pgbus_queue_oldest_age_seconds", "workflows"] < 60
    assert values["pgbus_dead_letters", "workflows"] == 0
    assert values["pgbus_processes", "worker"] == 0


def test_a_hostile_class_name_breaks_no_line(client, bus, database):
    run = Scraped.start()
    name = 'a\\b"c\n# {d="e"} 1'
    for table in ("workflows", "workflow_definitions"):
        database.rows(f"UPDATE pgbus.{table} SET workflow_class = %s", name)
    assert told(client.get("/pgbus/metrics"))["pgbus_workflows", name, "ready"] == 1
    run.cancel()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 403),
        ("Bearer", 403),
        ("Basic ü", 403),
        (f"Bearer {TOKEN}ü", 403),
        (f"Basic {TOKEN}", 403),
        ("", 403),
    ],
)
def test_a_scraper_gets_in_by_the_token_alone(make_site, header, status):
    client = make_site(auth=None, metrics_token=TOKEN).test_client()
    headers = {"Authorization": header}
    assert client.get("/pgbus/metrics", headers=headers).status_code == status


def test_the_token_opens_no_other_page_and_lets_nobody_write(make_site):
    client = make_site(auth=None, metrics_token=TOKEN).test_client()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/pgbus/workflows", headers=headers).status_code == 403
    assert client.post("/pgbus/metrics", headers=headers).status_code in (400, 405)


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_an_empty_one_is_none(make_site, token):
    client = make_site(auth=None, metrics_token=token).test_client()
    for header in ("Bearer ", "Bearer None", "Bearer"):
        answer = client.get("/pgbus/metrics", headers={"Authorization": header})
        assert answer.status_code == 403


def test_an_outage_is_no_zero():
    bus = Pgbus(database_url="postgresql://127.0.0.1:1/nowhere")
    answer = site_of(bus).test_client().get("/pgbus/metrics")
    bus.close()
    assert answer.status_code == 503
    assert "pgbus_workflows" not in answer.text
