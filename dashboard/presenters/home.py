"""What Home says of the whole bus: who needs a person, what else is wrong, or that all moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters import processes, queues
from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.words import COUNT_CAP, _, code
from pgbus.engine.insights.processes import DISPATCHER, WORKER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from markupsafe import Markup

    from pgbus.dashboard.presenters.queues import QueueTotal
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.processes import Fleet
    from pgbus.engine.insights.queues import DeadLetters
    from pgbus.engine.insights.stuck import Attention, StuckGroup

_QUIET, _ALARM = "mute", "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What Home is made from, all of one moment; `untouched` when there never was a run."""

    attention: Attention
    ongoing: int
    untouched: bool
    queues: tuple[QueueTotal, ...]
    dead_letters: tuple[DeadLetters, ...]
    fleet: Fleet


@dataclass(frozen=True, slots=True)
class Card:
    """One figure in a few words, what qualifies it, and in which tone."""

    figure: str
    detail: Markup
    tone: str


def needs(attention: Attention, words: Words) -> str | None:
    """Say how many runs need a person; None when none does."""
    if not attention.total:
        return None
    return words.ngettext("%(num)s run needs you.", "%(num)s runs need you.", attention.total)


def verdict(figures: Figures, why: str | None, words: Words) -> tuple[Markup, ...]:
    """Say what stands behind the runs that need somebody, what else is wrong, or that all moves.

    `why` is the word for the reason of the biggest group.
    """
    if figures.untouched:
        return (words.rich("Nothing has run here yet."),)
    stuck, wrong = figures.attention, tuple(_wrong(figures, words))
    told = (*_cause(stuck, why, words), *wrong)
    if not told:
        return (_all_well(figures.ongoing, words),)
    # Beyond the cap nobody counted whether there are others.
    others = stuck.total <= COUNT_CAP and figures.ongoing > stuck.total
    if others and _moves(figures, words.now):
        return (*told, words.rich("Everything else moves."))
    return told


def _all_well(ongoing: int, words: Words) -> Markup:
    if not ongoing:
        return words.rich("No run is ongoing, and nothing needs you.")
    return words.nrich(
        "Everything moves: %(count)s run is ongoing, and it does not need you.",
        "Everything moves: %(count)s runs are ongoing, and none needs you.",
        ongoing,
        count=words.count(ongoing),
    )


def _cause(stuck: Attention, why: str | None, words: Words) -> Iterator[Markup]:
    """Say what most of the runs that need somebody have in common."""
    if not stuck.groups:
        return
    biggest = stuck.groups[0]
    if biggest.count == 1 < stuck.total:
        yield words.rich("Each has a cause of its own.")
        return
    yield words.rich(
        _share(biggest, stuck.total),
        count=words.number(biggest.count),
        workflow=code(short(biggest.key.workflow_class)),
        step=code(biggest.key.step_name),
        why=why,
        time=words.ago(biggest.first_at),
    )


def _share(biggest: StuckGroup, total: int) -> str:
    if total == 1:
        return _("%(workflow)s on %(step)s (%(why)s), %(time)s.")
    if biggest.count == total:
        return _("All of them: %(workflow)s on %(step)s (%(why)s), the first %(time)s.")
    if biggest.count * 2 > total:
        return _("Most of them: %(workflow)s on %(step)s (%(why)s), the first %(time)s.")
    return _("%(count)s of them: %(workflow)s on %(step)s (%(why)s), the first %(time)s.")


def _wrong(figures: Figures, words: Words) -> Iterator[Markup]:
    """Say what else is wrong, each in a sentence."""
    fleet = figures.fleet
    if fleet.silent:
        yield processes.silence(fleet, words)
    if not fleet.alive.get(WORKER):
        if figures.ongoing or any(queue.visible for queue in figures.queues):
            yield words.rich("No worker is running: nothing moves until one does.")
    else:
        yield from queues.trouble(figures.queues, words)
        if not fleet.alive.get(DISPATCHER):
            yield words.rich(
                "No dispatcher is running: deadlines pass unnoticed, and so do dead workers."
            )
    if letters := sum(one.messages for one in figures.dead_letters):
        yield words.nrich(
            "%(count)s dead letter waits for a decision.",
            "%(count)s dead letters wait for a decision.",
            letters,
            count=words.count(letters),
        )


def _moves(figures: Figures, now: datetime) -> bool:
    """Tell whether what needs nobody goes on."""
    return bool(figures.fleet.alive.get(WORKER)) and not any(
        queue.unread or queue.behind(now) or (queue.pause and queue.visible)
        for queue in figures.queues
    )


def queues_card(totals: Iterable[QueueTotal], words: Words) -> Card:
    """Return how many messages are due, and how long the first has waited."""
    found = tuple(totals)
    due = sum(queue.visible for queue in found)
    figure = words.ngettext("%(count)s due", "%(count)s due", due, count=words.count(due))
    waits = [(queue.due_since, queue) for queue in found if queue.due_since]
    if not waits:
        return Card(figure, words.rich("No message waits for a worker."), _QUIET)
    since, queue = min(waits, key=lambda one: one[0])
    detail = words.rich(
        "the first has waited %(time)s in %(queue)s",
        time=words.since(since),
        queue=code(queue.name),
    )
    return Card(figure, detail, _QUIET)


def processes_card(fleet: Fleet, words: Words) -> Card:
    """Return how many processes beat, and which went silent first."""
    total, silent = processes.size(fleet), sum(fleet.silent.values())
    if not total:
        return Card(words.gettext("No process"), words.rich("Nothing takes runs or jobs."), _QUIET)
    figure = words.ngettext(
        "%(alive)s of %(num)s healthy",
        "%(alive)s of %(num)s healthy",
        total,
        alive=words.number(total - silent),
    )
    if not silent:
        return Card(figure, words.rich("Every heartbeat is seconds old."), _QUIET)
    first = fleet.processes[0]
    detail = words.rich(
        "%(process)s silent for %(time)s",
        process=code(processes.name(first)),
        time=words.since(first.heartbeat_at),
    )
    return Card(figure, detail, _ALARM)


def dead_letters_card(letters: Iterable[DeadLetters], words: Words) -> Card:
    """Return how many messages were given up, and when the newest was."""
    found = tuple(letters)
    number = sum(one.messages for one in found)
    figure = words.ngettext(
        "%(count)s message", "%(count)s messages", number, count=words.count(number)
    )
    newest = [(one.newest_at, one) for one in found if one.newest_at]
    if not newest:
        return Card(figure, words.rich("No job was given up."), _QUIET)
    moment, last = max(newest, key=lambda one: one[0])
    detail = words.rich(
        "the newest %(time)s from %(queue)s", time=words.ago(moment), queue=code(last.logical)
    )
    return Card(figure, detail, _QUIET)
