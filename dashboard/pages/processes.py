"""The processes that serve the bus, and what each has in hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.presenters import health as health_words
from pgbus.dashboard.presenters import messages
from pgbus.dashboard.presenters import processes as process_words
from pgbus.dashboard.presenters.sentences import short
from pgbus.engine.insights import health, processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.health import HintLine
    from pgbus.dashboard.presenters.status import Badge
    from pgbus.engine.insights.processes import Process
    from pgbus.engine.storage.database import Connection

#: Of more processes the silent, and then so many, are listed; of what each has in hand so much.
MOST = 100
_FEW = 5


@dataclass(frozen=True, slots=True)
class InHand:
    """Something that a worker executes, where it is shown, and since when."""

    href: str
    name: Markup | str
    step: str | None
    since: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLine:
    """One process; `does` is what one does that is no worker, `rest` how much more one has in hand.

    `silent` says of one that does not beat how far what it has in hand is known.
    """

    process_id: str
    name: str
    kind: str
    badge: Badge
    heartbeat: Markup
    started: Markup
    revision: str | None
    queues: tuple[str, ...]
    in_hand: tuple[InHand, ...]
    does: str | None
    rest: str | None
    silent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesPage:
    """What the page shows."""

    template: ClassVar[str] = "processes.html"

    opening: Markup
    hints: tuple[HintLine, ...]
    processes: tuple[ProcessLine, ...]
    more: str | None


def load(connection: Connection, viewer: Viewer) -> ProcessesPage:
    """Return the processes, those that went silent first."""
    words = viewer.words
    fleet = processes.fleet(connection, viewer.settings, limit=MOST, few=_FEW)
    more = process_words.size(fleet) - len(fleet.processes)
    return ProcessesPage(
        opening=process_words.opening(fleet, words),
        hints=health_words.lines(
            health.hints(connection, viewer.settings, health_words.OF_PROCESSES), words
        ),
        processes=tuple(_line(process, viewer) for process in fleet.processes),
        more=words.ngettext("And %(num)s more.", "And %(num)s more.", more) if more > 0 else None,
    )


def _line(process: Process, viewer: Viewer) -> ProcessLine:
    words = viewer.words
    return ProcessLine(
        process_id=process.process_id,
        name=process_words.name(process),
        kind=process_words.kind(process, words),
        badge=process_words.badge(process),
        heartbeat=words.ago(process.heartbeat_at),
        started=words.ago(process.started_at),
        revision=process.revision,
        queues=process.queues,
        in_hand=tuple(_in_hand(process, viewer)),
        does=process_words.beside_work(process, words),
        rest=process_words.rest(process, words),
        silent=words.gettext("as of its last heartbeat") if not process.alive else None,
    )


def _in_hand(process: Process, viewer: Viewer) -> Iterator[InHand]:
    words, url = viewer.words, viewer.url
    for attempt in process.attempts:
        href = url("run", workflow_id=attempt.workflow_id)
        name = short(attempt.workflow_class)
        yield InHand(href, name, attempt.step_name, words.since(attempt.started_at))
    for job in process.running_jobs:
        href = url("message", queue=job.queue, number=job.message_id)
        yield InHand(href, messages.name(job.job, words), None, words.since(job.started_at))
