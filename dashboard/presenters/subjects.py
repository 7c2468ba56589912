"""The record that a run is about, by its type and id, and the page that the host has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.dashboard.presenters.sentences import short

if TYPE_CHECKING:
    from pgbus.dashboard.console import Viewer
    from pgbus.engine.insights.runs import RunSummary


def named(run: RunSummary) -> str | None:
    """Return how the run's subject is called; None when it has none."""
    return None if run.subject_id is None else f"{run.subject_type} {run.subject_id}"


def titled(run: RunSummary) -> str:
    """Return how the run is called: its class, and its subject where it has one."""
    name, subject = short(run.workflow_class), named(run)
    return f"{name}, {subject}" if subject else name


def href(run: RunSummary, viewer: Viewer) -> str | None:
    """Return where the host shows the run's subject; None when it does not say."""
    if run.subject_type is None or run.subject_id is None:
        return None
    return viewer.subject_url(run.subject_type, run.subject_id)
