"""pgbus: filling the template of a list of runs, beside what Jinja needs for a plain table of its size."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import jinja2
from flask import Flask

from bench.pgbus_app import History, bus
from pgbus.dashboard import allow_anyone, create_blueprint
from pgbus.dashboard.console import Console
from pgbus.dashboard.host import Host
from pgbus.dashboard.pages import workflows
from pgbus.engine.insights import reading
from pgbus.engine.insights.runs import RunFilter

if TYPE_CHECKING:
    from collections.abc import Callable

#: As many as a page shows.
RUNS = workflows.PAGE_SIZE
#: As the page prints 500 of them, of which most stand in its lines.
VALUES = 20
TIMES = 40
ROUNDS = 15

TABLE = """<table>{% for row in rows %}<tr>{% for value in row %}<td>{{ value }}</td>{% endfor %}</tr>{% endfor %}
</table>"""


def milliseconds(work: Callable[[], object]) -> float:
    """Return the CPU time that the work takes at its best."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(TIMES):
            work()
        taken.append((time.process_time() - began) / TIMES)
    return min(taken) * 1000


def main(_url: str) -> dict[str, float]:
    """Return the milliseconds of either, and of making the page's context from what the database gave."""
    bus.migrate()
    History.start_many([(None, {})] * RUNS)
    site = Flask("rendering")
    site.secret_key = "k"  # noqa: S105 (signs nothing that anybody keeps)
    site.register_blueprint(create_blueprint(bus, auth=allow_anyone), url_prefix="/pgbus")
    console = Console(bus, Host(auth=allow_anyone))
    with site.test_request_context("/pgbus/workflows"), reading.reading(bus.services) as connection:
        viewer = console.viewer(reading.now(connection))
        wanted = RunFilter()
        page = workflows.load(connection, viewer, wanted, after=None, before=None)
        html = console.rendered(page, viewer).get_data(as_text=True)
        value = "x" * (len(html) // RUNS // VALUES - len("<td></td>"))
        table = jinja2.Environment(autoescape=True).from_string(TABLE)
        rows = [[value] * VALUES] * RUNS
        return {
            "page_ms": milliseconds(lambda: console.rendered(page, viewer)),
            "table_ms": milliseconds(lambda: table.render(rows=rows)),
            "html_bytes": len(html.encode()),
        }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
