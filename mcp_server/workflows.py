"""Tools that read runs, and how their classes are doing."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, AwareDatetime, Field

from pgbus.engine.definition.options import aware_moment
from pgbus.engine.errors import ClassNotFound
from pgbus.engine.insights import (
    classes,
    counts,
    detail,
    performance,
    reading,
    runs,
    stuck,
    windows,
)
from pgbus.engine.insights.runs import RunFilter, Tab
from pgbus.engine.insights.stuck import HeldEnd, StuckReason
from pgbus.engine.insights.windows import Window
from pgbus.engine.settings import Settings
from pgbus.mcp_server.tool import ClassName, Cursor, Limit, PayloadTool, ReadTool, Text

if TYPE_CHECKING:
    from pgbus.engine.storage.database import Connection

#: `total` stops here.
CAP = 10_000

#: Bytes of a document beyond which only its size is told.
_INLINE = 4_000

Moment = Annotated[AwareDatetime, AfterValidator(aware_moment)]


class ListWorkflows(ReadTool):
    """List workflow runs, newest first: by default the ongoing ones.

    Filters combine. `total` counts all that match, up to 10,000; `has_more` and `next_cursor` lead on.
    `current_step` and `error_class` are those of a run's newest attempt; "none" as error_class means without.
    """

    name = "pgbus_workflows"

    status: Tab = "ongoing"
    workflow_class: ClassName | None = None
    current_step: Text | None = None
    error_class: Text | None = None
    stuck: Annotated[
        StuckReason | None, Field(description="Why the runs do not move on by themselves.")
    ] = None
    held: Annotated[
        HeldEnd | Literal["none"] | None,
        Field(description="How the paused runs would end when resumed; none: they would go on."),
    ] = None
    subject_type: Text | None = None
    subject_id: Text | None = None
    workflow_id: UUID | None = None
    created_from: Moment | None = None
    created_to: Moment | None = None
    ended_from: Moment | None = None
    ended_to: Moment | None = None
    limit: Limit = 25
    cursor: Cursor | None = None

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return a page of runs, and how many there are."""
        _expect_known(connection, self.workflow_class)
        wanted = RunFilter(
            **self.model_dump(exclude={"workflow_id", "limit", "cursor"}),
            workflow_id=None if self.workflow_id is None else str(self.workflow_id),
        )
        page = runs.page(connection, settings, wanted, limit=self.limit, after=self.cursor)
        total = runs.status_counts(connection, settings, wanted, cap=CAP)[self.status]
        return {
            "workflows": page.runs,
            "total": min(total, CAP),
            "total_is_more": total > CAP,
            "has_more": page.older is not None,
            "next_cursor": page.older,
        }


class ShowWorkflow(PayloadTool):
    """Show one run: its attempts with where their time went, its signals, its audit trail, what can be done.

    `available_actions` are the verbs that its state allows; `resume` is what a resume would do. Histories are
    newest first, `limit` of each.
    """

    name = "pgbus_workflow"

    workflow_id: UUID
    limit: Limit = 20

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return the run with its history."""
        return run_detail(connection, settings, str(self.workflow_id), limit=self.limit)


class ShowAttention(PayloadTool):
    """Group the runs that do not move on by themselves by class, step, reason and error class.

    The 200 biggest groups, the biggest first; `exhaustive` says that there are no others. Each names the actions
    that can be asked of its runs; list those with pgbus_workflows.
    """

    name = "pgbus_workflows_attention"

    workflow_class: ClassName | None = None

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return the groups."""
        _expect_known(connection, self.workflow_class)
        return stuck.groups(connection, settings, self.workflow_class)


class ListDefinitions(ReadTool):
    """List every workflow class: its runs now, those that ended in the window, and how long those took."""

    name = "pgbus_workflow_definitions"

    window: Window = Window.DAY

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return a summary of each class."""
        span = windows.span(settings, self.window, reading.now(connection))
        return {"span": span, "classes": classes.summaries(connection, settings, span)}


class ShowStats(ReadTool):
    """Tell how one workflow class is doing in the window: throughput, steps, durations, app revisions.

    `headline` is the one change for the worse, left out when nothing stands out. Durations are in seconds.
    """

    name = "pgbus_workflow_stats"

    workflow_class: ClassName
    window: Window = Window.DAY

    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return how the class is doing."""
        span = windows.span(settings, self.window, reading.now(connection))
        zone = ZoneInfo(settings.time_zone)
        return performance.performance(connection, settings, self.workflow_class, span, zone)


def run_detail(
    connection: "Connection", settings: Settings, workflow_id: str, *, limit: int
) -> detail.RunDetail:
    """Return the run with the newest of its history, of large documents only the size."""
    return detail.detail(connection, settings, workflow_id, limit=limit, inline=_INLINE)


def _expect_known(connection: "Connection", workflow_class: str | None) -> None:
    """Refuse a name that no class has: nothing is stuck there, and nothing is well."""
    if workflow_class is None:
        return
    known = counts.known_classes(connection)
    if workflow_class not in known:
        close = get_close_matches(workflow_class, known, n=1)
        mend = f"did you mean {close[0]}?" if close else "pgbus_workflow_definitions lists them."
        raise ClassNotFound(f"No class here is called {workflow_class!r}; {mend}")
