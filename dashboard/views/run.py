"""One run, and each part of its history by itself."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING
from uuid import UUID

from flask import Response, request

from pgbus.dashboard.pages import history, run
from pgbus.dashboard.parameters import Parameters
from pgbus.dashboard.presenters.timeline import drawing
from pgbus.engine.errors import EntryNotFound
from pgbus.engine.insights import detail, reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.dashboard.console import Console, Page

_LONGEST_NUMBER = 18


def show(console: Console, workflow_id: str) -> Response | None:
    """Return the page of the run."""
    if (known := identifier(workflow_id)) is None:
        return None
    return console.show(functools.partial(run.load, workflow_id=known))


def timeline(console: Console, workflow_id: str) -> Response | None:
    """Return what the run's timeline draws, as JSON."""
    if (known := identifier(workflow_id)) is None:
        return None
    with reading.reading(console.bus.services) as connection:
        console.bus.check_schema()
        words = console.viewer(reading.now(connection)).words
        found = detail.timeline(connection, console.bus.settings, known, limit=run.LIMIT)
    return Response(drawing(found, words), mimetype="application/json")


def show_attempts(console: Console, workflow_id: str) -> Response | None:
    """Return a page of the run's attempts."""
    return _history(console, workflow_id, history.load_attempts)


def show_signals(console: Console, workflow_id: str) -> Response | None:
    """Return a page of the run's signals."""
    return _history(console, workflow_id, history.load_signals)


def show_events(console: Console, workflow_id: str) -> Response | None:
    """Return a page of the run's audit trail."""
    return _history(console, workflow_id, history.load_events)


def show_attempt(console: Console, workflow_id: str, number: str) -> Response | None:
    """Return one attempt of the run, with all of its error and output."""
    return _entry(console, workflow_id, number, history.load_attempt)


def show_signal(console: Console, workflow_id: str, number: str) -> Response | None:
    """Return the payload of one of the run's signals."""
    return _entry(console, workflow_id, number, history.load_signal)


def show_arguments(console: Console, workflow_id: str) -> Response | None:
    """Return all that the run was started with."""
    if (known := identifier(workflow_id)) is None:
        return None
    load = functools.partial(history.load_arguments, workflow_id=known)
    return console.show(load)


def identifier(workflow_id: str) -> str | None:
    """Return a run's id as PostgreSQL writes it; None for what is none."""
    try:
        return str(UUID(workflow_id))
    except ValueError:
        return None


def _history(console: Console, workflow_id: str, load: Callable[..., Page]) -> Response | None:
    if (known := identifier(workflow_id)) is None:
        return None
    older_than = Parameters(request.args).number("older_than")
    return console.show(functools.partial(load, workflow_id=known, older_than=older_than))


def _entry(
    console: Console, workflow_id: str, number: str, load: Callable[..., Page]
) -> Response | None:
    known = identifier(workflow_id)
    if (
        known is None
        or not (number.isascii() and number.isdigit())
        or len(number) > _LONGEST_NUMBER
    ):
        return None
    try:
        return console.show(lambda *seen: load(*seen, known, int(number)))
    except EntryNotFound:
        return None
