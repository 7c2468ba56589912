"""The processes that serve the bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.dashboard.pages import processes

if TYPE_CHECKING:
    from flask import Response

    from pgbus.dashboard.console import Console


def show(console: Console) -> Response:
    """Return the processes, and what each has in hand."""
    return console.show(processes.load)
