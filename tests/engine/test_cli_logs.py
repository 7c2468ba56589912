"""What a process writes to its log."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
from contextlib import contextmanager
from datetime import datetime

import pytest

from pgbus import LogContext, StepContext, Workflow, job, step
from pgbus.engine.definition.delivery import JobDelivery, running_delivery
from pgbus.engine.definition.scope import step_context
from pgbus.engine.jobs.execute import execute
from pgbus.engine.observe import logs


@pytest.fixture
def configure(monkeypatch):
    """Configures logging as in a process that has not (pytest's own handlers are put aside)."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", root.level)

    def configure(log_format, *, existing=()):
        monkeypatch.setattr(root, "handlers", [*existing])
        logs.configure(log_format)
        return root

    yield configure
    monkeypatch.undo()
    root.manager._clear_cache()


@contextmanager
def in_a_step():
    token = step_context.set(StepContext("0193-id", "shop.Order", "charge", 2))
    yield
    step_context.reset(token)


def test_a_json_record_is_one_line_with_its_facts(configure, capsys):
    configure("json")
    logging.getLogger("shop").info("two\nlines %s", "here")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert datetime.fromisoformat(entry.pop("ts")).utcoffset() is not None
    assert entry == {"level": "INFO", "logger": "shop", "message": "two\nlines here"}


def test_a_json_record_made_in_a_step_names_the_attempt(configure, capsys):
    configure("json")
    with in_a_step():
        logging.getLogger("shop").warning("slow")
    entry = json.loads(capsys.readouterr().err)
    assert entry["workflow_id"] == "0193-id"
    assert entry["workflow_class"] == "shop.Order"
    assert (entry["step"], entry["attempt"]) == ("charge", 2)


def test_a_json_record_of_an_error_has_its_traceback(configure, capsys):
    configure("json")
    try:
        {}["carrier"]
    except KeyError:
        logging.getLogger("shop").exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "KeyError: 'carrier'" in json.loads(line)["exception"]


def test_a_text_record_names_the_attempt_only_in_a_step(configure, capsys):
    configure("text")
    logging.getLogger("shop").info("outside")
    with in_a_step():
        logging.getLogger("shop").info("inside")
    outside, inside = capsys.readouterr().err.splitlines()
    assert outside.endswith(f" {os.getpid()} INFO shop: outside")
    assert inside.endswith("INFO shop: inside [shop.Order 0193-id charge, attempt 2]")


def test_logging_that_the_application_configured_is_left_alone(configure):
    own = logging.NullHandler()
    level = logging.getLogger().level
    root = configure("json", existing=[own])
    assert root.handlers == [own]
    assert root.level == level


class Logging(Workflow):
    @step
    def speaks(self):
        logging.getLogger("shop").warning("in the body")
        raise ValueError


@job(max_retries=0)
def speaking():
    logging.getLogger("shop").warning("in the job")
    raise ValueError


@pytest.fixture
def records():
    """What a host's own handler with our filter gets, as (message, the fields of its context)."""
    handler = logging.handlers.BufferingHandler(1000)
    handler.addFilter(LogContext())
    root = logging.getLogger()
    root.addHandler(handler)
    yield lambda: [
        (record.getMessage(), *map(record.__dict__.get, FIELDS)) for record in handler.buffer
    ]
    root.removeHandler(handler)


FIELDS = [
    "workflow_id",
    "workflow_class",
    "step",
    "attempt",
    "job",
    "queue",
    "message_id",
    "read_count",
]


def test_the_hosts_records_in_a_body_and_that_of_its_error_carry_the_attempt(bus, driver, records):
    run = Logging.start()
    driver.drain()
    logging.getLogger("shop").warning("outside")
    nothing = [None] * 4
    of_the_step = [run.workflow_id, run.workflow_class, "speaks", 1, *nothing]
    (said, *in_body), (raised, *of_error), (_, *outside) = records()
    assert (said, in_body) == ("in the body", of_the_step)
    assert (raised, of_error) == (
        f"{run.workflow_class} speaks, attempt 1 of run {run.workflow_id} raised.",
        of_the_step,
    )
    assert outside == [*nothing, *nothing]


def test_the_hosts_records_in_a_job_and_that_of_its_error_carry_the_delivery(bus, driver, records):
    message_id = speaking.enqueue()
    [delivery] = driver.take()
    execute(bus.services, delivery)
    of_the_job = [None] * 4 + [speaking.name, "pgbus_default", message_id, 1]
    assert [context for _, *context in records()] == [of_the_job, of_the_job]


def test_a_records_own_field_wins_over_the_contexts(records):
    with in_a_step():
        logging.getLogger("shop").warning("about another", extra={"step": "refund"})
    [(_, _, _, told, _, *_)] = records()
    assert told == "refund"


def test_a_json_record_made_in_a_job_names_the_delivery(configure, capsys):
    configure("json")
    token = running_delivery.set(JobDelivery("pgbus_mail", 7, 2, "shop.mail.send"))
    logging.getLogger("shop").info("sent")
    running_delivery.reset(token)
    entry = json.loads(capsys.readouterr().err)
    assert [entry[name] for name in FIELDS[4:]] == ["shop.mail.send", "pgbus_mail", 7, 2]
