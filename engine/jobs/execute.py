"""One delivered job message: run, then settled by what came of it.

The body runs with nothing locked. Its outcome is data, and one statement settles the message
by it, so that a worker killed at any point leaves the message to be delivered again.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import random
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine import active
from pgbus.engine.definition.delivery import JobDelivery, running_delivery
from pgbus.engine.errors import (
    JobCrashed,
    PayloadError,
    PgbusError,
    UnknownJob,
    UnknownSubject,
)
from pgbus.engine.jobs import batch, envelope, registry
from pgbus.engine.observe import emission
from pgbus.engine.queues import dead_letter_name, parse_physical_name
from pgbus.engine.states import JobOutcome
from pgbus.engine.storage import dead_letters, jobs
from pgbus.engine.storage.claims import ClaimVerdict
from pgbus.engine.storage.jobs import Ended

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus.engine.jobs.job import Job
    from pgbus.engine.observe.tracing import Span
    from pgbus.engine.runner.host import PhaseSession
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.database import Connection

_FIRST_WAIT = 5
_LONGEST_WAIT = 300
#: Waits are shortened by up to this share, so that what failed together is not tried together.
_JITTER = 0.15

_log = logging.getLogger("pgbus.jobs")


@dataclass(frozen=True, slots=True)
class Completed:
    """The job returned."""

    job: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The job was not run: its batch had been withdrawn."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The job raised after `seconds` and is tried again in `wait` seconds."""

    job: str
    error: BaseException
    seconds: float
    wait: float


@dataclass(frozen=True, slots=True)
class Dead:
    """The message is not tried again; `job` is None when it names none, `seconds` when none ran."""

    job: str | None
    error: BaseException
    seconds: float | None = None


#: What became of a delivery, as reporters and traces name it.
_OUTCOMES = {
    Completed: JobOutcome.COMPLETED,
    Withdrawn: JobOutcome.WITHDRAWN,
    Failed: JobOutcome.FAILED,
    Dead: JobOutcome.DEAD_LETTERED,
}


#: What traces say of a delivery whose message another one settled, or that nobody settled.
_LOST = "lost"


@dataclass(frozen=True, slots=True)
class _Settled:
    """How a delivery ended, and what is to be told of it; not `done` when its message was another's by now."""

    outcome: Completed | Withdrawn | Failed | Dead
    done: bool
    told: list[emission.Payload]


class _Poison(Exception):
    """The message cannot be worked off, now or later."""

    def __init__(self, reason: PgbusError) -> None:
        super().__init__(reason)
        self.reason = reason


def execute(services: Services, delivery: Delivery) -> None:
    """Run the job of a delivered message and settle the message, however long PostgreSQL is away.

    `KeyboardInterrupt` and `SystemExit` pass and leave the message to be delivered again.
    """
    span = _span(services, delivery)
    if span is None:
        _execute(services, delivery)
        return
    try:
        with span.current():
            settled = _execute(services, delivery)
    except BaseException:
        span.end(_LOST)
        raise
    outcome = settled.outcome
    error = outcome.error if isinstance(outcome, Failed | Dead) else None
    span.end(_OUTCOMES[type(outcome)] if settled.done else _LOST, error)


def _execute(services: Services, delivery: Delivery) -> _Settled:
    outcome = _run(services, delivery)
    if isinstance(outcome, Failed | Dead):
        _warn(delivery, outcome)
    tries = itertools.count()
    settled = services.database.persistently(
        lambda connection: _settle(services, connection, delivery, outcome, again=next(tries) > 0)
    )
    services.events.emit(*settled.told)
    if settled.done and isinstance(outcome, Failed | Dead):
        _report(services, delivery, outcome)
    return settled


def _span(services: Services, delivery: Delivery) -> Span | None:
    """Return the span of the delivery; None where none is wanted."""
    if services.tracer is None:
        return None
    name = trace = None
    body = delivery.body or "null"
    with suppress(PayloadError):
        name, trace = envelope.job_name(body), envelope.trace(body)
    attributes: dict[str, str | int] = {
        "job": name or "",
        "queue": delivery.queue,
        "message_id": delivery.message_id,
        "read_count": delivery.read_count,
    }
    return services.tracer.begin(name or "a message that is no job's", trace, attributes)


def _report(services: Services, delivery: Delivery, outcome: Failed | Dead) -> None:
    became = str(_OUTCOMES[type(outcome)])
    context = {"action": "job", **_facts(delivery, outcome), "outcome": became}
    services.reporters.report(outcome.error, context)


def _warn(delivery: Delivery, outcome: Failed | Dead) -> None:
    next_try = f"in {outcome.wait:.1f} s" if isinstance(outcome, Failed) else "never"
    _log.warning(
        "Delivery %d of message %d of %s (%s) failed; next try: %s.",
        delivery.read_count,
        delivery.message_id,
        delivery.queue,
        outcome.job or "no job",
        next_try,
        exc_info=outcome.error,
        extra=_facts(delivery, outcome),
    )


def _facts(delivery: Delivery, outcome: Failed | Dead) -> dict[str, object]:
    """Return of which job and delivery an error is, as logs and reporters name it."""
    return {
        "job": outcome.job,
        "queue": delivery.queue,
        "message_id": delivery.message_id,
        "read_count": delivery.read_count,
    }


def _run(services: Services, delivery: Delivery) -> Completed | Withdrawn | Failed | Dead:
    if delivery.verdict is ClaimVerdict.WITHDRAWN:
        return Withdrawn()
    body = delivery.body or "null"
    name = None
    try:
        name = envelope.job_name(body)
        job = registry.find(name)
        _refuse_crashed(job, delivery)
    except (PayloadError, UnknownJob, JobCrashed) as error:
        return Dead(name, error)
    began = time.monotonic()
    try:
        _call(services, delivery, job, body)
    except (KeyboardInterrupt, SystemExit):
        raise
    except _Poison as poison:
        return Dead(name, poison.reason)
    except BaseException as error:  # noqa: BLE001 (a host's function: whatever it raises is recorded)
        if delivery.read_count > job.max_retries:
            return Dead(name, error, time.monotonic() - began)
        return Failed(name, error, time.monotonic() - began, backoff(delivery.read_count))
    return Completed(name, time.monotonic() - began)


def backoff(read_count: int) -> float:
    """Return the seconds until the delivery after this one: 5, doubled each time, at most 300."""
    wait: int = min(_FIRST_WAIT * 2 ** (read_count - 1), _LONGEST_WAIT)
    return wait * random.uniform(1 - _JITTER, 1)  # noqa: S311 (spreads load, keeps no secret)


def _refuse_crashed(job: Job[..., Any], delivery: Delivery) -> None:
    executions = job.max_retries + 1
    if delivery.read_count > executions:
        raise JobCrashed(
            f"{job.name} was delivered {delivery.read_count} times and may be executed {executions} "
            "times (max_retries + 1): its worker died or was stopped during the last one."
        )


def _call(services: Services, delivery: Delivery, job: Job[..., Any], body: str) -> None:
    with _surroundings(services, delivery, job.name) as session:
        args, kwargs = _arguments(body, session)
        returned = job(*args, **kwargs)
        if inspect.iscoroutine(returned):
            services.event_loop.run(returned)
        session.commit()


@contextmanager
def _surroundings(services: Services, delivery: Delivery, job: str) -> Iterator[PhaseSession]:
    """Set up what the host's code finds around it; roll the session back unless it committed."""
    session = services.host.phase_session()
    current = JobDelivery(delivery.queue, delivery.message_id, delivery.read_count, job)
    with active.running_on(services.bus), services.host.surroundings():
        token = running_delivery.set(current)
        try:
            yield session
        finally:
            running_delivery.reset(token)
            session.close()


def _arguments(body: str, session: PhaseSession) -> tuple[list[Any], dict[str, Any]]:
    try:
        return envelope.arguments(body, load=session.load)
    except (PayloadError, UnknownSubject) as error:
        raise _Poison(error) from error


def _settle(
    services: Services,
    connection: Connection,
    delivery: Delivery,
    outcome: Completed | Withdrawn | Failed | Dead,
    *,
    again: bool,
) -> _Settled:
    """Settle the message. `again`: it may be settled already, by a statement whose answer was lost."""
    queue, message_id, read_count = delivery.queue, delivery.message_id, delivery.read_count
    event: emission.Payload | None = None
    match outcome:
        case Completed(job, seconds):
            ended = jobs.complete(connection, delivery)
            event = emission.JobCompleted(job, queue, message_id, seconds)
        case Withdrawn():
            ended = jobs.discard(connection, delivery)
        case Failed(job, error, seconds, wait):
            recorded = services.recorded(error)
            ended = Ended(jobs.retry(connection, delivery, job, recorded, wait=wait), None)
            event = emission.JobFailed(
                job, queue, message_id, read_count, recorded.error_class, seconds
            )
        case Dead(maybe_job, error, maybe_seconds):
            recorded = services.recorded(error)
            letters = _dead_letters(services, queue)
            ended = jobs.dead_letter(connection, delivery, recorded, letters)
            event = emission.JobDeadLettered(
                maybe_job, queue, message_id, read_count, recorded.error_class, maybe_seconds
            )
    if again and not ended.done and _ended_before(services, connection, delivery, outcome):
        ended = Ended(done=True, finished_batch=jobs.finished_by(connection, delivery))
    told = [event] if ended.done and event else []
    return _Settled(outcome, ended.done, [*told, *batch.told(connection, ended.finished_batch)])


def _ended_before(
    services: Services,
    connection: Connection,
    delivery: Delivery,
    outcome: Completed | Withdrawn | Failed | Dead,
) -> bool:
    """Tell whether an earlier try has ended the message, as far as can be told.

    A retry does the same each time; a message that was archived does not say by which delivery.
    """
    if isinstance(outcome, Dead):
        letters = _dead_letters(services, delivery.queue)
        return dead_letters.came_of(connection, letters, delivery)
    return isinstance(outcome, Completed | Withdrawn)


def _dead_letters(services: Services, queue: str) -> str:
    """Bring the queue of the dead letters into being, and return its name."""
    prefix = services.settings.queue_prefix
    parsed = parse_physical_name(prefix, queue)
    assert parsed is not None  # noqa: S101 (workers read this bus's queues only)
    letters = dead_letter_name(prefix, parsed.logical)
    services.bus.ensure_queues([letters])
    return letters
