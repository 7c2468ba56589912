"""What a process writes to its log."""

from __future__ import annotations

import json
import logging
import os
from contextlib import contextmanager
from datetime import datetime

import pytest

from pgbus import StepContext
from pgbus.engine.definition.scope import step_context
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
