"""The list of runs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from flask import request

from pgbus.dashboard.pages import workflows
from pgbus.dashboard.parameters import Parameters
from pgbus.dashboard.views.attention import held_end
from pgbus.dashboard.views.places import listed, place
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.insights.stuck import NO_END, StuckReason
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from flask import Response

    from pgbus.dashboard.console import Console

_BESIDE_STATES = ("ongoing", "all")


def show(console: Console) -> Response:
    """Return the runs that match what the address says."""
    given = Parameters(request.args)
    wanted = _filter(console, given)
    after, before = place(given)
    return listed(
        console, functools.partial(workflows.load, wanted=wanted, after=after, before=before)
    )


def _filter(console: Console, given: Parameters) -> RunFilter:
    zone = console.zone()
    status = given.text("status") or "ongoing"
    if status not in _BESIDE_STATES:
        status = given.choice("status", RunStatus) or "ongoing"
    return RunFilter(
        status=status,  # type: ignore[arg-type]
        workflow_class=given.text("workflow_class"),
        current_step=given.text("current_step"),
        error_class=given.text("error_class"),
        stuck=given.choice("stuck", StuckReason),
        held="none" if given.text("held") == NO_END else held_end(given),
        subject_type=given.text("subject_type"),
        subject_id=given.text("subject_id"),
        workflow_id=given.uuid("workflow_id"),
        created_from=given.moment("created_from", zone),
        created_to=given.moment("created_to", zone),
        ended_from=given.moment("ended_from", zone),
        ended_to=given.moment("ended_to", zone),
    )
