"""Batches: opened, added to, withdrawn, read. Who ends a member is a job's message (`jobs`)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pgbus.engine.storage.database import Connection

#: Members per statement, and characters of theirs.
_MOST_MEMBERS = 1_000
_MOST_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True)
class MemberMessage:
    """A job's message to be sent: `queue` is the physical one, `wait` seconds from then."""

    job: str
    queue: str
    body: str
    wait: float
    not_before: datetime | None

    def encode(self) -> str:
        """Return it as the JSON text that a batch's callback is kept as."""
        return _encoded(asdict(self))

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """Return what was encoded."""
        moment = document["not_before"]
        return cls(**document | {"not_before": moment and datetime.fromisoformat(moment)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """The row of a batch to be opened; properties and callbacks are encoded.

    A fan-out's names the run, the attempt and the queue where its completion is told.
    """

    batch_id: str
    description: str | None
    properties: str
    on_complete: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    workflow_id: str | None = None
    step_id: int | None = None
    step_queue: str | None = None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch with its first members, all that opening it needs."""

    new: NewBatch
    members: tuple[MemberMessage, ...]

    def encode(self) -> str:
        """Return it as JSON text."""
        return _encoded(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the plan that was encoded."""
        document = json.loads(text)
        return cls(
            NewBatch(**document["new"]),
            tuple(map(MemberMessage.from_document, document["members"])),
        )


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch as it is stored, with the counts of its members."""

    batch_id: str
    description: str | None
    encoded_properties: str
    total_jobs: int
    completed_jobs: int
    discarded_jobs: int
    dead_lettered_jobs: int
    created_at: datetime
    finished_at: datetime | None
    withdrawn_at: datetime | None

    @property
    def failed_jobs(self) -> int:
        """How many members ended otherwise than completed."""
        return self.discarded_jobs + self.dead_lettered_jobs

    @property
    def open_jobs(self) -> int:
        """How many members have not ended."""
        return self.total_jobs - self.completed_jobs - self.failed_jobs


_OPEN = """
INSERT INTO {schema}.batches
    (batch_id, description, properties, on_complete, on_success, on_failure, workflow_id, step_id, step_queue,
     total_jobs, counters, created_at)
VALUES
    (CAST(:batch_id AS uuid), CAST(:description AS text), CAST(:properties AS jsonb),
     CAST(:on_complete AS jsonb), CAST(:on_success AS jsonb), CAST(:on_failure AS jsonb),
     CAST(:workflow_id AS uuid), CAST(:step_id AS bigint), CAST(:step_queue AS text),
     0, 0, clock_timestamp())
"""

_ADD = "SELECT {schema}.add_members(CAST(:batch_id AS uuid), CAST(:members AS jsonb))"

_FINISH = "SELECT {schema}.finish_batch(CAST(:batch_id AS uuid))"

#: A batch that finished first is left as it is, but for what waits for it: nothing does any more.
_WITHDRAW = """
WITH withdrawn AS (
    UPDATE {schema}.batches
       SET withdrawn_at = CASE WHEN finished_at IS NULL THEN clock_timestamp() END,
           resolved_at = clock_timestamp()
     WHERE batch_id = CAST(:batch_id AS uuid) AND resolved_at IS NULL
    RETURNING batch_id
)
SELECT coalesce(sum(c.open), 0)::integer FROM withdrawn JOIN {schema}.batch_counters c USING (batch_id)
"""

_MARK_RESOLVED = """
UPDATE {schema}.batches SET resolved_at = clock_timestamp()
 WHERE batch_id = CAST(:batch_id AS uuid) AND resolved_at IS NULL
"""

#: The counts stand in the counters while the batch is open, in its row when it has finished.
_FIND = """
SELECT b.batch_id::text, b.description, b.properties::text, b.total_jobs,
       coalesce(b.completed_jobs, c.completed), coalesce(b.discarded_jobs, c.discarded),
       coalesce(b.dead_lettered_jobs, c.dead_lettered), b.created_at, b.finished_at, b.withdrawn_at
  FROM {schema}.batches b,
       LATERAL (SELECT coalesce(sum(n.completed), 0)::integer AS completed,
                       coalesce(sum(n.discarded), 0)::integer AS discarded,
                       coalesce(sum(n.dead_lettered), 0)::integer AS dead_lettered
                  FROM {schema}.batch_counters n WHERE n.batch_id = b.batch_id) c
 WHERE b.batch_id = CAST(:batch_id AS uuid)
"""


def open_batch(connection: Connection, plan: BatchPlan) -> bool:
    """Write the batch and send its members; True: it has none, and finished with that.

    The connection must be in a transaction.
    """
    new = plan.new
    connection.rows(_OPEN, **asdict(new))
    if plan.members:
        add(connection, new.batch_id, plan.members)
        return False
    return finish(connection, new.batch_id)


def add(connection: Connection, batch_id: str, members: Sequence[MemberMessage]) -> bool:
    """Add members to an open batch and send them; False, adding none, when it is not open.

    The connection must be in a transaction: until its end the batch is locked, and cannot finish.
    Whoever ends the last member of one of its counters waits for it, for a second or two.
    """
    documents = (_encoded(asdict(member)) for member in members)
    return all(
        _truth(connection, _ADD, batch_id=batch_id, members=f"[{','.join(chunk)}]")
        for chunk in _chunks(documents)
    )


def finish(connection: Connection, batch_id: str) -> bool:
    """Finish a batch without open members; False: it has some, is locked, or was finished before."""
    return _truth(connection, _FINISH, batch_id=batch_id)


def withdraw(connection: Connection, batch_id: str) -> int:
    """Have a fan-out's members discarded that were not delivered yet; return how many are open.

    Nothing waits for the batch from then on, and its completion is not told.
    """
    ((open_jobs,),) = connection.rows(_WITHDRAW, batch_id=batch_id)
    return int(open_jobs)


def mark_resolved(connection: Connection, batch_id: str) -> None:
    """Note that the step that waited for the batch has ended with it."""
    connection.rows(_MARK_RESOLVED, batch_id=batch_id)


def find(connection: Connection, batch_id: str) -> BatchRow | None:
    """Return the batch of this id, a UUID as text, with its counts as of now."""
    row = connection.row(_FIND, batch_id=batch_id)
    return BatchRow(*row) if row else None


def _chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield by the statement what is to be added; no documents are one empty chunk."""
    chunk: list[str] = []
    characters = 0
    for document in documents:
        characters += len(document)
        if len(chunk) == _MOST_MEMBERS or (chunk and characters > _MOST_CHARACTERS):
            yield chunk
            chunk, characters = [], len(document)
        chunk.append(document)
    yield chunk


def _truth(connection: Connection, statement: str, **parameters: object) -> bool:
    row = connection.row(statement, **parameters)
    return row is not None and bool(row[0])


def _encoded(document: object) -> str:
    return json.dumps(document, default=datetime.isoformat)
