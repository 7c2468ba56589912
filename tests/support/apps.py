"""The host application that worker processes of the tests import: `support.apps:make_bus`.

Its code notes what it does in the table `noted` and stops at gates: a gate is an advisory
lock that the test holds for as long as nobody is to pass.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import psycopg
import sqlalchemy
from blinker import signal
from sqlalchemy.orm import sessionmaker

from pgbus import Pgbus, StepContext, Workflow, fan_out, job, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbus import FanOut
    from pgbus.engine.observe.emission import StepEnded


def make_bus() -> Pgbus:
    """The bus of a worker process, set up by its environment."""
    signal("pgbus.workflow.step").connect(_after_finalize)
    engine = sqlalchemy.create_engine(
        sqlalchemy.make_url(os.environ["PGBUS_DATABASE_URL"]).set(drivername="postgresql+psycopg")
    )
    return Pgbus(around=_around, session_factory=sessionmaker(engine))


def note(what: str) -> None:
    with _connection() as connection:
        connection.execute("INSERT INTO noted (what, pid) VALUES (%s, %s)", [what, os.getpid()])


def gate(name: str) -> None:
    """Returns once the test lets pass; `pg_stat_activity` names who waits `gate <name>`."""
    with _connection(application_name=f"gate {name}") as connection:
        connection.execute("SELECT pg_advisory_lock_shared(hashtext(%s))", [name])


def hold_the_interpreter(seconds: float) -> None:
    """A C call that keeps the GIL: no other thread of the process runs meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def _connection(**options: str) -> psycopg.Connection:
    return psycopg.connect(os.environ["PGBUS_DATABASE_URL"], autocommit=True, **options)


_entries = itertools.count(1)


@contextmanager
def _around() -> Iterator[None]:
    number = next(_entries)
    _gate_if_aimed(f"enter {number}")
    yield
    _gate_if_aimed(f"exit {number}")


def _after_finalize(ended: StepEnded) -> None:
    _gate_if_aimed(f"finalized {ended.step} {ended.attempt}")


def _gate_if_aimed(name: str) -> None:
    if name in os.environ.get("AIMED_AT", "").split(","):
        gate(name)


class Plain(Workflow):
    """Three steps that leave nothing behind but their trail."""

    @step
    def one(self) -> None: ...

    @step
    def two(self) -> None: ...

    @step
    def three(self) -> None: ...


class Gated(Workflow):
    """Its middle step stops at the gate `body`."""

    @step(on_stall="reattempt")
    def one(self) -> None:
        note("one")

    @step(on_stall="reattempt")
    def two(self) -> None:
        note("begin two")
        gate("body")
        note("two")

    @step(on_stall="reattempt")
    def three(self) -> None:
        note("three")


class TwiceGated(Workflow):
    """Its steps stop at the gates `early` and `body`."""

    @step(on_stall="reattempt")
    def one(self) -> None:
        gate("early")

    @step(on_stall="reattempt")
    def two(self) -> None:
        gate("body")


class Booking(Workflow):
    """Transactional steps that write to the test's table `effects`, one stopping at `body`."""

    @step(transactional=True)
    def book(self) -> None:
        note("begin book")
        self.session.execute(sqlalchemy.text("INSERT INTO effects VALUES ('book')"))
        gate("body")

    @step(transactional=True)
    def confirm(self) -> None:
        note("begin confirm")
        self.session.execute(sqlalchemy.text("INSERT INTO effects VALUES ('confirm')"))


class Guarded(Workflow):
    """Its first step has a guard that stops at the gate `guard`."""

    def passes_the_gate(self) -> bool:
        gate("guard")
        return False

    @step(skip_if=passes_the_gate, on_stall="reattempt")
    def one(self) -> None:
        note("one")

    @step(on_stall="reattempt")
    def two(self) -> None:
        note("two")


class ThenGuarded(Workflow):
    """A worker goes from its first step to its second by way of a message."""

    @step(on_stall="reattempt")
    def one(self) -> None: ...

    @step(skip_if=lambda _workflow: False, on_stall="reattempt")
    def two(self) -> None: ...


class Hardy(Workflow):
    """Steps that need no database, some continued and some not, and outlive their workers."""

    @step(on_stall="reattempt")
    def one(self) -> None: ...

    @step(on_stall="reattempt")
    def two(self) -> None: ...

    @step(skip_if=lambda _workflow: False, on_stall="reattempt")
    def three(self) -> None:
        Event().wait(0.01)

    @step(wait=0.05, on_stall="reattempt")
    def four(self) -> None: ...


class Soon(Workflow):
    """Its second step comes later than its first."""

    @step
    def one(self) -> None: ...

    @step(wait=0.3)
    def two(self) -> None: ...


class FarOff(Workflow):
    """Its second step is scheduled days ahead; the test moves it."""

    @step
    def one(self) -> None: ...

    @step(wait=86_400)
    def two(self) -> None: ...


class Greedy(Workflow):
    """Its step keeps the interpreter to itself."""

    @step
    def one(self) -> None:
        note("begin")
        hold_the_interpreter(self.arguments["seconds"])
        note("end")


class Quits(Workflow):
    """Its step asks the process to end, once."""

    @step(on_stall="reattempt")
    def one(self) -> None:
        if StepContext.current().attempt == 1:
            raise {"exit": SystemExit, "interrupt": KeyboardInterrupt}[self.arguments["how"]]


class Urgent(Workflow):
    """Its step goes before those of other classes."""

    @step(job_options={"priority": 0})
    def one(self) -> None:
        note("urgent")


class Unhurried(Workflow):
    """Its step comes after those of other classes."""

    @step(job_options={"priority": 2})
    def one(self) -> None:
        note("unhurried")


class Usual(Workflow):
    """Its step has the default priority."""

    @step
    def one(self) -> None:
        note("usual")


class Elsewhere(Workflow):
    """Its step travels on a queue of its own."""

    @step(job_options={"queue": "elsewhere"})
    def one(self) -> None:
        note("elsewhere")


@job(queue="jobs")
def noted_job(name: str) -> None:
    note(name)


@job(queue="jobs")
def gated_job(name: str) -> None:
    note(f"begin {name}")
    gate("body")
    note(f"end {name}")


class Patient(Workflow):
    """Its step waits for a file, so that it needs no database to go on."""

    @step
    def one(self) -> None:
        while not Path(self.arguments["path"]).exists():
            Event().wait(0.01)


class Spread(Workflow):
    """Its first step waits for two jobs."""

    @fan_out(on_stall="reattempt")
    def notify(self, batch: FanOut) -> None:
        batch.add_many(noted_job, [("a",), ("b",)])

    @step(on_stall="reattempt")
    def ship(self) -> None:
        note("ship")
