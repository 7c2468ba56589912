"""The gauges, for Prometheus to scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Response

from pgbus.engine.insights import gauges, reading
from pgbus.engine.observe.exposition import CONTENT_TYPE, exposed

if TYPE_CHECKING:
    from pgbus.dashboard.console import Console


def show(console: Console) -> Response:
    """Return what the database knows of runs, queues and processes."""
    with reading.reading(console.bus.services) as connection:
        console.bus.check_schema()
        measured = gauges.read(connection, console.bus.settings)
    return Response(exposed(measured), content_type=CONTENT_TYPE)
