"""How a call of a job becomes a message: in the caller's transaction, or in one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgbus.engine.jobs import envelope
from pgbus.engine.queues import physical_name
from pgbus.engine.runner.members import stamped
from pgbus.engine.storage import messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgbus.engine.jobs.job import EnqueueOptions
    from pgbus.engine.runner.services import Services


def enqueue(
    services: Services,
    options: EnqueueOptions[...],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> int:
    """Send the call's message and return its id; refuse all that can be refused before."""
    settings = services.settings
    body = envelope.encode(options.job.name, args, kwargs, limit=settings.workflow_max_payload_size)
    body = stamped(body, services.trace_here())
    queue = physical_name(settings.queue_prefix, options.queue, options.priority)
    services.bus.check_schema()
    services.bus.ensure_queues([queue])
    with services.connection(options.session) as connection:
        return messages.send(
            connection,
            queue,
            body,
            wait=options.wait.total_seconds(),
            not_before=options.wait_until,
        )
