"""pgbus: what the console's pages ask while half of 400,000 runs sleep, beside counting the runs one by one."""

from __future__ import annotations

import json
import sys
import threading
from functools import partial

import psycopg

from bench.pgbus_app import FarOff, History, bus
from bench.pgbus_load import SCHEDULED, copy
from bench.pgbus_pages import COUNT, SEQUENTIALLY, Page, attention, list_page, medians
from pgbus.engine.insights import stuck
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.states import RunStatus


def load(connection: psycopg.Connection) -> None:
    finished, asleep = History.start(), FarOff.start()
    pause = threading.Event()
    with bus.run_in_background():
        while finished.reload().status != RunStatus.FINISHED:
            pause.wait(0.1)
    copy(connection, finished.workflow_id, SCHEDULED)
    copy(connection, asleep.workflow_id, SCHEDULED)
    connection.execute("VACUUM ANALYZE")
    connection.execute("CHECKPOINT")


def pages() -> dict[str, Page]:
    """Return what asks all that a page asks, by the page's name."""
    settings = bus.settings
    lists = {
        "ongoing": RunFilter(),
        "ready": RunFilter(status=RunStatus.READY),
        "performing": RunFilter(status=RunStatus.PERFORMING),
        "overdue": RunFilter(stuck=stuck.StuckReason.OVERDUE),
        "class and step": RunFilter(workflow_class="bench.pgbus_app.FarOff", current_step="later"),
    }
    return {
        "navigation": partial(stuck.count, settings=settings),
        **{
            f"list, {name}": partial(list_page, settings=settings, wanted=wanted, after=None)
            for name, wanted in lists.items()
        },
        "attention": partial(attention, settings=settings),
    }


def main(url: str) -> dict[str, float]:
    bus.migrate()
    with psycopg.connect(url, autocommit=True) as counting:
        load(counting)
        counting.execute(SEQUENTIALLY)
        return medians(bus, pages(), counting, COUNT)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
