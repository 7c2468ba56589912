"""The list of batches, and one batch with its members."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.presenters import batches as batch_words
from pgbus.dashboard.presenters import documents
from pgbus.dashboard.presenters.pager import Pager, pager
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.words import COUNT_CAP, pgettext
from pgbus.engine.insights import batches
from pgbus.engine.insights.batches import BatchFilter
from pgbus.engine.states import MemberStatus

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.batches import Progress
    from pgbus.dashboard.presenters.status import Badge
    from pgbus.engine.insights.batches import BatchDetail, BatchSummary, Failures, Member
    from pgbus.engine.insights.documents import Document
    from pgbus.engine.storage.database import Connection

PAGE_SIZE = 25
_MOST_FAILURES = 20
#: Bytes of properties that stand on a batch's page unasked.
_INLINE = 2_000

_TABS = {
    BatchFilter.ALL: pgettext("tab: batches", "All"),
    BatchFilter.OPEN: pgettext("tab: batches", "In progress"),
    BatchFilter.FINISHED: pgettext("tab: batches", "Ended"),
    BatchFilter.FAILED: pgettext("tab: batches", "With failed jobs"),
}
_OUTCOMES = {
    None: pgettext("tab: jobs", "All"),
    MemberStatus.OPEN: pgettext("tab: jobs", "Open"),
    MemberStatus.COMPLETED: pgettext("tab: jobs", "Completed"),
    MemberStatus.DISCARDED: pgettext("tab: jobs", "Discarded"),
    MemberStatus.DEAD_LETTERED: pgettext("tab: jobs", "Dead-lettered"),
}


@dataclass(frozen=True, slots=True)
class Tab:
    """One part of the list to look at; `count` where it is known."""

    label: str
    count: str | None
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class RunLink:
    """The run that waits or waited for a batch; deleted ones have no class and no page."""

    href: str
    workflow_class: str | None
    workflow_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """One batch of the list."""

    batch_id: str
    href: str
    badge: Badge
    sentence: Markup
    title: Markup
    properties: str | None
    progress: Progress
    run: RunLink | None
    created: Markup
    finished: Markup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesPage:
    """What the list shows."""

    template: ClassVar[str] = "batches.html"

    title: str
    opening: Markup
    tabs: tuple[Tab, ...]
    batches: tuple[BatchLine, ...]
    pager: Pager
    everywhere: str | None


@dataclass(frozen=True, slots=True)
class FailureLine:
    """Which jobs failed, how, and how often."""

    job: str
    badge: Badge
    count: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLine:
    """One job of the batch."""

    number: str
    key: int
    job: str
    queue: str
    badge: Badge
    ended: Markup | None


@dataclass(frozen=True, slots=True)
class Callback:
    """A job that is sent when the batch ends; `when` says in which case."""

    when: str
    job: str


@dataclass(frozen=True, slots=True)
class Properties:
    """What the batch was opened with; `text` is None for more than a page shows unasked."""

    text: str | None
    size: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPage:
    """What the page of one batch shows."""

    template: ClassVar[str] = "batch.html"

    batch_id: str
    badge: Badge
    sentence: Markup
    consequence: str | None
    title: Markup
    description: str | None
    progress: Progress
    run: RunLink | None
    created: Markup
    finished: Markup | None
    callbacks: tuple[Callback, ...]
    properties: Properties
    failures: tuple[FailureLine, ...]
    tabs: tuple[Tab, ...]
    members: tuple[MemberLine, ...]
    pager: Pager


def load(
    connection: Connection,
    viewer: Viewer,
    wanted: BatchFilter,
    *,
    after: str | None,
    before: str | None,
) -> BatchesPage:
    """Return the page of the batches next to a cursor of another page, or the newest."""
    words = viewer.words
    found = batches.page(connection, wanted, limit=PAGE_SIZE, after=after, before=before)
    opened = batches.open_batches(connection, cap=COUNT_CAP)
    chosen = {"show": None if wanted is BatchFilter.ALL else wanted}
    return BatchesPage(
        title=words.gettext(_TABS[wanted]),
        opening=batch_words.opening(opened, words),
        tabs=tuple(
            Tab(
                words.gettext(label),
                words.count(opened.number) if key is BatchFilter.OPEN else None,
                viewer.url("batches", show=None if key is BatchFilter.ALL else key),
                key is wanted,
            )
            for key, label in _TABS.items()
        ),
        batches=tuple(_line(batch, viewer) for batch in found.batches),
        pager=pager(
            functools.partial(viewer.url, "batches", **chosen),
            moved=bool(after or before),
            newer=found.newer,
            older=found.older,
        ),
        everywhere=None if wanted is BatchFilter.ALL else viewer.url("batches"),
    )


def load_one(
    connection: Connection,
    viewer: Viewer,
    batch_id: str,
    outcome: MemberStatus | None,
    *,
    whole: bool,
    after: int | None,
    before: int | None,
) -> BatchPage:
    """Return the page of one batch; `whole` shows its properties however large they are."""
    words = viewer.words
    detail = batches.detail(connection, batch_id, inline=None if whole else _INLINE)
    batch = detail.batch
    members = batches.members(
        connection,
        batch.batch_id,
        (outcome,) if outcome else tuple(MemberStatus),
        limit=PAGE_SIZE,
        after=after,
        before=before,
    )
    here = {"batch_id": batch.batch_id, "outcome": outcome}
    return BatchPage(
        batch_id=batch.batch_id,
        badge=batch_words.badge(batch),
        sentence=batch_words.sentence(batch, words),
        consequence=batch_words.consequence(batch, words),
        title=batch_words.title(batch, words),
        description=batch.description,
        progress=batch_words.progress(batch, words),
        run=_run(batch, viewer),
        created=words.ago(batch.created_at),
        finished=words.ago(batch.finished_at) if batch.finished_at else None,
        callbacks=_callbacks(detail, viewer),
        properties=_properties(batch, viewer),
        failures=tuple(
            _failure(one, viewer)
            for one in batches.failures(connection, batch.batch_id, limit=_MOST_FAILURES)
        ),
        tabs=_outcomes(batch, outcome, viewer),
        members=tuple(_member(member, viewer) for member in members.members),
        pager=pager(
            functools.partial(viewer.url, "batch", **here),
            moved=bool(after or before),
            newer=members.newer,
            older=members.older,
        ),
    )


def _line(batch: BatchSummary, viewer: Viewer) -> BatchLine:
    words = viewer.words
    return BatchLine(
        batch_id=batch.batch_id,
        href=viewer.url("batch", batch_id=batch.batch_id),
        badge=batch_words.badge(batch),
        sentence=batch_words.sentence(batch, words),
        title=batch_words.title(batch, words),
        properties=None if batch.run else _told(batch.properties),
        progress=batch_words.progress(batch, words),
        run=_run(batch, viewer),
        created=words.ago(batch.created_at),
        finished=words.ago(batch.finished_at) if batch.finished_at else None,
    )


def _told(properties: Document) -> str | None:
    return None if properties.encoded == "{}" else properties.encoded


def _run(batch: BatchSummary, viewer: Viewer) -> RunLink | None:
    run = batch.run
    if run is None:
        return None
    workflow_class = short(run.workflow_class) if run.workflow_class else None
    href = viewer.url("run", workflow_id=run.workflow_id)
    return RunLink(href, workflow_class, run.workflow_id)


def _callbacks(detail: BatchDetail, viewer: Viewer) -> tuple[Callback, ...]:
    gettext = viewer.words.gettext
    named = (
        (gettext("At the end"), detail.on_complete),
        (gettext("When all are done"), detail.on_success),
        (gettext("When any failed"), detail.on_failure),
    )
    return tuple(Callback(when, job) for when, job in named if job)


def _properties(batch: BatchSummary, viewer: Viewer) -> Properties:
    stored = batch.properties
    return Properties(
        documents.readable(stored.encoded) if stored.encoded is not None else None,
        documents.size(stored.size, viewer.words),
        viewer.url("batch", batch_id=batch.batch_id, properties="all"),
    )


def _failure(failures: Failures, viewer: Viewer) -> FailureLine:
    return FailureLine(
        failures.job, batch_words.MEMBERS[failures.status], viewer.words.number(failures.members)
    )


def _outcomes(batch: BatchSummary, outcome: MemberStatus | None, viewer: Viewer) -> tuple[Tab, ...]:
    words = viewer.words
    counts = {
        None: batch.total_jobs,
        MemberStatus.OPEN: batch.open_jobs,
        MemberStatus.COMPLETED: batch.completed_jobs,
        MemberStatus.DISCARDED: batch.discarded_jobs,
        MemberStatus.DEAD_LETTERED: batch.dead_lettered_jobs,
    }
    return tuple(
        Tab(
            words.gettext(_OUTCOMES[status]),
            words.number(number),
            viewer.url("batch", batch_id=batch.batch_id, outcome=status),
            status is outcome,
        )
        for status, number in counts.items()
    )


def _member(member: Member, viewer: Viewer) -> MemberLine:
    words = viewer.words
    return MemberLine(
        number=words.number(member.number),
        key=member.number,
        job=member.job,
        queue=member.queue,
        badge=batch_words.MEMBERS[member.status],
        ended=words.ago(member.ended_at) if member.ended_at else None,
    )
