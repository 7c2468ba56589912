"""The application that pgbus's side of every figure runs; its database is PGBUS_DATABASE_URL."""

from __future__ import annotations

from datetime import timedelta

from bench.probe import reached
from pgbus import Pgbus, Workflow, step

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
