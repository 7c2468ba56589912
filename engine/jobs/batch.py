"""`Batch`: jobs that end together, with callbacks, in the caller's transaction.

with Batch.open(...) ──► BatchMembers ──► one transaction: the batch, its members' messages
with batch.adding()  ──► (add, add_many)              │
                                                      ▼
each member's end is counted with its message's ──► the last one's sends the callbacks
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from pgbus.engine import codec
from pgbus.engine.active import current_bus
from pgbus.engine.definition.members import Members
from pgbus.engine.errors import AlreadyFinished, BatchNotFound
from pgbus.engine.identifiers import new_uuid
from pgbus.engine.observe import emission
from pgbus.engine.runner.members import member_messages
from pgbus.engine.storage import batches
from pgbus.engine.storage.batches import BatchPlan, NewBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime
    from typing import TypeAlias

    from pgbus.engine.definition.start import HostSession
    from pgbus.engine.jobs.job import EnqueueOptions, Job
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.batches import BatchRow
    from pgbus.engine.storage.database import Connection

    Callback: TypeAlias = Job[..., Any] | EnqueueOptions[...]


class BatchMembers(Members):
    """The builder of the batch `batch_id`: what is added is sent at the end of its block."""

    def __init__(self, batch_id: str) -> None:
        super().__init__()
        self.batch_id = batch_id


class Batch:
    """A batch of jobs, as it was when last read (`reload` reads again).

    Each member ends once: completed, dead-lettered, or discarded before it ran. When the last
    one has, the batch finishes, and its callbacks are sent with that.
    """

    def __init__(self, services: Services, row: BatchRow) -> None:
        self._services = services
        self._row = row

    def __repr__(self) -> str:
        return f"<Batch {self.batch_id} {self.open_jobs} of {self.total_jobs} jobs open>"

    @classmethod
    def open(
        cls,
        *,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        on_complete: Callback | None = None,
        on_success: Callback | None = None,
        on_failure: Callback | None = None,
        session: HostSession | None = None,
    ) -> AbstractContextManager[BatchMembers]:
        """Open a batch of what the `with` block adds, in one transaction at the block's end.

        An error in the block, or a rollback of the host's, leaves nothing. A callback is a job or
        its `options(...)`, and is called with the keyword arguments `batch_id` and `properties`.

        - `on_complete`: sent when the batch finishes, whatever became of its members.
        - `on_success`, `on_failure`: sent then, too, if all were completed, or if not.
        - `session`: all of it is part of the host's transaction.
        """
        services = current_bus().services
        services.bus.check_schema()
        batch_id, given = new_uuid(), dict(properties or {})
        limit = services.settings.workflow_max_payload_size
        encoded = codec.encode(given, name="properties", limit=limit)
        arguments = {"batch_id": batch_id, "properties": given}
        new = NewBatch(
            batch_id=batch_id,
            description=None if description is None else codec.storable(description),
            properties=encoded,
            on_complete=_callback(services, "on_complete", on_complete, arguments),
            on_success=_callback(services, "on_success", on_success, arguments),
            on_failure=_callback(services, "on_failure", on_failure, arguments),
        )
        return _opening(services, new, session)

    @classmethod
    def find(cls, batch_id: str | UUID) -> Batch | None:
        """Return the batch, also a fan-out's; None when there is none (any more)."""
        services = current_bus().services
        try:
            known = str(UUID(str(batch_id)))
        except ValueError:
            return None
        with services.database.autocommit() as connection:
            row = batches.find(connection, known)
        return cls(services, row) if row else None

    @property
    def batch_id(self) -> str:
        """The batch's id, a UUIDv7."""
        return self._row.batch_id

    @property
    def description(self) -> str | None:
        """What it was called when it was opened."""
        return self._row.description

    @property
    def properties(self) -> Mapping[str, Any]:
        """What it was opened with; a subject among them is a reference."""
        properties: Mapping[str, Any] = codec.decode(self._row.encoded_properties)
        return properties

    @property
    def total_jobs(self) -> int:
        """How many members it has."""
        return self._row.total_jobs

    @property
    def completed_jobs(self) -> int:
        """How many have returned."""
        return self._row.completed_jobs

    @property
    def discarded_jobs(self) -> int:
        """How many were discarded before they ran."""
        return self._row.discarded_jobs

    @property
    def dead_lettered_jobs(self) -> int:
        """How many became dead letters."""
        return self._row.dead_lettered_jobs

    @property
    def open_jobs(self) -> int:
        """How many have not ended."""
        return self._row.open_jobs

    @property
    def created_at(self) -> datetime:
        """When it was opened."""
        return self._row.created_at

    @property
    def finished_at(self) -> datetime | None:
        """When its last member ended; None while it is open."""
        return self._row.finished_at

    @property
    def finished(self) -> bool:
        """Whether all its members have ended."""
        return self.finished_at is not None

    def reload(self) -> Self:
        """Read the batch again; raise `BatchNotFound` when it was deleted."""
        with self._services.database.autocommit() as connection:
            row = batches.find(connection, self.batch_id)
        if row is None:
            raise BatchNotFound(f"There is no batch {self.batch_id} any more.")
        self._row = row
        return self

    @contextmanager
    def adding(self, *, session: HostSession | None = None) -> Iterator[BatchMembers]:
        """Add to the batch what the block adds, in one transaction at the block's end.

        Raise `AlreadyFinished` there, sending nothing, when the batch is not open any more. With
        `session` it is part of the host's transaction, until whose end the batch cannot finish;
        one that is left open for more than a second may delay that to the next sweep.
        """
        with _collected(self.batch_id) as members:
            yield members
        messages = member_messages(self._services, members.calls)
        with self._services.transaction(session) as connection:
            if not batches.add(connection, self.batch_id, messages):
                raise AlreadyFinished(
                    f"Batch {self.batch_id} has finished, or was withdrawn: none of {len(messages)} "
                    "jobs was added; open another batch for them."
                )


def told(connection: Connection, batch_id: str | None) -> list[emission.BatchFinished]:
    """Return the event of the batch that has finished, if one has."""
    row = batches.find(connection, batch_id) if batch_id else None
    if row is None:
        return []
    return [
        emission.BatchFinished(
            row.batch_id,
            row.description,
            row.total_jobs,
            row.completed_jobs,
            row.discarded_jobs,
            row.dead_lettered_jobs,
        )
    ]


@contextmanager
def _opening(
    services: Services, new: NewBatch, session: HostSession | None
) -> Iterator[BatchMembers]:
    with _collected(new.batch_id) as members:
        yield members
    plan = BatchPlan(new, tuple(member_messages(services, members.calls)))
    with services.transaction(session) as connection:
        finished = batches.open_batch(connection, plan)
        payloads = told(connection, new.batch_id if finished else None)
    if session is None:
        services.events.emit(*payloads)
    else:
        services.events.emit_after_commit(session, payloads)


@contextmanager
def _collected(batch_id: str) -> Iterator[BatchMembers]:
    """Lend a builder for the block, and close it."""
    members = BatchMembers(batch_id)
    try:
        yield members
    finally:
        members.close()


def _callback(
    services: Services, name: str, job: Callback | None, arguments: Mapping[str, Any]
) -> str | None:
    """Return a callback's message as the batch keeps it until it finishes."""
    if job is None:
        return None
    call = Members()
    try:
        call.add(job, **arguments)
    except TypeError as error:
        raise TypeError(
            f"{name}: {error}; a batch calls it with the keyword arguments batch_id and properties"
        ) from error
    [message] = member_messages(services, call.calls)
    return message.encode()
