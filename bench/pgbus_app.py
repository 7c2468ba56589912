"""The application that pgbus's side of every figure runs; its database is PGBUS_DATABASE_URL."""

from __future__ import annotations

from datetime import timedelta

from bench.probe import reached
from pgbus import FanOut, Pgbus, Workflow, fan_out, job, step

bus = Pgbus()


class ThreeSteps(Workflow):
    """The work of the drain."""

    @step
    def first(self) -> None:
        """Do nothing."""

    @step
    def second(self) -> None:
        """Do nothing."""

    @step
    def third(self) -> None:
        """Do nothing."""


class History(ThreeSteps):
    """The same, finished a million times before the loaded drain."""


class Probed(Workflow):
    """Says when its body runs."""

    @step
    def probe(self) -> None:
        """Report the moment."""
        reached()


class Signalled(Workflow):
    """Waits for a signal, then says when its body runs."""

    @step(wait_for="go")
    def probe(self) -> None:
        """Report the moment."""
        reached()


class Soon(Workflow):
    """Due in half a minute."""

    @step(wait=timedelta(seconds=30))
    def late(self) -> None:
        """Do nothing."""


class FarOff(Workflow):
    """Due in days: what two hundred thousand sleeping runs are copies of."""

    @step(wait=timedelta(days=3))
    def later(self) -> None:
        """Do nothing."""


@job
def nothing(number: int) -> None:
    """Do nothing: the member of a batch, or a job by itself."""


MEMBERS = 1_000


class FannedOut(Workflow):
    """Says when its body has added its jobs, and when the step after them runs."""

    @fan_out
    def spread(self, batch: FanOut) -> None:
        """Add the jobs and report the moment."""
        batch.add_many(nothing, [(number,) for number in range(MEMBERS)])
        reached()

    @step
    def gather(self) -> None:
        """Report the moment."""
        reached()
