"""Home: one verdict, then the figures, the queues and the processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pgbus.dashboard.presenters import health as health_words
from pgbus.dashboard.presenters import home
from pgbus.dashboard.presenters import processes as process_words
from pgbus.dashboard.presenters import queues as queue_words
from pgbus.dashboard.presenters import throughput as throughput_words
from pgbus.dashboard.presenters.home import Figures
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import STUCK_WORDS
from pgbus.dashboard.words import COUNT_CAP
from pgbus.engine.definition import registry
from pgbus.engine.insights import health, processes, queues, runs, stuck, throughput
from pgbus.engine.insights.runs import RunFilter
from pgbus.engine.states import RunStatus

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.console import Viewer
    from pgbus.dashboard.presenters.health import HintLine
    from pgbus.dashboard.presenters.home import Card
    from pgbus.dashboard.presenters.queues import QueueTotal
    from pgbus.dashboard.presenters.status import Badge
    from pgbus.dashboard.presenters.throughput import Bar
    from pgbus.engine.insights.processes import Process
    from pgbus.engine.storage.database import Connection

#: Of more queues and processes than these, the first are shown, and how many others there are.
_MOST_QUEUES = 50
_MOST_PROCESSES = 20
_MOST_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowsCard:
    """How many runs are ongoing; the others only where there are any."""

    ongoing: str
    href: str
    paused: str | None
    paused_href: str
    attention: str | None


@dataclass(frozen=True, slots=True)
class ThroughputCard:
    """The runs of the last hours: a small chart and what it shows, in words."""

    bars: tuple[Bar, ...]
    started: Markup
    ended: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """One logical queue."""

    name: str
    href: str
    badge: Badge
    visible: str
    in_flight: str
    later: str
    oldest: Markup | None


@dataclass(frozen=True, slots=True)
class AttemptLink:
    """An attempt that a process runs."""

    href: str
    workflow_class: str
    step_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLine:
    """One process, and what it runs."""

    process_id: str
    name: str
    kind: str
    badge: Badge
    heartbeat: Markup
    attempts: tuple[AttemptLink, ...]
    occupation: tuple[str, ...]
    revision: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HomePage:
    """What Home shows."""

    template: ClassVar[str] = "home.html"

    needs: str | None
    verdict: tuple[Markup, ...]
    hints: tuple[HintLine, ...]
    untouched: bool
    classes: tuple[str, ...]
    start_example: str
    workflows: WorkflowsCard
    queues_card: Card
    processes_card: Card
    dead_letters_card: Card
    throughput: ThroughputCard
    queues: tuple[QueueLine, ...]
    more_queues: str | None
    processes: tuple[ProcessLine, ...]
    more_processes: str | None


def load(connection: Connection, viewer: Viewer) -> HomePage:
    """Return the page, all its figures of one moment."""
    words, settings = viewer.words, viewer.settings
    numbers = runs.status_counts(connection, settings, RunFilter(), cap=COUNT_CAP)
    fleet = processes.fleet(connection, settings, limit=_MOST_PROCESSES, few=1)
    hours = throughput.last_hours(connection, words.zone, words.now)
    figures = Figures(
        attention=stuck.groups(connection, settings),
        ongoing=numbers["ongoing"],
        untouched=not numbers["all"],
        queues=queue_words.totals(
            queues.depths(connection, settings),
            fleet.served,
            queues.pauses(connection, settings),
        ),
        dead_letters=queues.dead_letters(connection, settings),
        fleet=fleet,
    )
    classes = sorted({short(definition.name) for definition in registry.definitions()})
    return HomePage(
        needs=home.needs(figures.attention, words),
        verdict=home.verdict(figures, _why(figures, viewer), words),
        hints=health_words.lines(health.hints(connection, settings, health_words.OF_HOME), words),
        untouched=figures.untouched,
        classes=tuple(classes[:_MOST_CLASSES]),
        start_example=f"{classes[0] if classes else 'OrderWorkflow'}.start(...)",
        workflows=_workflows(figures, numbers[RunStatus.PAUSED], viewer),
        queues_card=home.queues_card(figures.queues, words),
        processes_card=home.processes_card(fleet, words),
        dead_letters_card=home.dead_letters_card(figures.dead_letters, words),
        throughput=ThroughputCard(
            throughput_words.bars(hours, words),
            throughput_words.started(hours, words),
            throughput_words.ended(hours, words),
        ),
        queues=tuple(_queue(queue, viewer) for queue in figures.queues[:_MOST_QUEUES]),
        more_queues=_more(len(figures.queues) - _MOST_QUEUES, viewer),
        processes=tuple(_process(process, viewer) for process in fleet.processes),
        more_processes=_more(process_words.size(fleet) - len(fleet.processes), viewer),
    )


def _why(figures: Figures, viewer: Viewer) -> str | None:
    groups = figures.attention.groups
    return viewer.words.gettext(STUCK_WORDS[groups[0].key.reason]) if groups else None


def _workflows(figures: Figures, paused: int, viewer: Viewer) -> WorkflowsCard:
    words, total = viewer.words, figures.attention.total
    return WorkflowsCard(
        ongoing=words.ngettext(
            "%(count)s ongoing",
            "%(count)s ongoing",
            figures.ongoing,
            count=words.count(figures.ongoing),
        ),
        href=viewer.url("workflows"),
        paused=words.ngettext(
            "%(count)s paused", "%(count)s paused", paused, count=words.count(paused)
        )
        if paused
        else None,
        paused_href=viewer.url("workflows", status=RunStatus.PAUSED),
        attention=words.ngettext("%(num)s needs attention", "%(num)s need attention", total)
        if total
        else None,
    )


def _queue(queue: QueueTotal, viewer: Viewer) -> QueueLine:
    words = viewer.words
    return QueueLine(
        name=queue.name,
        href=viewer.url("queue", queue=queue.name),
        badge=queue_words.badge(queue, words.now),
        visible=words.count(queue.visible),
        in_flight=words.count(queue.in_flight),
        later=words.count(queue.later),
        oldest=words.since(queue.due_since) if queue.due_since else None,
    )


def _process(process: Process, viewer: Viewer) -> ProcessLine:
    words = viewer.words
    return ProcessLine(
        process_id=process.process_id,
        name=process_words.name(process),
        kind=process_words.kind(process, words),
        badge=process_words.badge(process),
        heartbeat=words.ago(process.heartbeat_at),
        attempts=tuple(
            AttemptLink(
                viewer.url("run", workflow_id=attempt.workflow_id),
                short(attempt.workflow_class),
                attempt.step_name,
            )
            for attempt in process.attempts
        ),
        occupation=process_words.occupation(process, words),
        revision=process.revision,
    )


def _more(number: int, viewer: Viewer) -> str | None:
    if number <= 0:
        return None
    return viewer.words.ngettext("And %(num)s more.", "And %(num)s more.", number)
