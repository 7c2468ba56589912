"""Processes as people know them, and what each does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import code, pgettext
from pgbus.engine.insights.processes import DISPATCHER, SUPERVISOR, WORKER

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.processes import Fleet, Process

_HEALTHY = Badge(pgettext("process status", "Healthy"), "good", "finished")
_SILENT = Badge(pgettext("process status", "Silent"), "bad", "stalled")

_KINDS = {
    WORKER: pgettext("kind", "worker"),
    DISPATCHER: pgettext("kind", "dispatcher"),
    SUPERVISOR: pgettext("kind", "supervisor"),
}


def name(process: Process) -> str:
    """Return how a process is called on the trail, too."""
    return f"{process.host}:{process.pid}"


def kind(process: Process, words: Words) -> str:
    """Return what sort of process it is; one that only a newer pgbus knows by its own name."""
    return words.gettext(_KINDS.get(process.kind, process.kind))


def badge(process: Process) -> Badge:
    """Return whether a process beats."""
    return _HEALTHY if process.alive else _SILENT


def size(fleet: Fleet) -> int:
    """Return how many processes there are, silent ones too."""
    return sum(fleet.alive.values()) + sum(fleet.silent.values())


def opening(fleet: Fleet, words: Words) -> Markup:
    """Say that all processes beat, or which went silent first."""
    if fleet.silent:
        return silence(fleet, words)
    total = size(fleet)
    if not total:
        return words.rich("No process serves this bus: runs and jobs wait.")
    return words.nrich(
        "%(num)s process serves this bus; its heartbeat is seconds old.",
        "%(num)s processes serve this bus; every heartbeat is seconds old.",
        total,
    )


def silence(fleet: Fleet, words: Words) -> Markup:
    """Say which process went silent first, or how many did."""
    first, number = fleet.processes[0], sum(fleet.silent.values())
    return words.nrich(
        "%(process)s went silent %(time)s.",
        "%(num)s processes went silent, the first %(time)s.",
        number,
        process=code(name(first)),
        time=words.ago(first.heartbeat_at),
    )


def occupation(process: Process, words: Words) -> tuple[str, ...]:
    """Say what a process does beside the attempt that is shown, if one is."""
    if other := beside_work(process, words):
        return (other,)
    more = process.running - len(process.attempts)
    told = []
    if more:
        told.append(words.ngettext("%(num)s more run", "%(num)s more runs", more))
    if process.jobs:
        told.append(words.ngettext("%(num)s job", "%(num)s jobs", process.jobs))
    if not told and not process.attempts:
        told.append(words.gettext("nothing"))
    return tuple(told)


def beside_work(process: Process, words: Words) -> str | None:
    """Say what a process that is no worker does; None for a worker."""
    if process.kind == SUPERVISOR:
        return words.ngettext(
            "watches %(num)s process", "watches %(num)s processes", process.children
        )
    return words.gettext("timer and sweep") if process.kind == DISPATCHER else None


def rest(process: Process, words: Words) -> str | None:
    """Say how much more a worker has in hand than is listed; None where that is all."""
    listed = len(process.attempts) + len(process.running_jobs)
    more = process.running + process.jobs - listed
    return words.ngettext("and %(num)s more", "and %(num)s more", more) if more > 0 else None
