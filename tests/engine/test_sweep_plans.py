"""The sweep's questions are answered by an index that holds little else, whatever else is stored."""

from __future__ import annotations

import re

import pytest

from pgbus.engine.insights import counts, stuck
from pgbus.engine.storage import retention, sweeping
from pgbus.engine.storage.database import Connection
from pgbus.engine.storage.sweeping import Walked

PARAMETERS = {
    **sweeping.Slice(Walked.MOVING, sweeping.BEGINNING, sweeping.END).parameters(),
    "after": sweeping.LEAST_ID,
    "size": 100,
    "limit": 100,
    "threshold": 3600.0,
    "seconds": 3600.0,
    "overdue_seconds": 3600.0,
    "waiting_seconds": 3600.0,
    "as_of": None,
    "names": ["c"],
    "steps": ["a.B#c"],
    "timeouts": [1.0],
    "timeout_at": None,
    "step_id": 0,
}


@pytest.fixture
def connection(database):
    with database.connection(autocommit=True) as driver:
        # Tables this small would be read as a whole.
        for way in ("seqscan", "bitmapscan"):
            driver.execute(f"SET enable_{way} = off")
        yield Connection(driver, "pgbus")


@pytest.mark.parametrize(
    ("place", "name", "index"),
    [
        (sweeping._SLICE_END, Walked.MOVING, "workflows_lane"),
        (sweeping._SLICE_END, Walked.OVERSLEPT, "workflows_sleeps_until"),
        (sweeping, "_OVERRUN", "workflows_lane"),
        (sweeping._OVERDUE, Walked.MOVING, "workflows_lane"),
        (sweeping._OVERDUE, Walked.OVERSLEPT, "workflows_sleeps_until"),
        (sweeping, "_EXPIRED_WAITS", "workflow_steps_timeout_at"),
        (sweeping, "_WAITING_ON", "workflow_steps_waiting_(since|batch)"),
        (sweeping, "_UNFINISHED_BATCHES", "batches_open"),
        (sweeping, "_UNRESOLVED", "batches_unresolved"),
        (sweeping, "_BATCHLESS", "workflow_steps_waiting_batch"),
        (counts, "_BY_STATUS", "workflows_(lane|class)"),
        (stuck, "_BY_REASON", "workflows_lane"),
        (stuck, "_BY_REASON", "workflows_sleeps_until"),
        (stuck, "_BY_REASON", "workflow_steps_waiting_since"),
        (retention, "_OLD_RUNS", "workflows_pkey"),
        (retention, "_LOCK_OLD_BATCHES", "batches_finished"),
    ],
)
def test_a_question_is_answered_by_its_index(connection, place, name, index):
    statement = place[name] if isinstance(place, dict) else getattr(place, name)
    rows = connection.rows(f"EXPLAIN {statement}", **PARAMETERS)
    plan = "\n".join(line for (line,) in rows)
    assert re.search(rf" ({index}) ", plan), plan
    assert "Seq Scan" not in plan
    assert not [line for line in plan.splitlines() if "Sort Key" in line and "::text" in line], plan
