"""What runs and workers do, a line each, read from what pgbus writes down about them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has none
import psycopg
from psycopg.rows import class_row

from demo.hints import Hints
from pgbus import StepStalled
from pgbus.engine.states import Event, OnTimeout

#: An id is drawn before its transaction commits, so a lower one may appear after a higher.
_LOOK_BACK = 200
_STALLED = f"{StepStalled.__module__}.{StepStalled.__qualname__}"
#: Long enough to kill its worker meanwhile.
_LONG_STEP = "unload"
_SOON = timedelta(seconds=1)
_TODAY = timedelta(hours=1)
#: Long enough to pay it from another terminal.
_PATIENT = timedelta(hours=1)

_EVENTS = """
SELECT e.event_id, e.created_at, e.event, e.workflow_id::text,
       w.workflow_class, w.subject_id, e.step_name, e.attempt, e.actor, e.reason,
       coalesce(e.details, '{}') AS details,
       s.worker, s.scheduled_at, s.finished_at - s.started_at AS took, s.error_class, s.error_message
  FROM pgbus.workflow_events e
  JOIN pgbus.workflows w USING (workflow_id)
  LEFT JOIN pgbus.workflow_steps s USING (workflow_id, step_name, attempt)
 WHERE e.event_id > %(after)s
 ORDER BY e.event_id
"""

_NEWEST = "SELECT coalesce(max(event_id), 0) FROM pgbus.workflow_events"

_WORKERS = "SELECT pid FROM pgbus.processes WHERE kind = 'worker' ORDER BY heartbeat_at"

#: Whether no run goes on by itself within the minute: others wait for a person or a partner.
_IDLE = """
SELECT NOT EXISTS (
    SELECT FROM pgbus.workflows w JOIN pgbus.workflow_steps s USING (step_id)
     WHERE (w.status IN ('ready', 'performing')
            AND s.scheduled_at < clock_timestamp() + interval '1 minute')
        OR (w.status = 'waiting' AND s.batch_id IS NOT NULL))
"""

_STATES = "SELECT status, count(*) FROM pgbus.workflows GROUP BY status ORDER BY count(*) DESC"

_OPEN = """
SELECT w.status, w.current_step, count(*), min(s.scheduled_at), s.error_class, max(s.error_message),
       s.late_since IS NOT NULL AS late
  FROM pgbus.workflows w JOIN pgbus.workflow_steps s USING (step_id)
 WHERE w.status IN ('paused', 'ready', 'waiting')
 GROUP BY w.status, w.current_step, s.error_class, late
 ORDER BY w.status, count(*) DESC
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a run, with the attempt it is about as that stands now."""

    event_id: int
    created_at: datetime
    event: str
    workflow_id: str
    workflow_class: str
    subject_id: str | None
    step_name: str | None
    attempt: int | None
    actor: str
    reason: str | None
    details: dict[str, Any]
    worker: str | None
    scheduled_at: datetime | None
    took: timedelta | None
    error_class: str | None
    error_message: str | None

    @property
    def run(self) -> str:
        """The run in a word: "Order 7", "Restock 2"."""
        kind = self.workflow_class.rpartition(".")[2].removesuffix("Workflow")
        return f"{kind} {self.subject_id}"

    @property
    def error(self) -> str:
        """The attempt's error on one line."""
        return f"{(self.error_class or '').rpartition('.')[2]}: {self.error_message}"

    @property
    def is_being_unloaded(self) -> bool:
        """Whether its attempt is of the step that takes seconds, and still runs."""
        return self.step_name == _LONG_STEP and self.took is None

    @property
    def waits_for_payment(self) -> bool:
        """Whether it began to wait for a payment, with a deadline that is far away."""
        until = self.details.get("timeout_at")
        return (
            self.details.get("wait_for") == "payment_confirmed"
            and until is not None
            and datetime.fromisoformat(until) - self.created_at > _PATIENT
        )

    @property
    def worker_pid(self) -> str:
        """The pid of the worker that has or had the attempt."""
        return (self.worker or "").rpartition(":")[2]

    def sentence(self) -> str | None:
        """Return the event in words; None for one that the next line tells better."""
        because = f": {self.reason}" if self.reason else ""
        match self.event:
            case Event.STEP_STARTED | Event.SIGNAL_CLAIMED:
                return None
            case Event.STEP_SCHEDULED:
                return self._schedule()
            case Event.STEP_COMPLETED:
                return f"{self.step_name} done by worker {self.worker_pid}{_duration(self.took)}"
            case Event.STEP_FAILED | Event.STEP_REATTEMPTED:
                return self._failure()
            case Event.STEP_SKIPPED:
                return f"{self.step_name} skipped"
            case Event.STALL_DETECTED:
                return f"{self.step_name}: worker {self.worker_pid} died while it ran it"
            case Event.STEP_WAITING:
                return self._wait()
            case Event.WAIT_TIMED_OUT:
                what = "goes on" if self.details["action"] == OnTimeout.NOTIFY else "is over"
                return (
                    f"{self.step_name} has no {self.details['wait_for']} in time; the wait {what}"
                )
            case Event.SIGNAL_RECEIVED:
                again = ", for the second time" if self.details["duplicate"] else ""
                return f"{self.details['name']} comes from the {self.actor}{again}"
            case Event.FAN_OUT_OPENED:
                return f"{self.step_name} waits for {self.details['size']} jobs"
            case Event.FAN_OUT_FINISHED:
                failed, total = self.details["failed_jobs"], self.details["total_jobs"]
                return f"{self.step_name}: of its {total} jobs {failed or 'none'} failed"
            case Event.STARTED:
                return f"started by {self.actor}{because}"
            case _:
                by = "" if self.actor == "system" else f" by {self.actor}"
                return f"{self.event.replace('_', ' ')}{by}{because}"

    def _schedule(self) -> str | None:
        wait = (self.scheduled_at or self.created_at) - self.created_at
        again = self.attempt != 1
        if wait < _SOON:
            return f"{self.step_name} is tried again" if again else None
        due = "tried again" if again else "due"
        return f"{self.step_name} is {due} {_when(self.created_at + wait, since=self.created_at)}"

    def _wait(self) -> str | None:
        if "wait_for" not in self.details:
            return None
        deadline = datetime.fromisoformat(self.details["timeout_at"])
        when = _when(deadline, since=self.created_at)
        return f"{self.step_name} waits for {self.details['wait_for']}; the deadline is {when}"

    def _failure(self) -> str | None:
        if self.error_class == _STALLED:
            return None
        return f"{self.step_name} failed, {self.reason or self.error}"


class Trail:
    """Prints what is new, from the moment it is opened."""

    def __init__(self, database_url: str, shop_url: str) -> None:
        self._connection = psycopg.connect(database_url, autocommit=True)
        self._newest = self._value(_NEWEST)
        self._shown = {entry.event_id for entry in self._entries()}
        self._workers: set[int] = set()
        self._hints = Hints(shop_url)

    def close(self) -> None:
        """Close its connection."""
        self._connection.close()

    def print_news(self) -> None:
        """Print what happened since the last time, and what could be tried just now."""
        entries = self._entries()
        for entry in entries:
            if entry.event_id not in self._shown:
                self._print(entry)
        self._shown = {entry.event_id for entry in entries}
        self._newest = max([self._newest, *self._shown])
        self._print_workers()

    def print_summary(self) -> None:
        """Print how many runs there are, where they stand, and why."""
        states = self._connection.execute(_STATES).fetchall()
        if not states:
            print("No order has been placed yet.")
            return
        total = sum(count for _, count in states)
        print(f"{total} runs: {', '.join(f'{count} {status}' for status, count in states)}")
        for status, step, count, due, error_class, message, late in self._connection.execute(_OPEN):
            where = f"  {count} {status} on {step}{', late' if late else ''}"
            if status == "ready":
                now = datetime.now(UTC)  # noqa: TID251 (to show, not to store)
                print(f"{where}, the first due {_when(max(due, now), since=now)}")
            elif error_class:
                print(f"{where}, {error_class.rpartition('.')[2]}: {message}")
            else:
                print(where)

    def idle(self) -> bool:
        """Tell whether nothing is left to do within a minute."""
        return bool(self._value(_IDLE))

    def _entries(self) -> list[Entry]:
        with self._connection.cursor(row_factory=class_row(Entry)) as cursor:
            return cursor.execute(_EVENTS, {"after": self._newest - _LOOK_BACK}).fetchall()

    def _print_workers(self) -> None:
        workers = [pid for (pid,) in self._connection.execute(_WORKERS) if psutil.pid_exists(pid)]
        for pid in sorted(self._workers.symmetric_difference(workers)):
            verb = "serves" if pid in workers else "is gone"
            now = datetime.now(UTC)  # noqa: TID251 (to show, not to store)
            _print_line(now, f"Worker {pid}", verb, _BOLD)
        self._workers = set(workers)

    def _print(self, entry: Entry) -> None:
        if sentence := entry.sentence():
            _print_line(entry.created_at, entry.run, sentence, _COLOURS.get(entry.event))
        if hint := self._hints.at(entry):
            print(f"\n{_coloured(hint, _BOLD)}\n", flush=True)

    def _value(self, statement: str) -> Any:
        row = self._connection.execute(statement).fetchone()
        assert row is not None  # noqa: S101 (an aggregate and an EXISTS always give one)
        return row[0]


_BOLD, _RED, _GREEN, _YELLOW, _CYAN = "1", "31", "32", "33", "36"
_COLOURS: dict[str, str] = {
    Event.STALL_DETECTED: _RED,
    Event.STEP_FAILED: _RED,
    Event.STEP_REATTEMPTED: _YELLOW,
    Event.PAUSED: _YELLOW,
    Event.CANCELLED: _YELLOW,
    Event.WAIT_TIMED_OUT: _YELLOW,
    Event.FINISHED: _GREEN,
    Event.STARTED: _CYAN,
}


def _print_line(moment: datetime, who: str, what: str, colour: str | None) -> None:
    line = f"{moment.astimezone():%H:%M:%S}  {who:<16} {what}"
    print(_coloured(line, colour), flush=True)


def _coloured(line: str, colour: str | None) -> str:
    if colour is None or "NO_COLOR" in os.environ or not sys.stdout.isatty():
        return line
    return f"\033[{colour}m{line}\033[0m"


def _when(moment: datetime, *, since: datetime) -> str:
    wait = moment - since
    return (
        f"in {wait.total_seconds():.0f} s"
        if wait < _TODAY
        else f"on {moment.astimezone():%d %b at %H:%M}"
    )


def _duration(took: timedelta | None) -> str:
    return f" in {took.total_seconds():.2f} s" if took is not None else ""
