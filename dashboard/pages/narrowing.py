"""How lists of jobs and dead letters are narrowed: by queue, job and error class."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.pages.workflows import Chip
from pgbus.dashboard.words import pgettext
from pgbus.engine.insights import queues
from pgbus.engine.insights.messages import parsed_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbus.dashboard.console import Viewer
    from pgbus.engine.insights.jobs import JobFilter
    from pgbus.engine.storage.database import Connection

_LABELS = {
    "queue": pgettext("filter", "queue"),
    "job": pgettext("filter", "job"),
    "error_class": pgettext("filter", "error class"),
}


@dataclass(frozen=True, slots=True)
class FilterField:
    """A filter as its form field shows it; with the `choices` there are."""

    name: str
    label: str
    value: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """The form that filters a list, and what is filtered by now; `hidden` comes with the form."""

    action: str
    hidden: dict[str, str]
    fields: tuple[FilterField, ...]
    chips: tuple[Chip, ...]
    clear: str


def query_of(wanted: JobFilter) -> dict[str, str | None]:
    """Return the filter as the parameters of a URL."""
    return asdict(wanted)


def narrowing(
    connection: Connection,
    viewer: Viewer,
    endpoint: str,
    wanted: JobFilter,
    names: Sequence[str],
    **kept: str | None,
) -> Narrowing:
    """Return the form of the filters `names` on the list at the endpoint; `kept` are its other parameters."""
    words, given = viewer.words, query_of(wanted)
    known = {
        parsed_name(viewer.settings, queue).logical
        for queue in queues.with_work(connection, viewer.settings)
    }
    return Narrowing(
        action=viewer.url(endpoint),
        hidden={name: value for name, value in kept.items() if value},
        fields=tuple(
            FilterField(
                name,
                words.gettext(_LABELS[name]),
                given[name] or "",
                tuple(sorted(known)) if name == "queue" else (),
            )
            for name in names
        ),
        chips=tuple(
            Chip(
                words.gettext(_LABELS[name]),
                given[name] or "",
                viewer.url(endpoint, **{**kept, **given, name: None}),
            )
            for name in names
            if given[name]
        ),
        clear=viewer.url(endpoint, **kept),
    )
