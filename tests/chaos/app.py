"""The host application of the chaos test: `chaos.app:make_bus`.

A workflow class says in `ends` how each of its runs is to end, whatever happens meanwhile. A body
that runs to its end leaves an effect under its step's idempotency key, as a gateway would
keep it; a transactional one an entry in the ledger, which has no key.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from pgbus import (
    FanOut,
    Pgbus,
    SignalMatcher,
    Workflow,
    cancel_if,
    current_delivery,
    fan_out,
    job,
    on_exception,
    step,
)

#: Seconds; the storm freezes workers for longer than a message stays invisible.
SETTINGS = {
    "threads": 4,
    "polling_interval": 0.5,
    "visibility_timeout": 2,
    "shutdown_timeout": 5,
    "workflow_sweep_interval": 1,
    "workflow_stall_threshold": 4,
    "workflow_stall_action": "reattempt",
}

TABLES = """
CREATE TABLE orders (id integer PRIMARY KEY, kind text NOT NULL, withdrawn boolean NOT NULL,
                     workflow_id uuid, started_at timestamptz);
CREATE TABLE sendings (order_id integer, name text, key text PRIMARY KEY, payload jsonb, delay float8,
                       sent integer DEFAULT 0, refused integer DEFAULT 0, signal_ids bigint[] DEFAULT '{}');
CREATE TABLE effects (key text PRIMARY KEY, calls integer NOT NULL, clock_ahead interval NOT NULL);
CREATE TABLE ledger (workflow_id uuid, entry text);
"""


class HostModel(DeclarativeBase):
    pass


class Order(HostModel):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    withdrawn: Mapped[bool]


def make_sessions() -> sessionmaker[Session]:
    """The host's sessions."""
    url = sqlalchemy.make_url(os.environ["PGBUS_DATABASE_URL"]).set(drivername="postgresql+psycopg")
    return sessionmaker(sqlalchemy.create_engine(url, pool_size=10))


def make_bus() -> Pgbus:
    return Pgbus(session_factory=make_sessions())


def dawdle() -> None:
    """Take the time in which something can happen to a body."""
    Event().wait(random.uniform(0, 0.4))


def effect(key: str) -> None:
    """What the outside world would remember: once per key, however often it is asked."""
    dawdle()
    with psycopg.connect(os.environ["PGBUS_DATABASE_URL"], autocommit=True) as connection:
        connection.execute(
            "INSERT INTO effects VALUES (%s, 1, %s - clock_timestamp())"
            " ON CONFLICT (key) DO UPDATE SET calls = effects.calls + 1",
            [key, datetime.now(UTC)],
        )
    dawdle()


class RefusedError(Exception):
    """What a body raises on purpose."""


@dataclass(frozen=True)
class Sending:
    """A signal that every order of a class gets, some seconds after its start at the earliest.

    `fate` is what becomes of it, None where that depends on when it comes.
    """

    name: str
    fate: str | None
    payload: dict[str, Any] | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class Ends:
    """How a run ends: its status, the last attempt's of each step that was reached, and the last error.

    `members` are the outcomes of the fan-out's jobs, by their keys' ends.
    """

    status: str
    steps: dict[str, str]
    error: str | None = None
    sendings: tuple[Sending, ...] = ()
    members: dict[str, str] | None = None


def ends(status: str, error: str | None = None, **steps: str) -> Ends:
    return Ends(status, steps, error)


class Shop(Workflow[Order]):
    """The base: a database that is away is waited for, as a host would."""

    policies = (
        on_exception(
            DBAPIError, psycopg.OperationalError, action="reattempt", wait=0.3, max_reattempts=None
        ),
    )
    ends: Ends

    def effect(self) -> None:
        effect(self.step_idempotency_key)

    def enter(self) -> None:
        """Writes to the ledger, in the host's transaction."""
        self.session.execute(
            sqlalchemy.text("INSERT INTO ledger VALUES (:run, :entry)"),
            {"run": self.workflow_id, "entry": self.step_name},
        )
        dawdle()


class Errands(Shop):
    """Steps that continue each other, wait a little, and change the queue."""

    ends = ends("finished", one="completed", two="completed", three="completed", four="completed",
                five="completed")  # fmt: skip

    @step
    def one(self) -> None:
        self.effect()

    @step
    async def two(self) -> None:
        self.effect()

    @step(wait=0.3)
    def three(self) -> None:
        self.effect()

    @step(job_options={"queue": "errands", "priority": 2})
    def four(self) -> None:
        if self.attempt == 1:
            self.reattempt(wait=0.2)
        self.effect()

    @step
    def five(self) -> None:
        self.effect()


class Guarded(Shop):
    """Guards that ask the database before each step."""

    ends = ends("finished", one="completed", two="skipped", three="completed")

    @cancel_if
    def withdrawn(self) -> bool:
        return self.subject is None or self.subject.withdrawn

    def is_even(self) -> bool:
        dawdle()
        found: bool = self.session.execute(sqlalchemy.text("SELECT :n % 2 = 0"), {"n": 4}).scalar()
        return found

    @step(skip_if=lambda self: not self.is_even())
    def one(self) -> None:
        self.effect()

    @step(skip_if="is_even")
    def two(self) -> None:
        self.effect()

    @step
    def three(self) -> None:
        self.effect()


class Withdrawn(Guarded):
    """Of orders that are withdrawn."""

    ends = ends("cancelled", one="cancelled")


class Booking(Shop):
    """Transactional steps, one of which raises after it has written."""

    ends = ends("finished", reserve="completed", confirm="completed", invoice="completed")

    @step(transactional=True)
    def reserve(self) -> None:
        self.enter()

    @step
    def confirm(self) -> None:
        self.effect()

    @step(transactional=True, policies=(on_exception(RefusedError, action="reattempt"),))
    def invoice(self) -> None:
        self.enter()
        if self.attempt == 1:
            raise RefusedError


class Delivery(Shop):
    """Two waits for signals, which come in any order, also twice."""

    ends = Ends(
        "finished",
        {"pack": "completed", "bill": "completed", "ship": "completed", "close": "completed"},
        sendings=(
            Sending("paid", "consumed", {"amount": 7}),
            Sending("shipped", "consumed", {"region": "eu"}),
            Sending("shipped", "pending", {"region": "us"}),
        ),
    )

    @step
    def pack(self) -> None:
        self.effect()

    @step(wait_for="paid")
    def bill(self) -> None:
        assert self.require_signal().payload == {"amount": 7}
        self.effect()

    @step(
        wait_for=SignalMatcher("shipped", lambda payload: payload["region"] == "eu"),
        skip_if=lambda self: self.subject.withdrawn and not self.signal_ready,
    )
    def ship(self) -> None:
        assert self.require_signal().payload == {"region": "eu"}
        self.effect()

    @step(transactional=True)
    def close(self) -> None:
        self.enter()


class Racing(Shop):
    """A signal and a deadline at about the same time: the body runs with one or the other."""

    ends = Ends(
        "finished",
        {"answer": "completed", "close": "completed"},
        sendings=(Sending("answered", None, delay=2),),
    )

    @step(wait_for="answered", wait_timeout=1.5, on_timeout="run")
    def answer(self) -> None:
        assert self.timed_out is (self.received_signal is None)
        self.effect()
        self.output(answered=self.received_signal is not None)

    @step
    def close(self) -> None:
        self.effect()


class PausedLate(Shop):
    """Its deadline passes, and the run pauses."""

    ends = ends("paused", "pgbus.engine.errors.WaitTimedOut", one="completed", two="failed")

    @step
    def one(self) -> None:
        self.effect()

    @step(wait_for="never", wait_timeout=1)
    def two(self) -> None:
        self.effect()


class CancelledLate(Shop):
    """Its deadline passes, and the run is cancelled."""

    ends = ends("cancelled", "pgbus.engine.errors.WaitTimedOut", one="failed")

    @step(wait_for="never", wait_timeout=1, on_timeout="cancel")
    def one(self) -> None:
        self.effect()


class SkippedLate(Shop):
    """Its deadline passes, and the run goes on without the step."""

    ends = ends("finished", "pgbus.engine.errors.WaitTimedOut", one="skipped", two="completed")

    @step(wait_for="never", wait_timeout=lambda _self: 1.5, on_timeout="skip")
    def one(self) -> None:
        self.effect()

    @step
    def two(self) -> None:
        self.effect()


class ToldLate(Shop):
    """It is late again and again, until the signal comes."""

    ends = Ends(
        "finished", {"one": "completed"}, sendings=(Sending("told", "consumed", delay=3.5),)
    )

    @step(wait_for="told", wait_timeout=1, on_timeout="notify")
    def one(self) -> None:
        self.effect()


class NeverTold(Shop):
    """It is late for ever."""

    ends = ends("waiting", one="waiting")

    @step(wait_for="never", wait_timeout=2, on_timeout="notify")
    def one(self) -> None:
        self.effect()


class Endless(Shop):
    """It waits, without a deadline."""

    ends = ends("waiting", one="completed", two="waiting")

    @step
    def one(self) -> None:
        self.effect()

    @step(wait_for="never")
    def two(self) -> None:
        self.effect()


@job(queue="members", max_retries=50)
def member(key: str) -> None:
    effect(key)


@job(queue="members", max_retries=50)
def member_at_second_try(key: str) -> None:
    delivery = current_delivery()
    if delivery is not None and delivery.read_count == 1:
        raise RefusedError
    effect(key)


@job(queue="members", max_retries=0)
def lost_member(key: str) -> None:
    raise RefusedError(key)


class Vendors(Shop):
    """A fan-out whose members all complete in the end."""

    ends = Ends(
        "finished",
        {"plan": "completed", "notify": "completed", "close": "completed"},
        members={f"{number}": "completed" for number in range(7)},
    )

    @step
    def plan(self) -> None:
        self.effect()

    @fan_out
    def notify(self, batch: FanOut) -> None:
        for number in range(6):
            batch.add(member, f"{self.step_idempotency_key}:{number}")
        batch.add(member_at_second_try, f"{self.step_idempotency_key}:6")
        if self.attempt == 1:
            self.reattempt()
        self.output(asked=7)

    @step(transactional=True)
    def close(self) -> None:
        assert self.output_of("notify") == {"asked": 7}
        self.enter()


class SomeLost(Shop):
    """A fan-out that is skipped, because members are dead letters."""

    ends = Ends(
        "finished",
        {"notify": "skipped", "close": "completed"},
        "pgbus.engine.errors.FanOutFailed",
        members={"0": "completed", "1": "dead_lettered", "2": "completed", "3": "dead_lettered"},
    )

    @fan_out(on_batch_failure="skip")
    def notify(self, batch: FanOut) -> None:
        for number in range(4):
            one = lost_member if number % 2 else member
            batch.add(one, f"{self.step_idempotency_key}:{number}")

    @step
    def close(self) -> None:
        self.effect()


class AllLost(Shop):
    """A fan-out whose failure cancels the run."""

    ends = Ends(
        "cancelled",
        {"notify": "failed"},
        "pgbus.engine.errors.FanOutFailed",
        members={"0": "dead_lettered"},
    )

    @fan_out(on_batch_failure="cancel")
    def notify(self, batch: FanOut) -> None:
        batch.add(lost_member, f"{self.step_idempotency_key}:0")


class Flaky(Shop):
    """A gateway that refuses twice."""

    ends = ends("finished", charge="completed", close="completed")

    @step(policies=(on_exception(RefusedError, action="reattempt", wait=0.2),))
    def charge(self) -> None:
        if self.attempt <= 2:
            raise RefusedError
        self.effect()

    @step(on_stall="reattempt")
    def close(self) -> None:
        self.effect()


class Hopeless(Shop):
    """A gateway that refuses until the policy gives up."""

    ends = ends("cancelled", "chaos.app.RefusedError", one="completed", charge="failed")

    @step
    def one(self) -> None:
        self.effect()

    @step(
        policies=(
            on_exception(
                RefusedError,
                action="reattempt",
                wait=0.2,
                max_reattempts=2,
                terminal_action="cancel",
            ),
        )
    )
    def charge(self) -> None:
        raise RefusedError


class Hangs(Shop):
    """A body that runs past its timeout, once, and comes to its end all the same."""

    ends = ends("finished", one="completed", two="completed")

    @step(timeout=1, on_stall="reattempt")
    def one(self) -> None:
        if self.attempt == 1:
            Event().wait(3)
        self.effect()

    @step(transactional=True, timeout=1)
    def two(self) -> None:
        self.enter()
        if self.attempt == 1:
            Event().wait(3)


class EndsEarly(Shop):
    """A body that finishes its run."""

    ends = ends("finished", one="completed")

    @step
    def one(self) -> None:
        self.effect()
        self.finish()

    @step
    def two(self) -> None:
        self.effect()


class PausesItself(Shop):
    """A body that pauses its run."""

    ends = ends("paused", one="completed")

    @step(transactional=True)
    def one(self) -> None:
        self.enter()
        self.pause()

    @step
    def two(self) -> None:
        self.effect()


class NextMinute(Shop):
    """Its second step comes so late that it has no message before the timer sends it."""

    ends = ends("finished", one="completed", two="completed")

    @step
    def one(self) -> None:
        self.effect()

    @step(wait=62)
    def two(self) -> None:
        self.effect()


#: Those that a storm of any length can hold.
KINDS: dict[str, type[Shop]] = {
    kind.__name__: kind
    for kind in (
        Errands, Guarded, Withdrawn, Booking, Delivery, Racing, PausedLate, CancelledLate, SkippedLate,
        ToldLate, NeverTold, Endless, Vendors, SomeLost, AllLost, Flaky, Hopeless, Hangs,
        EndsEarly, PausesItself,
    )
}  # fmt: skip
LONG_KINDS = {**KINDS, "NextMinute": NextMinute}
