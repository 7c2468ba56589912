"""Tools that read what serves the runs: queues, processes, batches, dead letters, and where the bus is in trouble."""

from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

from pydantic import Field

from pgbus.engine.cli import hints
from pgbus.engine.insights import batches, dead_letters, health, processes, queues, reading
from pgbus.engine.insights.batches import BatchFilter
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.settings import Settings
from pgbus.mcp_server.tool import Answer, Caller, Cursor, Limit, PayloadTool, ReadTool, Text, told

if TYPE_CHECKING:
    from pgbus.engine.storage.database import Connection

#: As all times in answers.
_UTC = ZoneInfo("UTC")
_MOST_PROCESSES = 100


class ListQueues(ReadTool):
    """Tell how full each queue is: messages due (visible), in hand (in_flight) and not due yet (later).

    Besides, which queues are paused and how many dead letters there are. Counts stop at 10,001.
    """

    name = "pgbus_queues"

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return the queues, the pauses and the counts of dead letters."""
        return {
            "queues": queues.depths(connection, settings),
            "paused": queues.pauses(connection, settings),
            "dead_letters": queues.dead_letters(connection, settings),
        }


class ListProcesses(ReadTool):
    """List the workers, dispatchers and supervisors: the silent ones first, each with the newest of what it runs."""

    name = "pgbus_processes"

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return the processes, at most 100 of them."""
        return processes.fleet(connection, settings, limit=_MOST_PROCESSES)


class ListBatches(PayloadTool):
    """List batches of jobs, newest first, with how many of their jobs have ended, and how."""

    name = "pgbus_batches"

    status: Annotated[
        BatchFilter, Field(description="failed: open or finished, and a job has failed.")
    ] = BatchFilter.ALL
    limit: Limit = 25
    cursor: Cursor | None = None

    def read(self, connection: "Connection", settings: Settings) -> object:  # noqa: ARG002 (as of all tools)
        """Return a page of batches."""
        page = batches.page(connection, self.status, limit=self.limit, after=self.cursor)
        return {
            "batches": page.batches,
            "has_more": page.older is not None,
            "next_cursor": page.older,
        }


class ListDeadLetters(PayloadTool):
    """List what failed too often or was never a job, by queue, the newest of each first, with the error.

    A search looks at so many messages at a time: a page may be short or empty, and still have more.
    """

    name = "pgbus_dead_letters"

    queue: Annotated[Text | None, Field(description="The queue they came from.")] = None
    job: Text | None = None
    error_class: Text | None = None
    limit: Limit = 25
    cursor: Cursor | None = None

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return a page of dead letters."""
        wanted = JobFilter(queue=self.queue, job=self.job, error_class=self.error_class)
        page = dead_letters.page(connection, settings, wanted, limit=self.limit, after=self.cursor)
        return {
            "dead_letters": page.letters,
            "has_more": page.following is not None,
            "next_cursor": page.following,
        }


class ShowHealth(ReadTool):
    """Tell where the bus itself is in trouble, the worst first, and what to do about it."""

    name = "pgbus_health"

    def answer(self, caller: Caller) -> Answer:
        """Return what is wrong; an old schema is one of it, so none is expected."""
        with reading.reading(caller.bus.services) as connection:
            return told(self.read(connection, caller.bus.settings), shown=False)

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return the hints, each in words."""
        found = health.hints(connection, settings)
        return {
            "healthy": not found,
            "hints": [
                {"sentence": f"{hints.trouble(hint, _UTC)} {hints.mend(hint)}", "facts": hint}
                for hint in found
            ],
        }
