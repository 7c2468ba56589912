"""How the members of a batch become messages on physical queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.queues import physical_name
from pgbus.engine.storage.batches import MemberMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgbus.engine.definition.members import JobCall
    from pgbus.engine.runner.services import Services


def member_messages(services: Services, calls: Iterable[JobCall]) -> list[MemberMessage]:
    """Return the calls as messages that can be sent: their queues exist then.

    The queues are made on a connection of their own, so not in a host's transaction.
    """
    prefix, trace = services.settings.queue_prefix, services.trace_here()
    messages = [
        MemberMessage(
            job=call.job,
            queue=physical_name(prefix, call.queue, call.priority),
            body=stamped(call.body, trace),
            wait=call.wait.total_seconds(),
            not_before=call.wait_until,
        )
        for call in calls
    ]
    services.bus.ensure_queues({message.queue for message in messages})
    return messages


def stamped(body: str, trace: str | None) -> str:
    """Return a job's message that tells, where a trace is wanted, what its span is a child of."""
    return body if trace is None else f'{{"trace":"{trace}",{body[1:]}'
