"""A fan-out's batch: planned when its body has ended, judged when its members have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pgbus.engine.errors import FanOutFailed
from pgbus.engine.identifiers import new_uuid
from pgbus.engine.runner.error_record import record_error
from pgbus.engine.runner.members import member_messages
from pgbus.engine.storage.batches import BatchPlan, NewBatch

if TYPE_CHECKING:
    from pgbus.engine.decision import ErrorEntry
    from pgbus.engine.runner.attempt import Attempt
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.batches import BatchRow


def plan(services: Services, attempt: Attempt) -> BatchPlan | None:
    """Return the batch of what the body added; None when that is nothing."""
    if not attempt.calls:
        return None
    delivery = attempt.delivery
    members = services.database.persistently(lambda _: member_messages(services, attempt.calls))
    name = f"{attempt.definition.workflow_class.__qualname__}#{delivery.step_name}"
    new = NewBatch(
        batch_id=new_uuid(),
        description=f"{name} {delivery.workflow_id}",
        properties=json.dumps({"workflow_id": delivery.workflow_id, "step_id": delivery.step_id}),
        workflow_id=delivery.workflow_id,
        step_id=delivery.step_id,
        step_queue=services.queue_of(attempt.step),
    )
    return BatchPlan(new, tuple(members))


def failure(batch: BatchRow | None) -> ErrorEntry | None:
    """Return the error to record of a batch that has ended, if any; None stands for a lost one."""
    if batch is None:
        problem = "the batch is gone, so what became of its jobs is not known"
    elif batch.failed_jobs:
        problem = f"{batch.failed_jobs} of {batch.total_jobs} jobs {_how_they_ended(batch)}"
    else:
        return None
    return record_error(FanOutFailed(problem), backtrace_lines=0)


def _how_they_ended(batch: BatchRow) -> str:
    counts = {
        "dead-lettered": batch.dead_lettered_jobs,
        "discarded without running": batch.discarded_jobs,
    }
    return " or ".join(how for how, count in counts.items() if count)
