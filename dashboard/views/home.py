"""Home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.dashboard.pages import home

if TYPE_CHECKING:
    from flask import Response

    from pgbus.dashboard.console import Console


def show(console: Console) -> Response:
    """Return how the whole bus is doing."""
    return console.show(home.load)
