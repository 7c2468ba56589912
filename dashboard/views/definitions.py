"""Insights: all workflow classes, and one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from flask import request

from pgbus.dashboard.pages import definition, definitions
from pgbus.dashboard.parameters import Parameters
from pgbus.engine.insights.windows import Window

if TYPE_CHECKING:
    from flask import Response

    from pgbus.dashboard.console import Console


def show(console: Console) -> Response:
    """Return the classes, through the window that the address says."""
    given = Parameters(request.args)
    load = functools.partial(definitions.load, window=_window(given), start=given.place("start"))
    return console.show(load)


def show_one(console: Console, workflow_class: str) -> Response | None:
    """Return the page of a class; its name is looked up, never imported."""
    if "\0" in workflow_class:
        return None
    window = _window(Parameters(request.args))
    return console.show(
        functools.partial(definition.load, workflow_class=workflow_class, window=window)
    )


def _window(given: Parameters) -> Window:
    return given.choice("window", Window) or Window.DAY
