"""Jobs: those that wait in the queues, and those that failed and are tried again."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.pages import dialogs
from pgbus.dashboard.pages.messages import verbs_of
from pgbus.dashboard.pages.narrowing import Narrowing, narrowing, query_of
from pgbus.dashboard.pages.queues import MessageLine, message_line
from pgbus.dashboard.presenters import job_actions
from pgbus.dashboard.presenters import messages as message_words
from pgbus.dashboard.presenters.job_actions import JobVerb
from pgbus.dashboard.presenters.pager import Pager, pager
from pgbus.dashboard.words import COUNT_CAP, pgettext
from pgbus.engine.insights import jobs
from pgbus.engine.insights.jobs import JobFilter
from pgbus.engine.insights.messages import MessageState
from pgbus.engine.jobs.bulk import Press

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.confirmations import Ask, Confirmation
    from pgbus.dashboard.presenters.job_actions import BulkPress, JobPress
    from pgbus.dashboard.presenters.status import Badge
    from pgbus.engine.insights.jobs import FailedJob
    from pgbus.engine.insights.messages import Message
    from pgbus.engine.storage.database import Connection

PAGE_SIZE = 25


class JobsShown(StrEnum):
    """Which jobs to list."""

    ENQUEUED = auto()
    FAILED = auto()


_LABELS = {
    JobsShown.ENQUEUED: pgettext("tab: jobs", "Enqueued"),
    JobsShown.FAILED: pgettext("tab: jobs", "Failed"),
}
#: What can be filtered by in each list.
_FILTERS = {
    JobsShown.ENQUEUED: ("queue", "job"),
    JobsShown.FAILED: ("queue", "job", "error_class"),
}
_PRESSES = {
    JobsShown.ENQUEUED: (Press.DISCARD_ENQUEUED,),
    JobsShown.FAILED: (Press.RETRY_FAILED, Press.DISCARD_FAILED),
}


@dataclass(frozen=True, slots=True)
class JobTab:
    """One of the lists; `count` where it is known."""

    label: str
    count: str | None
    href: str
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedLine:
    """A job that waits, and what can be done with it."""

    line: MessageLine
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLine:
    """A job that failed, why, and what can be done with it; `href` is None where its message is gone."""

    key: str
    name: Markup
    href: str | None
    badge: Badge
    error_class: str
    error: str | None
    queue: str
    tries: str
    failed: Markup
    next_try: Markup | None
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage:
    """What the list shows: `enqueued` or `failed` ones, never both."""

    template: ClassVar[str] = "jobs.html"

    title: str
    opening: Markup
    tabs: tuple[JobTab, ...]
    narrowing: Narrowing
    asks: tuple[Ask, ...]
    enqueued: tuple[EnqueuedLine, ...]
    failed: tuple[FailedLine, ...]
    pager: Pager
    dialog: Confirmation | None
    back: str


def load(
    connection: Connection,
    viewer: Viewer,
    shown: JobsShown,
    wanted: JobFilter,
    press: JobPress | BulkPress | None,
    *,
    after: str | None,
    before: str | None,
) -> JobsPage:
    """Return the page of the jobs that match; raise `QueueNotFound` and `BadCursor`."""
    words, settings = viewer.words, viewer.settings
    failing = jobs.count_failed(connection, cap=COUNT_CAP)
    counts = _counts(connection, viewer, failing) if wanted == JobFilter() else {}
    url = functools.partial(viewer.url, "jobs", **_kept(shown, wanted))
    here = functools.partial(url, after=after, before=before)
    enqueued, failed = tuple[EnqueuedLine, ...](), tuple[FailedLine, ...]()
    of = (connection, settings, wanted)
    if shown is JobsShown.ENQUEUED:
        page = jobs.enqueued(*of, limit=PAGE_SIZE, after=after, before=before)
        enqueued = tuple(_enqueued(message, viewer, here) for message in page.messages)
        newer, older = page.preceding, page.following
    else:
        found = jobs.failed(*of, limit=PAGE_SIZE, after=after, before=before)
        failed = tuple(_failed(job, viewer, here) for job in found.jobs)
        newer, older = found.newer, found.older
    return JobsPage(
        title=words.gettext(_LABELS[shown]),
        opening=_opening(failing, viewer),
        tabs=_tabs(shown, wanted, counts, viewer),
        narrowing=narrowing(connection, viewer, "jobs", wanted, _FILTERS[shown], show=_show(shown)),
        asks=job_actions.asks_all(_PRESSES[shown], wanted, viewer, url)
        if enqueued or failed or older
        else (),
        enqueued=enqueued,
        failed=failed,
        pager=pager(url, moved=bool(after or before), newer=newer, older=older),
        dialog=dialogs.dialog(connection, viewer, press) if press else None,
        back=here(),
    )


def _show(shown: JobsShown) -> JobsShown | None:
    return None if shown is JobsShown.ENQUEUED else shown


def _kept(shown: JobsShown, wanted: JobFilter) -> dict[str, str | None]:
    return {"show": _show(shown), **query_of(wanted)}


def _opening(failing: int, viewer: Viewer) -> Markup:
    words = viewer.words
    if not failing:
        return words.rich("No job has failed and waits to be tried again.")
    return words.nrich(
        "<strong>%(count)s job has failed</strong> and is tried again by itself; after its last try it is "
        "a dead letter.",
        "<strong>%(count)s jobs have failed</strong> and are tried again by themselves; after its last try "
        "each is a dead letter.",
        failing,
        count=words.count(failing),
    )


def _counts(connection: Connection, viewer: Viewer, failing: int) -> dict[JobsShown, str]:
    """Return how many are in each list; nothing of the enqueued where only steps of runs were looked at."""
    counts = {JobsShown.FAILED: viewer.words.count(failing)}
    enqueued = jobs.count_enqueued(connection, viewer.settings, cap=COUNT_CAP)
    if enqueued.number or not enqueued.at_least:
        counts[JobsShown.ENQUEUED] = viewer.words.count(enqueued.number, at_least=enqueued.at_least)
    return counts


def _tabs(
    shown: JobsShown, wanted: JobFilter, counts: Mapping[JobsShown, str], viewer: Viewer
) -> tuple[JobTab, ...]:
    """Return both lists; what is filtered nobody counted."""
    return tuple(
        JobTab(
            viewer.words.gettext(label),
            counts.get(one),
            viewer.url(
                "jobs",
                **_kept(one, JobFilter(**{name: getattr(wanted, name) for name in _FILTERS[one]})),
            ),
            one is shown,
        )
        for one, label in _LABELS.items()
    )


def _enqueued(message: Message, viewer: Viewer, here: Callable[..., str]) -> EnqueuedLine:
    return EnqueuedLine(
        line=message_line(message, viewer),
        asks=job_actions.asks(
            verbs_of(message), message_words.key(message), message.read_count, viewer, here
        ),
    )


def _failed(failed: FailedJob, viewer: Viewer, here: Callable[..., str]) -> FailedLine:
    words = viewer.words
    return FailedLine(
        key=message_words.key(failed),
        name=message_words.name(failed.job, words),
        href=None
        if failed.state is None
        else viewer.url("message", queue=failed.queue, number=failed.message_id),
        badge=message_words.failed_badge(failed),
        error_class=failed.error_class,
        error=message_words.summary(failed.error_message, viewer),
        queue=failed.queue,
        tries=words.number(failed.read_count),
        failed=words.ago(failed.failed_at),
        next_try=message_words.next_try(failed, words),
        asks=job_actions.asks(
            _verbs_of(failed), message_words.key(failed), failed.read_count, viewer, here
        ),
    )


def _verbs_of(failed: FailedJob) -> tuple[JobVerb, ...]:
    match failed.state:
        case MessageState.IN_HAND:
            return ()
        case MessageState.RETRYING:
            return (JobVerb.RETRY, JobVerb.DISCARD)
    return (JobVerb.DISCARD,)
