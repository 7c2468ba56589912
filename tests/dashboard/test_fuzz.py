"""Whatever is asked at whatever address, no page breaks."""

from __future__ import annotations

import string
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sites import hidden_fields

from pgbus import Workflow, step
from pgbus.dashboard.presenters.job_actions import JobVerb
from pgbus.dashboard.presenters.queue_actions import QueueVerb
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.jobs.bulk import Press
from pgbus.engine.states import RunStatus, Verb


class FuzzedWorkflow(Workflow):
    @step(wait_for="go", wait_timeout=timedelta(days=1))
    def waits(self):
        """Waits until the end of the test."""


#: The queues of which a page takes the physical name.
QUEUES = {"pgbus.message": "pgbus_workflows", "pgbus.dead_letter": "pgbus_default_dlq"}
NAMES = (
    *(
        "window",
        "start",
        "status",
        "workflow_class",
        "current_step",
        "error_class",
        "stuck",
        "subject_type",
    ),
    *("subject_id", "workflow_id", "created_from", "created_to", "ended_from", "ended_to"),
    *("ask", "of", "seen", "show", "queue", "job", "typed"),
    *("after", "before", "confirm", "step", "step_name", "reason", "count", "as_of", "seen", "at"),
    *(
        "name",
        "payload",
        "idempotency_key",
        "verb",
        "back",
        "theme",
        "language",
        "number",
        "outcome",
    ),
)
ODD = st.sampled_from(
    (
        *(
            "",
            " ",
            "\0",
            "%00",
            "'",
            '"',
            "<script>",
            "../..",
            "\u202e",
            "🚀" * 40,
            "x" * 1200,
            "-1",
        ),
        *("0", "1", "9" * 19, "9" * 40, "1e9", "null", "{}", "[]", '{"a":', "NaN", '{"a": NaN}'),
        *("2026-11-29T03:00", "0001-01-01T00:00Z", "9999-12-31T23:59:59+00:00", "2026-03-29T02:30"),
        *("0002-01-01T00:00Z", "9998-12-31T23:59:59+23:59", "2026-10-25T02:30"),
        *("01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        *("ready.1.0", "paused.1.", "..", "9.9.9", '{"k":"\\ud800"}', "\ud7ff", "²", "٣"),
        *("pgbus_workflows:1", "pgbus_default_dlq:1", "workflows", "failed", "enqueued"),
        *(*QueueVerb, *JobVerb, *Press),
        *RunStatus,
        *StuckReason,
        *Verb,
    )
)
TEXT = ODD | st.text(st.characters(codec="utf-8"), max_size=40)
FIELDS = st.dictionaries(st.sampled_from(NAMES), TEXT, max_size=6)
#: A part of an address: without what would make it another address.
PART = st.text(string.ascii_letters + string.digits + "-_.~<>'\"%é", min_size=1, max_size=40)

fuzzed = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@pytest.fixture(params=["America/New_York", "Pacific/Kiritimati"])
def site(make_site, request):
    """The dashboard in zones on both sides of the calendar's edges."""
    return make_site(time_zone=request.param, subject_url=lambda kind, key: f"/{kind}/{key}")


@pytest.fixture
def run(bus, driver):
    run = bus.start(FuzzedWorkflow)
    driver.drain()
    return run.reload()


def rules(site):
    return [rule for rule in site.url_map.iter_rules() if rule.endpoint.startswith("pgbus.")]


def addresses(site, run, part):
    """Returns each rule's address with the real run's id, and with a part that means nothing."""
    adapter = site.url_map.bind("localhost")
    for rule in rules(site):
        real = dict.fromkeys(rule.arguments, "1")
        real |= dict.fromkeys(rule.arguments & {"workflow_id"}, run.workflow_id)
        real |= dict.fromkeys(rule.arguments & {"queue"}, QUEUES.get(rule.endpoint, "workflows"))
        yield adapter.build(rule.endpoint, real)
        yield adapter.build(rule.endpoint, dict.fromkeys(rule.arguments, part))


@fuzzed
@given(fields=FIELDS, part=PART)
def test_no_address_and_no_parameter_breaks_a_page(site, run, fields, part):
    client = site.test_client()
    for address in addresses(site, run, part):
        answer = client.get(address, query_string=fields)
        assert answer.status_code in (200, 303, 400, 404, 405), (address, fields)
        assert answer.headers.get("Location", "/pgbus/").startswith("/pgbus/"), (address, fields)


@fuzzed
@given(fields=FIELDS, part=PART)
def test_no_form_breaks_a_page(site, run, fields, part):
    client = site.test_client()
    token = hidden_fields(client.get("/pgbus/workflows").text)["csrf_token"]
    verbs = [f"/pgbus/workflows/{run.workflow_id}/actions/{verb}" for verb in Verb]
    for address in (*addresses(site, run, part), *verbs):
        answer = client.post(address, data={**fields, "csrf_token": token})
        assert answer.status_code in (303, 400, 403, 404, 405, 422), (address, fields)
        assert answer.headers.get("Location", "/pgbus").startswith("/pgbus"), (address, fields)
