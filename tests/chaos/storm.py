"""What goes wrong, and when: drawn from a seed before it begins."""

from __future__ import annotations

import heapq
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from chaos.app import SETTINGS
from chaos.fleet import WORKERS
from psycopg import sql
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from chaos.fleet import Fleet
    from support.database import Database
    from support.workers import Child


@dataclass(frozen=True)
class Disturbance:
    """`kind` names a method of `Storm`; `at` and `seconds` are seconds."""

    at: float
    kind: str
    target: str
    seconds: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:7.1f} s  {self.kind.replace('_', ' ')}: {self.target}{lasts}"


def _kill(random: Random) -> tuple[str, float]:
    return random.choice([*WORKERS, *WORKERS, "dispatcher", "customers"]), 0.0


def _stop(random: Random) -> tuple[str, float]:
    return random.choice([*WORKERS, "dispatcher"]), 0.0


def _freeze(random: Random) -> tuple[str, float]:
    seconds = float(SETTINGS["visibility_timeout"]) * random.uniform(1.2, 2.5)
    return random.choice([*WORKERS, *WORKERS, *WORKERS, "dispatcher"]), seconds


def _restart(random: Random) -> tuple[str, float]:
    return random.choice(["fast", "immediate"]), 0.0


def _terminate(random: Random) -> tuple[str, float]:
    return random.choice(["every connection", "half of the connections", "pgbus"]), 0.0


def _lose_messages(random: Random) -> tuple[str, float]:
    return "of steps", random.uniform(0.5, 1.5)


def _repeat_messages(_random: Random) -> tuple[str, float]:
    return "of steps and jobs", 0.0


#: How each kind is drawn, and how often it comes in the long run.
_KINDS: dict[str, tuple[Callable[[Random], tuple[str, float]], int]] = {
    "kill": (_kill, 5),
    "stop": (_stop, 2),
    "freeze": (_freeze, 4),
    "restart_postgresql": (_restart, 2),
    "terminate": (_terminate, 3),
    "lose_messages": (_lose_messages, 2),
    "repeat_messages": (_repeat_messages, 2),
}


def forecast(random: Random, seconds: float) -> list[Disturbance]:
    """Return what is to happen within these seconds: about one thing a second, each kind twice."""
    weights = [weight for _, weight in _KINDS.values()]
    kinds = 2 * list(_KINDS)
    number = max(round(seconds), len(kinds))
    kinds += random.choices(list(_KINDS), weights, k=number - len(kinds))
    random.shuffle(kinds)
    return [
        Disturbance((place + random.random()) * seconds / number, kind, *_KINDS[kind][0](random))
        for place, kind in enumerate(kinds)
    ]


class Storm:
    """Applies the disturbances, and has the fleet restart what they ended.

    `applied` tells when each was, and what it met where that depends on the moment.
    """

    def __init__(self, fleet: Fleet, database: Database) -> None:
        self._fleet = fleet
        self._database = database
        self._thaws: list[tuple[float, int, Child]] = []
        self._began = 0.0
        self.applied: list[str] = []

    def blow(self, disturbances: list[Disturbance]) -> None:
        """Begin with the first effect; return when all has happened and nothing is frozen any more."""
        eventually(lambda: self._database.value("SELECT count(*) FROM effects"), within=60)
        self._began = time.monotonic()
        for disturbance in disturbances:
            self._pass_time(until=disturbance.at)
            met = getattr(self, f"_{disturbance.kind}")(disturbance) or ""
            self.applied.append(f"{self._elapsed():7.1f} s: {disturbance}{met}")
        while self._thaws:
            self._pass_time(until=self._thaws[0][0])

    def _pass_time(self, *, until: float) -> None:
        eventually(lambda: self._tick() >= until, within=max(until - self._elapsed(), 0) + 60)

    def _tick(self) -> float:
        while self._thaws and self._thaws[0][0] <= self._elapsed():
            child = heapq.heappop(self._thaws)[-1]
            child.signal(signal.SIGCONT)
        self._fleet.tend()
        return self._elapsed()

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _kill(self, disturbance: Disturbance) -> None:
        self._fleet.kill(disturbance.target)

    def _stop(self, disturbance: Disturbance) -> None:
        self._fleet.stop(disturbance.target)

    def _freeze(self, disturbance: Disturbance) -> None:
        child = self._fleet.crew[disturbance.target]
        child.signal(signal.SIGSTOP)
        heapq.heappush(self._thaws, (self._elapsed() + disturbance.seconds, child.pid, child))

    def _restart_postgresql(self, disturbance: Disturbance) -> None:
        self._database.server.restart(disturbance.target)

    def _terminate(self, disturbance: Disturbance) -> None:
        which = {
            "every connection": "true",
            "half of the connections": "pid % 2 = 0",
            "pgbus": "application_name = 'pgbus'",
        }[disturbance.target]
        with suppress(psycopg.OperationalError):
            self._database.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                f" WHERE datname = current_database() AND pid <> pg_backend_pid() AND {which}"
            )

    def _lose_messages(self, disturbance: Disturbance) -> str:
        """Only those of steps: what a lost job was to do nobody else knows."""
        until, count = time.monotonic() + disturbance.seconds, 0

        def lost_for_long_enough() -> bool:
            nonlocal count
            self._tick()
            count += self._in_each_queue(
                "DELETE FROM pgmq.{} WHERE message ? 'workflow_id' RETURNING 1"
            )
            return time.monotonic() > until

        eventually(lost_for_long_enough, within=disturbance.seconds + 60)
        return f" ({count})"

    def _repeat_messages(self, _: Disturbance) -> str:
        """But none that becomes a dead letter, which then would be there twice."""
        count = self._in_each_queue("""
            INSERT INTO pgmq.{0} (vt, message)
            SELECT clock_timestamp(), message FROM pgmq.{0}
             WHERE coalesce(message ->> 'job', '') NOT LIKE '%.lost_member' RETURNING 1
        """)
        return f" ({count})"

    def _in_each_queue(self, statement: str) -> int:
        """Run it for each queue's table, and return how many messages it was about."""
        count = 0
        with suppress(psycopg.OperationalError):
            for (queue,) in self._database.rows("SELECT queue_name FROM pgmq.meta ORDER BY 1"):
                if not queue.endswith("_dlq"):
                    table = sql.Identifier(f"q_{queue}")
                    count += len(self._database.rows(sql.SQL(statement).format(table)))
        return count
