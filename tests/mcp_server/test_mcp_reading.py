"""What the tools that read tell, what they keep to themselves, and what they refuse to be asked."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError
from support.assistants import Assistant, listening

from pgbus import Batch, Pgbus, Workflow, job, step
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.insights.windows import Window
from pgbus.engine.jobs.execute import execute
from pgbus.mcp_server import workflows
from pgbus.mcp_server.actions import WRITE_TOOLS
from pgbus.mcp_server.http import create_app
from pgbus.mcp_server.server import READ_TOOLS
from pgbus.mcp_server.workflows import ListWorkflows

SECRET = "4929-1234-card"
NOBODY = "01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58"
NAME = "test_mcp_reading.Inquiry"
READS = [
    "pgbus_workflows",
    "pgbus_workflow",
    "pgbus_workflows_attention",
    "pgbus_workflow_definitions",
    "pgbus_workflow_stats",
    "pgbus_queues",
    "pgbus_processes",
    "pgbus_batches",
    "pgbus_dead_letters",
    "pgbus_health",
]
SHOWING = ["pgbus_workflow", "pgbus_workflows_attention", "pgbus_batches", "pgbus_dead_letters"]


@job(queue="inquiries", max_retries=0)
def ask_around(card):
    raise OSError(f"no answer for {card}")


class Inquiry(Workflow):
    @step(wait_for="answered")
    def hold(self):
        return dict(self.require_signal().payload)

    @step
    def judge(self):
        raise RuntimeError(f"refused {SECRET}") from KeyError(SECRET)


@pytest.fixture
def run(bus, driver):
    """A run that failed after it got a signal; a batch whose only job became a dead letter."""
    run = bus.start(Inquiry, card=SECRET)
    driver.drain()
    run.signal("answered", {"card": SECRET}, reason="the vendor called")
    driver.drain()
    with Batch.open(properties={"card": SECRET}) as batch:
        batch.add(ask_around, SECRET)
    (delivery,) = driver.take()
    execute(bus.services, delivery)
    return run.reload()


@pytest.fixture
def open_url(bus):
    """Of a server that shows payloads to calls that ask for them."""
    app = create_app(bus, allow_unauthenticated=True, allow_payloads=True)
    with listening(app) as url:
        yield url


def asked(run, **more):
    """Each tool that reads, with arguments with which it has something to tell."""
    of_run, of_class = {"workflow_id": run.workflow_id}, {"workflow_class": NAME}
    found = {name: {} for name in READS} | {
        "pgbus_workflows": {"status": "all"},
        "pgbus_workflow": of_run,
        "pgbus_workflow_stats": of_class,
    }
    return {
        name: arguments | (more if name in SHOWING else {}) for name, arguments in found.items()
    }


def everything(assistant, run, **more):
    """All that the reading tools tell of it, as one text."""
    calls = asked(run, **more)
    answers = assistant.answers(calls.items())
    return {name: json.dumps(answer) for name, answer in zip(calls, answers, strict=True)}


def test_each_tool_says_that_it_reads_and_takes_nothing_that_it_does_not_know(assistant):
    tools = assistant.tools()
    assert [*tools] == READS
    for tool in tools.values():
        assert tool.annotations.read_only_hint
        assert tool.input_schema["additionalProperties"] is False
        assert tool.description


def test_runs_are_listed_by_filter_and_page_by_page(bus, driver, assistant):
    runs = [bus.start(Inquiry, number=number) for number in range(5)]
    driver.drain()
    runs[0].cancel()
    newest_first = [run.workflow_id for run in reversed(runs[1:])]
    page = assistant.call("pgbus_workflows", limit=3, current_step="hold", workflow_class=NAME)
    assert [one["workflow_id"] for one in page["workflows"]] == newest_first[:3]
    assert (page["total"], page["has_more"]) == (4, True)
    assert page["workflows"][0]["waiting_for"] == "answered"
    rest = assistant.call("pgbus_workflows", limit=3, cursor=page["next_cursor"])
    assert [one["workflow_id"] for one in rest["workflows"]] == newest_first[3:]
    assert (rest["total"], rest["has_more"], rest["next_cursor"]) == (4, False, None)


def test_each_filter_of_the_list_can_be_asked_for():
    beside = {"limit", "cursor"}
    assert {*ListWorkflows.model_fields} - beside == {*RunFilter.__dataclass_fields__}
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    asked = ListWorkflows.model_validate_json(
        json.dumps({"ended_to": "2030-01-01T01:00:00+01:00", "held": "finish", "stuck": "stalled"})
    )
    assert (asked.ended_to, asked.held, asked.stuck) == (moment, "finish", "stalled")


def test_a_count_stops_at_ten_thousand_and_says_so(bus, assistant, monkeypatch):
    assert workflows.CAP == 10_000
    monkeypatch.setattr(workflows, "CAP", 2)
    for number in range(2):
        bus.start(Inquiry, number=number)
    page = assistant.call("pgbus_workflows")
    assert (page["total"], page["total_is_more"]) == (2, False)
    bus.start(Inquiry)
    page = assistant.call("pgbus_workflows")
    assert (page["total"], page["total_is_more"]) == (2, True)


def test_a_run_is_told_with_its_history_and_what_can_be_done(run, assistant):
    told = assistant.call("pgbus_workflow", workflow_id=run.workflow_id, limit=1)
    assert (told["run"]["status"], told["run"]["current_step"]) == ("paused", "judge")
    (attempt,) = told["attempts"]
    assert (attempt["step_name"], attempt["error_class"]) == ("judge", "RuntimeError")
    assert attempt["ran_seconds"] >= 0
    assert [one["reason"] for one in told["signals"]] == ["the vendor called"]
    assert told["older_attempts"]
    assert told["older_events"]
    assert [one["event"] for one in told["events"]] == ["paused"]
    assert told["available_actions"] == ["resume", "resume_at", "cancel", "skip", "signal"]
    assert told["resume"] == {"kind": "retry", "step_name": "judge", "wait_seconds": 0.0}


def test_stuck_runs_are_grouped_and_those_of_a_class_alone(run, assistant):
    attention = assistant.call("pgbus_workflows_attention", workflow_class=NAME)
    (group,) = attention["groups"]
    assert group["key"]["step_name"] == "judge"
    assert group["key"]["available_actions"] == ["resume", "cancel"]
    assert (attention["total"], attention["exhaustive"]) == (1, True)


def test_classes_are_told_of_with_the_figures_of_a_window(run, assistant):
    told = assistant.call("pgbus_workflow_definitions", window="1h")
    (inquiry,) = [one for one in told["classes"] if one["workflow_class"] == NAME]
    assert (inquiry["ongoing"], inquiry["paused"], inquiry["attention"]) == (1, 1, 1)
    stats = assistant.call("pgbus_workflow_stats", workflow_class=NAME, window="7d")
    assert stats["span"]["window"] == Window.WEEK
    judged = next(one for one in stats["steps"] if one["step_name"] == "judge")
    assert (judged["figures"]["failed"], judged["figures"]["failure_rate"]) == (1, 1.0)


def test_what_serves_the_runs_is_told(run, bus, assistant):
    queues = assistant.call("pgbus_queues")
    assert {one["logical"] for one in queues["queues"]} == {"workflows", "inquiries"}
    assert [one["messages"] for one in queues["dead_letters"]] == [1]
    assert assistant.call("pgbus_processes")["processes"] == []
    (batch,) = assistant.call("pgbus_batches", status="failed")["batches"]
    assert (batch["dead_lettered_jobs"], batch["failed_jobs"], batch["open_jobs"]) == (1, 1, 0)
    (letter,) = assistant.call("pgbus_dead_letters", queue="inquiries")["dead_letters"]
    assert (letter["error_class"], letter["message"]["kind"]) == ("OSError", "member")
    health = assistant.call("pgbus_health")
    assert not health["healthy"]
    assert health["hints"][0] == {
        "sentence": (
            "No worker is running. Runs and jobs wait for one: pgbus start --app MODULE:BUS."
        ),
        "facts": {"problem": "no_worker"},
    }


def test_data_of_the_host_stays_secret_unless_the_server_and_the_call_show_it(
    run, assistant, open_url
):
    either = [
        everything(assistant, run, include_payloads=True),
        everything(Assistant(open_url), run),
    ]
    for told in either:
        assert [name for name, text in told.items() if SECRET in text] == []
        assert [name for name, text in told.items() if "[redacted]" in text] == SHOWING
    both = everything(Assistant(open_url), run, include_payloads=True)
    assert [name for name, text in both.items() if SECRET in text] == SHOWING
    assert not any("[redacted]" in text for text in both.values())


def test_what_is_shown_is_what_was_stored(run, open_url):
    told = Assistant(open_url).call(
        "pgbus_workflow", workflow_id=run.workflow_id, include_payloads=True
    )
    judge, hold = told["attempts"]
    assert told["arguments"] == hold["output"] == told["signals"][0]["payload"] == {"card": SECRET}
    assert judge["error_message"] == f"refused {SECRET}"
    assert [cause["class"] for cause in judge["error"]["causes"]] == ["KeyError"]


def test_of_a_large_document_only_the_size_is_told(bus, open_url):
    run = bus.start(Inquiry, text="x" * 5000)
    told = Assistant(open_url).call(
        "pgbus_workflow", workflow_id=run.workflow_id, include_payloads=True
    )
    assert told["arguments"] == "[left out: 5012 bytes]"


def test_a_dead_letter_that_is_nested_too_deeply_hides_no_other(bus, database, open_url):
    bus.ensure_queues(["pgbus_inquiries_dlq"])
    for depth in (150, 151, 900):
        body = "[" * depth + "]" * depth
        database.rows("SELECT pgmq.send('pgbus_inquiries_dlq', %s::jsonb)", body)
    told = Assistant(open_url).call("pgbus_dead_letters", include_payloads=True)
    *deep, shown = (one["message"]["body"] for one in told["dead_letters"])
    assert deep == ["[left out: nested deeper than 150 levels]"] * 2
    assert json.dumps(shown) == "[" * 150 + "]" * 150


def test_a_number_that_a_float_would_round_is_told_as_its_text(bus, database, open_url):
    run = bus.start(Inquiry)
    stored = '{"exact": [0.1, 1.50, 12345678901234567890], "money": [12345678901234567890.12]}'
    database.rows("UPDATE pgbus.workflows SET arguments = %s::jsonb", stored)
    told = Assistant(open_url).call(
        "pgbus_workflow", workflow_id=run.workflow_id, include_payloads=True
    )
    assert told["arguments"] == {
        "exact": [0.1, 1.5, 12345678901234567890],
        "money": ["12345678901234567890.12"],
    }


REFUSALS = [
    ("pgbus_workflows", {"limit": 101}, "limit: Input should be less than or equal to 100"),
    ("pgbus_workflows", {"limit": "5"}, "limit: Input should be a valid integer"),
    ("pgbus_workflows", {"state": "x"}, "state: Extra inputs are not permitted"),
    ("pgbus_workflows", {"workflow_id": "'; DROP"}, "workflow_id: Input should be a valid UUID"),
    ("pgbus_workflows", {"subject_id": "\0"}, "subject_id: String should match"),
    ("pgbus_workflows", {"subject_id": "x" * 301}, "at most 300 characters"),
    ("pgbus_workflows", {"created_from": "2030-01-01T00:00:00"}, "should have timezone info"),
    ("pgbus_workflows", {"created_to": "9999-12-31T23:59:59Z"}, "cannot be read in every time"),
    ("pgbus_workflows", {"cursor": "nowhere"}, "'nowhere' is no place in a list"),
    ("pgbus_workflows", {"workflow_class": f"{NAME}y"}, f"did you mean {NAME}?"),
    ("pgbus_workflows_attention", {"workflow_class": "<b>"}, "No class here is called '<b>'"),
    ("pgbus_workflow", {}, "workflow_id: Field required"),
    ("pgbus_workflow", {"workflow_id": NOBODY}, f"There is no run {NOBODY}."),
    ("pgbus_workflow", {"workflow_id": NOBODY, "include_payloads": "yes"}, "a valid boolean"),
    ("pgbus_workflow_stats", {"workflow_class": "nothing"}, "No class and no run here"),
    ("pgbus_workflow_definitions", {"window": "2h"}, "'1h', '24h', '7d' or '30d'"),
    ("pgbus_dead_letters", {"queue": "nowhere"}, "There is no queue 'nowhere' here"),
    ("pgbus_batches", {"cursor": "nowhere"}, "'nowhere' is no batch's id"),
]


def test_what_cannot_be_asked_is_refused_with_what_is_wrong(bus, assistant):
    bus.ensure_queues(["pgbus_inquiries"])
    texts = assistant.refusals([(tool, arguments) for tool, arguments, _ in REFUSALS])
    for (tool, arguments, told), text in zip(REFUSALS, texts, strict=True):
        assert told in text, (tool, arguments)


def test_a_tool_that_does_not_exist_is_an_error_of_the_protocol(assistant):
    with pytest.raises(MCPError, match=r"There is no tool 'pgbus_sql'\."):
        assistant.call("pgbus_sql")


def test_an_outage_is_told_by_every_tool_and_is_no_empty_list(run, caplog):
    away = Pgbus(database_url="postgresql://127.0.0.1:1/nothing")
    try:
        with listening(create_app(away, allow_unauthenticated=True)) as url:
            for told in Assistant(url).refusals(asked(run).items()):
                assert told.startswith(
                    "PostgreSQL cannot be reached just now, so nothing is known."
                )
                assert "127.0.0.1" not in told
    finally:
        away.close()
    assert "127.0.0.1" in caplog.text


def test_a_database_that_is_not_migrated_is_told(empty_database):
    bus = Pgbus(database_url=empty_database.url)
    try:
        with listening(create_app(bus, allow_unauthenticated=True)) as url:
            assert "pgbus migrate" in Assistant(url).refused("pgbus_queues")
            (hint,) = Assistant(url).call("pgbus_health")["hints"]
            assert "pgbus migrate" in hint["sentence"]
    finally:
        bus.close()


def test_of_an_unexpected_failure_only_the_log_has_the_details(assistant, monkeypatch, caplog):
    def broken(*_arguments):
        raise ArithmeticError(SECRET)

    monkeypatch.setattr("pgbus.engine.insights.queues.depths", broken)
    with caplog.at_level(logging.ERROR):
        told = assistant.refused("pgbus_queues")
    assert told == "The call failed in an unexpected way; the server's log says how."
    assert SECRET in caplog.text


def test_the_guide_lists_the_tools_that_there_are():
    page = Path(__file__).parents[2] / "docs" / "guide" / "mcp.md"
    listed = re.findall(r"^\| `(pgbus_\w+)` \|", page.read_text(), re.MULTILINE)
    assert listed == [tool.name for tool in (*READ_TOOLS, *WRITE_TOOLS)]
    assert listed[: len(READS)] == READS
