"""One round of a sweep's task in the test's own hands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.storage.claims import Worker
from pgbus.engine.sweep.round import Round

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.database import Database

    from pgbus import Pgbus, Run


def turn(bus: Pgbus, *, stopping: Callable[[], bool] = lambda: False) -> Round:
    return Round(bus.services, Worker("dispatcher:1", "r1"), stopping)


def stopping_after(rounds: int) -> Callable[[], bool]:
    """What says that the process is to end once it was asked this often."""
    answers = iter([False] * rounds)
    return lambda: next(answers, True)


def age(database: Database, interval: str, *runs: Run) -> None:
    """Moves what the runs have done so far into the past; all runs when none is named."""
    ids = [run.workflow_id for run in runs] or [
        workflow_id for (workflow_id,) in database.rows("SELECT workflow_id FROM pgbus.workflows")
    ]
    database.rows(
        "UPDATE pgbus.workflows SET updated_at = updated_at - %s::interval,"
        " ended_at = ended_at - %s::interval, sleeps_until = sleeps_until - %s::interval"
        " WHERE workflow_id = ANY (%s::uuid[])",
        interval, interval, interval, ids,
    )  # fmt: skip
    database.rows(
        "UPDATE pgbus.workflow_steps SET scheduled_at = scheduled_at - %s::interval,"
        " started_at = started_at - %s::interval, waiting_since = waiting_since - %s::interval,"
        " timeout_at = timeout_at - %s::interval WHERE workflow_id = ANY (%s::uuid[])",
        interval, interval, interval, interval, ids,
    )  # fmt: skip
