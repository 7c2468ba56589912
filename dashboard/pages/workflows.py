"""The list of runs: tabs, filters, one line a run, and the way to the next page."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.forms import moment_text
from pgbus.dashboard.presenters import marks, sentences, subjects
from pgbus.dashboard.presenters.pager import Pager, pager
from pgbus.dashboard.presenters.status import HELD_WORDS, STUCK_WORDS, place, status
from pgbus.dashboard.words import COUNT_CAP, code, pgettext
from pgbus.engine.insights import counts, runs
from pgbus.engine.insights.stuck import StuckReason
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.engine.insights.runs import RunFilter, RunSummary, Tab
    from pgbus.engine.storage.database import Connection

PAGE_SIZE = 25
#: So many names are offered to choose from.
_MOST_CLASSES = 200

#: Each tab with its word and, where it is a state, that state's icon.
_TABS: tuple[tuple[Tab, str, str | None], ...] = (
    ("ongoing", pgettext("tab: runs", "Ongoing"), None),
    (RunStatus.READY, pgettext("tab: runs", "Ready"), "ready"),
    (RunStatus.PERFORMING, pgettext("tab: runs", "Performing"), "performing"),
    (RunStatus.WAITING, pgettext("tab: runs", "Waiting"), "waiting"),
    (RunStatus.PAUSED, pgettext("tab: runs", "Paused"), "paused"),
    (RunStatus.FINISHED, pgettext("tab: runs", "Finished"), "finished"),
    (RunStatus.CANCELLED, pgettext("tab: runs", "Cancelled"), "cancelled"),
    ("all", pgettext("tab: runs", "All"), None),
)

#: The filters in the order in which they are shown, each with its word.
_FILTERS = {
    "workflow_class": pgettext("filter", "class"),
    "current_step": pgettext("filter", "step"),
    "error_class": pgettext("filter", "error"),
    "stuck": pgettext("filter", "stuck"),
    "held": pgettext("filter", "once resumed"),
    "subject_type": pgettext("filter", "subject type"),
    "subject_id": pgettext("filter", "subject id"),
    "workflow_id": pgettext("filter", "workflow id"),
    "created_from": pgettext("filter", "created from"),
    "created_to": pgettext("filter", "created before"),
    "ended_from": pgettext("filter", "ended from"),
    "ended_to": pgettext("filter", "ended before"),
}

_MOMENTS = tuple(name for name in _FILTERS if name.endswith(("_from", "_to")))


@dataclass(frozen=True, slots=True)
class TabLink:
    """One status to look at, and how many runs have it."""

    label: str
    icon: str | None
    count: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is set, and the list without it."""

    label: str
    value: str
    without: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run of the list."""

    workflow_id: str
    href: str
    short_id: Markup
    state: Markup
    sentence: Markup
    because: str | None
    class_name: Markup
    subject: str | None
    subject_href: str | None
    step: Markup
    place: Markup | str
    started: Markup
    last_activity: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowsPage:
    """What the list shows."""

    template: ClassVar[str] = "workflows.html"

    title: str
    tabs: tuple[TabLink, ...]
    chips: tuple[Chip, ...]
    clear: str
    fields: dict[str, str]
    exact: frozenset[str]
    status: str
    classes: tuple[str, ...]
    stuck_reasons: tuple[tuple[str, str], ...]
    runs: tuple[RunLine, ...]
    bounds: str
    pager: Pager
    everywhere: str | None
    untouched: bool
    start_example: str


def load(
    connection: Connection,
    viewer: Viewer,
    wanted: RunFilter,
    *,
    after: str | None,
    before: str | None,
) -> WorkflowsPage:
    """Return the page of the runs that match, next to a cursor of another page or the newest."""
    words = viewer.words
    found = runs.page(
        connection, viewer.settings, wanted, limit=PAGE_SIZE, after=after, before=before
    )
    numbers = runs.status_counts(connection, viewer.settings, wanted, cap=COUNT_CAP)
    known = tuple(sorted(counts.known_classes(connection)))[:_MOST_CLASSES]
    given = query_of(wanted)
    label = next(word for key, word, _icon in _TABS if key == wanted.status)
    return WorkflowsPage(
        title=words.gettext(label),
        tabs=_tabs(viewer, wanted, numbers),
        chips=_chips(viewer, wanted),
        clear=viewer.url("workflows", status=given.get("status")),
        fields=_fields(viewer, wanted),
        exact=_exact(viewer, wanted),
        status=wanted.status,
        classes=known,
        stuck_reasons=tuple(
            (reason.value, words.gettext(word)) for reason, word in STUCK_WORDS.items()
        ),
        runs=tuple(line_of(run, viewer) for run in found.runs),
        bounds=words.gettext(
            "Newest first, %(shown)s of %(all)s on this page",
            shown=words.number(len(found.runs)),
            all=words.count(numbers[wanted.status]),
        ),
        pager=pager(
            functools.partial(viewer.url, "workflows", **given),
            moved=bool(after or before),
            newer=found.newer,
            older=found.older,
        ),
        everywhere=_everywhere(viewer, given, numbers, wanted),
        untouched=not numbers["all"] and len(given) <= 1,
        start_example=f"{sentences.short(known[0])}.start(...)"
        if known
        else "OrderWorkflow.start(order)",
    )


def line_of(run: RunSummary, viewer: Viewer) -> RunLine:
    """Return a run as a line of the list."""
    words, told = viewer.words, status(run)
    href = viewer.url("run", workflow_id=run.workflow_id)
    sentence = sentences.rendered(told.sentence, words, viewer.url)
    return RunLine(
        workflow_id=run.workflow_id,
        href=href,
        short_id=marks.short_id(run.workflow_id),
        state=marks.badge(words.gettext(told.badge.word), told.badge.tone, told.badge.icon),
        # One that has a link inside cannot be a link itself; the run's id still is.
        sentence=sentence if told.sentence.links else marks.link(href, sentence),
        because=told.because,
        class_name=marks.class_name(run.workflow_class),
        subject=subjects.named(run),
        subject_href=subjects.href(run, viewer),
        step=code(run.current_step),
        place=place(run, told.badge.tone, words),
        started=words.ago(run.created_at),
        last_activity=words.ago(run.updated_at),
    )


def query_of(wanted: RunFilter) -> dict[str, str]:
    """Return the filter as the parameters of a URL."""
    given = {name: value for name, value in asdict(wanted).items() if value is not None}
    if given["status"] == "ongoing":
        del given["status"]
    return {
        name: _zulu(value) if isinstance(value, datetime) else str(value)
        for name, value in given.items()
    }


def _zulu(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _tabs(viewer: Viewer, wanted: RunFilter, numbers: dict[Tab, int]) -> tuple[TabLink, ...]:
    words = viewer.words
    return tuple(
        TabLink(
            words.gettext(label),
            icon,
            words.count(numbers[key]),
            viewer.url("workflows", **query_of(replace(wanted, status=key))),
            key == wanted.status,
        )
        for key, label, icon in _TABS
    )


def _chips(viewer: Viewer, wanted: RunFilter) -> tuple[Chip, ...]:
    fields = _fields(viewer, wanted)
    return tuple(
        Chip(
            viewer.words.gettext(label),
            _told(viewer, name, getattr(wanted, name)),
            viewer.url("workflows", **{**query_of(wanted), name: None}),
        )
        for name, label in _FILTERS.items()
        if fields[name]
    )


def _told(viewer: Viewer, name: str, value: str | datetime) -> str:
    if isinstance(value, datetime):
        return moment_text(value, viewer.words.zone).replace("T", " ")
    if name == "stuck":
        return viewer.words.gettext(STUCK_WORDS[StuckReason(value)])
    if name == "held":
        return viewer.words.gettext(HELD_WORDS[value])
    return value


def _fields(viewer: Viewer, wanted: RunFilter) -> dict[str, str]:
    """Return each filter as its form field shows it; moments in the zone of the page."""
    zone = viewer.words.zone
    return {
        name: (_wall(value, zone) or value.astimezone(zone).isoformat())
        if isinstance(value, datetime)
        else str(value or "")
        for name, value in asdict(wanted).items()
        if name in _FILTERS
    }


def _exact(viewer: Viewer, wanted: RunFilter) -> frozenset[str]:
    """Return the filters whose moment no field for date and time can hold."""
    values = ((name, getattr(wanted, name)) for name in _MOMENTS)
    return frozenset(
        name for name, value in values if value and not _wall(value, viewer.words.zone)
    )


def _wall(moment: datetime, zone: ZoneInfo) -> str | None:
    """Return the moment as a field for date and time has it; None where that is not the very moment."""
    text = moment_text(moment, zone)
    return text if datetime.fromisoformat(text).replace(tzinfo=zone) == moment else None


def _everywhere(
    viewer: Viewer, given: dict[str, str], numbers: dict[Tab, int], wanted: RunFilter
) -> str | None:
    """Return the list of all statuses when this one is empty and that is not."""
    if numbers[wanted.status] or not numbers["all"]:
        return None
    return viewer.url("workflows", **(given | {"status": "all"}))
