"""Processes as people know them, and what each does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import _
from pgbus.engine.insights.processes import DISPATCHER, SUPERVISOR, WORKER

if TYPE_CHECKING:
    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.processes import Fleet, Process

_HEALTHY = Badge(_("Healthy"), "good", "finished")
_SILENT = Badge(_("Silent"), "bad", "stalled")

_KINDS = {WORKER: _("worker"), DISPATCHER: _("dispatcher"), SUPERVISOR: _("supervisor")}


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


def occupation(process: Process, words: Words) -> tuple[str, ...]:
    """Say what a process does beside the attempt that is shown, if one is."""
    if process.kind == SUPERVISOR:
        return (
            words.ngettext(
                "watches %(num)s process", "watches %(num)s processes", process.children
            ),
        )
    if process.kind == DISPATCHER:
        return (words.gettext("timer and sweep"),)
    more = process.running - len(process.attempts)
    told = []
    if more:
        told.append(words.ngettext("%(num)s more run", "%(num)s more runs", more))
    if process.jobs:
        told.append(words.ngettext("%(num)s job", "%(num)s jobs", process.jobs))
    if not told and not process.attempts:
        told.append(words.gettext("nothing"))
    return tuple(told)
