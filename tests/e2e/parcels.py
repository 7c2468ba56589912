"""What the host runs in the browser tests: parcels that get stuck, pickups that wait, leaflets in batches."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from support.sweeps import age

from pgbus import FanOut, Workflow, fan_out, job, step
from pgbus.engine.jobs import control
from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage.claims import Idle

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


@job(queue="held_back")
def weigh_again(number):
    if not Scale.works:
        raise ScaleJammedError("the scale in hall 3 does not answer")


@job(queue="given_up", max_retries=0)
def find_owner(number):
    if not Scale.works:
        raise ScaleJammedError("no address on parcel 7")


def hold_back(bus: Pgbus, driver: Driver, database: Database) -> None:
    """Leaves a job that failed and one that waits in a queue, which is paused, and a dead letter."""
    Scale.works = False
    with bus.active():
        weigh_again.enqueue(1)
        find_owner.enqueue(7)
        while not isinstance(taken := driver.take(), Idle):
            for delivery in taken:
                execute(bus.services, delivery)
        weigh_again.options(wait=timedelta(hours=1)).enqueue(2)
    database.rows("UPDATE pgmq.q_pgbus_held_back SET vt = vt + interval '1 hour'")
    control.pause_queue(bus.services, "held_back", actor="dashboard:bo", reason="scale is mended")


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
