"""What the host runs in the browser tests: parcels that get stuck, pickups that wait, leaflets in batches."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from support.sweeps import age

from pgbus import FanOut, Workflow, fan_out, job, step

if TYPE_CHECKING:
    from support.database import Database
    from support.driving import Driver

    from pgbus import Pgbus, Run


class Scale:
    """The one scale in the hall."""

    works = False


class ScaleJammedError(Exception):
    pass


class Parcel(Workflow):
    @step
    def weigh(self):
        if not Scale.works:
            try:
                float("no answer")
            except ValueError as error:
                raise ScaleJammedError("the scale in hall 3 does not answer") from error
        self.output(grams=1250)

    @step
    def deliver(self):
        self.output(left_with="neighbour")


class Pickup(Workflow):
    @step(wait_for="collected", wait_timeout=timedelta(days=2))
    def hand_over(self):
        self.output(**self.require_signal().payload)


class Reminder(Workflow):
    @step
    def remind(self): ...


@job(max_retries=0)
def print_leaflet(number):
    if number == 1:
        raise ScaleJammedError("paper jam")


class Leaflets(Workflow):
    @fan_out
    def distribute(self, batch: FanOut):
        batch.add_many(print_leaflet, [(number,) for number in range(4)])


def jam(bus: Pgbus, driver: Driver, number: int = 1) -> list[Run]:
    """Starts parcels that pause in front of a jammed scale."""
    Scale.works = False
    runs = [bus.start(Parcel, order=n) for n in range(number)]
    driver.drain()
    return [run.reload() for run in runs]


def fill(bus: Pgbus, driver: Driver, database: Database) -> dict[str, Run]:
    """Makes one run of each kind that pages tell apart; returns them by what is special about them."""
    Scale.works = True
    runs = {"finished": bus.start(Parcel, order=1), "cancelled": bus.start(Parcel, order=2)}
    runs["cancelled"].cancel(actor="dashboard:bo", reason="ordered twice")
    driver.drain()
    (runs["failed"],) = jam(bus, driver)
    runs["batch"] = bus.start(Leaflets)
    runs["waiting"] = bus.start(Pickup)
    driver.drain()
    runs["waiting"].signal("collected early", {"by": "courier"}, actor="webhook")
    runs["paused"] = bus.start(Reminder).pause(actor="dashboard:bo", reason="holidays")
    runs["overdue"] = bus.start(Reminder)
    age(database, "2 hours", runs["overdue"])
    runs["later"] = bus.start(Reminder)
    runs["later"].reschedule(runs["later"].created_at + timedelta(days=3))
    return {name: run.reload() for name, run in runs.items()}
