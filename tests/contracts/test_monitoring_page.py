"""What the guide says of metrics, alerts, logs and trackers is so."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess

import pytest
import sentry_sdk
import yaml
from contracts.documents import GUIDE, blocks, table_after
from sentry_sdk.transport import Transport

from pgbus.engine.definition.scope import StepContext, step_context
from pgbus.engine.observe import logs
from pgbus.engine.observe.metrics import METRICS, Kind
from pgbus.engine.observe.reports import Reporters

PAGE = GUIDE / "monitoring.md"
ALERTS = GUIDE / "monitoring" / "alerts.yml"
BOARD = GUIDE / "monitoring" / "grafana.json"


def test_the_table_of_metrics_is_the_one_that_is_recorded():
    table = table_after(PAGE, "### Names and labels")
    told = [
        (name.strip("`"), kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in table
    ]
    assert told == [(metric.name, str(metric.kind), metric.labels) for metric in METRICS]


def rules():
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def panels():
    return json.loads(BOARD.read_text())["panels"]


EXPRESSIONS = [
    *(rule["expr"] for rule in rules()),
    *(target["expr"] for panel in panels() for target in panel["targets"]),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_metrics_and_labels_that_there_are(expression):
    known = {
        metric.name: set(metric.labels) for metric in METRICS if metric.kind is not Kind.HISTOGRAM
    }
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            known[f"{metric.name}_bucket"] = {*metric.labels, "le"}
    asked = re.findall(r"(pgbus_\w+)(?:\{([^}]*)\})?", expression)
    assert asked
    for name, selected in asked:
        assert set(re.findall(r"(\w+)=", selected)) <= known[name]
    grouped = {
        label
        for labels in re.findall(r"by \(([^)]*)\)", expression)
        for label in labels.split(", ")
    }
    assert all(grouped <= known[name] for name, _ in asked)
    for opened, closed in ("()", "{}", "[]"):
        assert expression.count(opened) == expression.count(closed)


def test_an_alerts_text_shows_labels_that_it_has():
    for rule in rules():
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert shown <= set(re.findall(r"\w+", rule["expr"])), rule["alert"]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_takes_the_alert_rules():
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True)


def test_the_board_shows_what_the_page_says():
    assert [panel["id"] for panel in panels()] == list(range(1, len(panels()) + 1))
    shown = set(re.findall(r"pgbus_\w+", BOARD.read_text()))
    for name in ("steps_total", "step_duration_seconds_bucket", "wait_overdue_total"):
        assert f"pgbus_workflow_{name}" in shown


def test_the_shown_scrape_configuration_is_yaml():
    [block] = [block for block in blocks(PAGE) if block.language == "yaml"]
    jobs = yaml.safe_load(block.code)["scrape_configs"]
    assert [job.get("metrics_path", "/metrics") for job in jobs] == ["/metrics", "/pgbus/metrics"]


def test_the_shown_line_of_the_log_has_the_fields_that_are_written():
    [block] = [block for block in blocks(PAGE) if block.language == "json"]
    record = logging.makeLogRecord({"name": "shop.gateway", "msg": "charged", "levelname": "INFO"})
    token = step_context.set(StepContext("01890a5d", "shop.workflows.OrderWorkflow", "capture", 1))
    assert logs.LogContext().filter(record)
    step_context.reset(token)
    assert list(json.loads(block.code)) == list(json.loads(logs._Json().format(record)))


class Delivered(Transport):
    """What would have gone to Sentry."""

    def __init__(self):
        super().__init__()
        self.events = []

    def capture_envelope(self, envelope):
        self.events.append(envelope.get_event())


def test_the_shown_reporter_tells_sentry_of_the_error_and_its_context():
    shown = {}
    code = "\n".join(block.code for block in blocks(PAGE) if block.language == "python")
    exec(code, shown)
    transport = Delivered()
    context = {"action": "step", "step": "capture", "attempt": 2}
    with sentry_sdk.new_scope() as scope:
        scope.set_client(sentry_sdk.Client("https://key@sentry.invalid/1", transport=transport))
        Reporters([shown["report_to_sentry"]]).report(LookupError("no carrier"), context)
        sentry_sdk.flush()
    [event] = transport.events
    [raised] = event["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("LookupError", "no carrier")
    assert event["contexts"]["pgbus"] == context
