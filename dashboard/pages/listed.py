"""The ways from a class's figures to the runs that were counted, and to the class's own page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from pgbus.dashboard.pages.workflows import query_of
from pgbus.dashboard.presenters import marks
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.insights.windows import Window

if TYPE_CHECKING:
    from pgbus.dashboard.console import Viewer


@dataclass(frozen=True, slots=True)
class Listed:
    """The runs of a class, as the list narrows them."""

    viewer: Viewer
    workflow_class: str

    def href(self, **narrowed: Any) -> str:
        """Return the list of the runs that match; `narrowed` are fields of a `RunFilter`."""
        wanted = RunFilter(workflow_class=self.workflow_class, **narrowed)
        return self.viewer.url("workflows", **query_of(wanted))

    def count(self, number: int, head: str | None = None, **narrowed: Any) -> Markup:
        """Return how many match as a link to them, which says the head they stand under; of none there is nothing."""
        if not number:
            return Markup('<span class="mute">0</span>')
        text = self.viewer.words.number(number)
        return marks.link(self.href(**narrowed), text, f"{head} {text}" if head else None)

    def attention(self, step: str | None = None) -> str:
        """Return what needs somebody, narrowed to the class, or to a step of it."""
        return self.viewer.url("attention", workflow_class=self.workflow_class, current_step=step)


def class_href(viewer: Viewer, workflow_class: str, window: Window = Window.DAY) -> str:
    """Return the class's page: its name is one part of the address, whatever it holds."""
    query = "" if window is Window.DAY else f"?window={window}"
    return f"{viewer.url('definitions')}/{quote(workflow_class, safe='')}{query}"
