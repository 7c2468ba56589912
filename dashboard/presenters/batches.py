"""Batches in words: how far one is, what happens when it ends, how its members did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgbus.dashboard.presenters.sentences import short
from pgbus.dashboard.presenters.status import Badge
from pgbus.dashboard.words import code, foreign, pgettext
from pgbus.engine.states import MemberStatus

if TYPE_CHECKING:
    from markupsafe import Markup

    from pgbus.dashboard.words import Words
    from pgbus.engine.insights.batches import BatchSummary, OpenBatches

_OPEN = Badge(pgettext("batch status", "In progress"), "runs", "performing")
_FAILING = Badge(pgettext("batch status", "In progress, jobs failed"), "warn", "attention")
_WITHDRAWN = Badge(pgettext("batch status", "Withdrawn"), "idle", "cancelled")
_DONE = Badge(pgettext("batch status", "Done"), "good", "finished")
_FAILED = Badge(pgettext("batch status", "Ended, jobs failed"), "bad", "failed")

#: A member's state as a badge.
MEMBERS = {
    MemberStatus.OPEN: Badge(pgettext("job status", "Open"), "idle", "ready"),
    MemberStatus.COMPLETED: Badge(pgettext("job status", "Completed"), "good", "finished"),
    MemberStatus.DISCARDED: Badge(pgettext("job status", "Discarded"), "bad", "cancelled"),
    MemberStatus.DEAD_LETTERED: Badge(pgettext("job status", "Dead-lettered"), "bad", "failed"),
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a batch is done and how much failed, as parts of a bar of 100; `told` says it."""

    done: str
    failed: str
    told: str


def badge(batch: BatchSummary) -> Badge:
    """Return how the batch stands."""
    if batch.withdrawn_at:
        return _WITHDRAWN
    if batch.finished_at:
        return _FAILED if batch.failed_jobs else _DONE
    return _FAILING if batch.failed_jobs else _OPEN


def title(batch: BatchSummary, words: Words) -> Markup:
    """Return what the batch is called: by its run's class and step, or as its author described it."""
    run = batch.run
    if run and run.workflow_class and run.step_name:
        return code(f"{short(run.workflow_class)}#{run.step_name}")
    if batch.description:
        return foreign(batch.description)
    return words.rich("Batch without a description")


def sentence(batch: BatchSummary, words: Words) -> Markup:
    """Say how far the batch is, or how it ended."""
    total, failed = batch.total_jobs, batch.failed_jobs
    parts = {
        "done": words.number(batch.completed_jobs),
        "failed": words.number(failed),
        "open": words.number(batch.open_jobs),
        "time": words.since(batch.created_at)
        if batch.finished_at is None
        else words.duration((batch.finished_at - batch.created_at).total_seconds()),
    }
    if not total:
        return words.rich("It has no jobs.")
    if batch.withdrawn_at and batch.open_jobs:
        return words.nrich(
            "Its run no longer waits: %(open)s of %(num)s job is still to end.",
            "Its run no longer waits: %(open)s of %(num)s jobs are still to end.",
            total,
            **parts,
        )
    if batch.open_jobs and failed:
        return words.nrich(
            "%(done)s of %(num)s job done, %(failed)s failed, in %(time)s so far.",
            "%(done)s of %(num)s jobs done, %(failed)s failed, in %(time)s so far.",
            total,
            **parts,
        )
    if batch.open_jobs:
        return words.nrich(
            "%(done)s of %(num)s job done, in %(time)s so far.",
            "%(done)s of %(num)s jobs done, in %(time)s so far.",
            total,
            **parts,
        )
    if failed:
        return words.nrich(
            "%(failed)s of %(num)s job failed, after %(time)s.",
            "%(failed)s of %(num)s jobs failed, all had ended after %(time)s.",
            total,
            **parts,
        )
    return words.nrich(
        "Its job was done after %(time)s.",
        "All %(num)s jobs were done after %(time)s.",
        total,
        **parts,
    )


def consequence(batch: BatchSummary, words: Words) -> str | None:
    """Say what the end of the batch sets going; None when that is over, or nothing."""
    if batch.finished_at:
        return None
    if not batch.open_jobs:
        return words.gettext("Every job has ended; the next sweep finishes the batch.")
    if batch.withdrawn_at:
        return words.gettext("Jobs that were not delivered yet are discarded on delivery.")
    if batch.run:
        return words.gettext("Its run goes on when the last job has ended.")
    return None


def progress(batch: BatchSummary, words: Words) -> Progress:
    """Return the batch as a bar."""
    whole = batch.total_jobs or 1
    return Progress(
        f"{100 * batch.completed_jobs / whole:.1f}",
        f"{100 * batch.failed_jobs / whole:.1f}",
        words.gettext(
            "Done: %(done)s, failed: %(failed)s, open: %(open)s",
            done=words.number(batch.completed_jobs),
            failed=words.number(batch.failed_jobs),
            open=words.number(batch.open_jobs),
        ),
    )


def opening(found: OpenBatches, words: Words) -> Markup:
    """Say how many batches are open, and in how many of them jobs have failed."""
    if not found.number:
        return words.rich("No batch is open.")
    opened = {"count": words.count(found.number), "failing": words.count(found.failing)}
    if found.failing:
        return words.nrich(
            "%(count)s batch is open, and some of its jobs have failed.",
            "%(count)s batches are open; in %(failing)s of them jobs have failed.",
            found.number,
            **opened,
        )
    return words.nrich(
        "%(count)s batch is open, and none of its jobs has failed.",
        "%(count)s batches are open, and none of their jobs has failed.",
        found.number,
        **opened,
    )
