"""What must hold when the storm is over, whatever happened in it; and the evidence where it does not."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.app import LONG_KINDS
from chaos.customers import OPERATED
from chaos.fleet import CLOCK_AHEAD
from psycopg import sql
from support.hosts import messages
from support.replay import assert_trail_replays

from pgbus.engine.insights import liveness

if TYPE_CHECKING:
    from chaos.app import Shop
    from support.database import Database

    from pgbus import Pgbus

_STATUSES = """
SELECT o.kind, coalesce(w.status, 'not started'), count(*)
  FROM orders o LEFT JOIN pgbus.workflows w USING (workflow_id) GROUP BY 1, 2
"""

_ORDERS = """
SELECT o.id, o.kind, o.workflow_id::text, w.status FROM orders o LEFT JOIN pgbus.workflows w USING (workflow_id)
"""

_ATTEMPTS = """
SELECT workflow_id::text, step_name, attempt, status, error_class, output FROM pgbus.workflow_steps
 ORDER BY step_id
"""

_SIGNALS = """
SELECT s.key, s.sent, cardinality(ARRAY(SELECT DISTINCT unnest(s.signal_ids))), o.workflow_id::text,
       ARRAY(SELECT g.status FROM pgbus.workflow_signals g
              WHERE g.workflow_id = o.workflow_id AND g.idempotency_key = s.key)
  FROM sendings s JOIN orders o ON o.id = s.order_id
"""

_BATCHES = """
SELECT b.workflow_id::text, b.resolved_at IS NULL, b.total_jobs, b.completed_jobs, b.discarded_jobs,
       b.dead_lettered_jobs, array_agg(j.status ORDER BY j.number)
  FROM pgbus.batches b LEFT JOIN pgbus.batch_jobs j USING (batch_id) GROUP BY b.batch_id
"""

_PAUSED_BY = """
SELECT DISTINCT e.workflow_id::text, e.actor FROM pgbus.workflow_events e JOIN orders o USING (workflow_id)
 WHERE e.event = 'paused' AND o.kind = ANY (%s)
"""


@dataclass
class Verdict:
    """Complaints by run; those about none are under ''."""

    complaints: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def expect(self, what: str, found: Any, expected: Any, *, run: str = "") -> None:
        if found != expected:
            self.complaints[run].append(f"{what}: {found!r}, not {expected!r}")

    def told(self) -> list[str]:
        return [f"{run or 'all'}: {one}" for run, some in self.complaints.items() for one in some]

    @property
    def offenders(self) -> list[str]:
        """The runs that are complained of."""
        return [run for run in self.complaints if run]


def unsettled(database: Database) -> list[str]:
    """What is still to come: runs that have not reached their end, and messages."""
    statuses = [
        f"{count} of {kind} {status}"
        for kind, status, count in database.rows(_STATUSES)
        if status != LONG_KINDS[kind].ends.status
    ]
    left = Counter(queue for queue, *_ in messages(database) if not queue.endswith("_dlq"))
    return statuses + [f"{count} in {queue}" for queue, count in left.items()]


def judge(database: Database, bus: Pgbus) -> Verdict:
    """Return all that does not hold."""
    verdict = Verdict()
    orders = database.rows(_ORDERS)
    kinds = {run: LONG_KINDS[kind] for _, kind, run, _ in orders}
    verdict.expect("runs", database.value("SELECT count(*) FROM pgbus.workflows"), len(orders))
    _judge_ends(verdict, database, orders)
    _judge_effects(verdict, database, kinds)
    _judge_signals(verdict, database)
    _judge_batches(verdict, database, kinds)
    _judge_messages(verdict, database, kinds)
    for run, actor in database.rows(_PAUSED_BY, list(OPERATED)):
        verdict.expect("paused by", actor, "operator", run=run)
    with bus.services.database.autocommit() as connection:
        for broken in liveness.broken(connection, bus.settings):
            verdict.complaints[broken.workflow_id].append(f"nothing moves it: {broken.missing}")
    try:
        assert_trail_replays(database)
    except AssertionError as error:
        verdict.complaints[""].append(f"The trails do not replay: {error}")
    return verdict


def _judge_ends(verdict: Verdict, database: Database, orders: list[tuple[Any, ...]]) -> None:
    attempts: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for run, *attempt in database.rows(_ATTEMPTS):
        attempts[run].append(tuple(attempt))
    for _, kind, run, status in orders:
        ends = LONG_KINDS[kind].ends
        verdict.expect("status", status, ends.status, run=run)
        last = {name: status for name, _, status, *_ in attempts[run]}
        verdict.expect("last attempts", last, ends.steps, run=run)
        completed = Counter(name for name, _, one, *_ in attempts[run] if one == "completed")
        verdict.expect("completions of a step", {*completed.values()} - {1}, set(), run=run)
        error = [error for name, *_, error, _ in attempts[run] if last[name] != "completed"][-1:]
        if ends.error:
            verdict.expect("the error", error, [ends.error], run=run)


def _judge_effects(verdict: Verdict, database: Database, kinds: dict[str, type[Shop]]) -> None:
    """Each body that was completed has had its effect once, and no other has had one."""
    effects, entries = set(), Counter[tuple[str, str]]()
    for run, kind in kinds.items():
        for step in kind._definition.steps:
            if kind.ends.steps.get(step.name) != "completed" or step.fan_out:
                continue
            if step.transactional:
                entries[run, step.name] += 1
            else:
                effects.add(f"pgbus-wf:{run}:{step.name}")
        for number, outcome in (kind.ends.members or {}).items():
            if outcome == "completed":
                effects.add(f"pgbus-wf:{run}:notify:{number}")
    found = {key for (key,) in database.rows("SELECT key FROM effects")}
    verdict.expect("effects that are missing", effects - found, set())
    verdict.expect("effects of steps that were not completed", found - effects, set())
    ledger = Counter(database.rows("SELECT workflow_id::text, entry FROM ledger"))
    verdict.expect("transactional effects that are missing", entries - ledger, Counter())
    verdict.expect("transactional effects too many", ledger - entries, Counter())
    off = database.value("SELECT round(max(extract(epoch FROM clock_ahead))) FROM effects")
    verdict.expect("how far the clock of a worker was ahead", off, CLOCK_AHEAD)


def _judge_signals(verdict: Verdict, database: Database) -> None:
    fates = {
        (kind.__name__, number): sending.fate
        for kind in LONG_KINDS.values()
        for number, sending in enumerate(kind.ends.sendings)
    }
    for key, sent, signals, run, statuses in database.rows(_SIGNALS):
        kind, _, number = key.split(":")
        fate = fates[kind, int(number)]
        if sent:
            verdict.expect(f"the signal {key} is stored", (signals, len(statuses)), (1, 1), run=run)
        if fate and statuses:
            verdict.expect(f"the signal {key}", statuses, [fate], run=run)


def _judge_batches(verdict: Verdict, database: Database, kinds: dict[str, type[Shop]]) -> None:
    opened = Counter[str]()
    for run, unresolved, *counts, statuses in database.rows(_BATCHES):
        opened[run] += 1
        outcomes = list((kinds[run].ends.members or {}).values())
        by = Counter(outcomes)
        expected = [len(outcomes), by["completed"], by["discarded"], by["dead_lettered"]]
        verdict.expect("members, by outcome", statuses, outcomes, run=run)
        verdict.expect("the batch's counts", counts, expected, run=run)
        if unresolved:
            verdict.complaints[run].append("its batch was not resolved")
    expected_batches = Counter(run for run, kind in kinds.items() if kind.ends.members)
    verdict.expect("batches", opened, expected_batches)
    verdict.expect("counters left", database.rows("SELECT * FROM pgbus.batch_counters"), [])


def _judge_messages(verdict: Verdict, database: Database, kinds: dict[str, type[Shop]]) -> None:
    left = messages(database)
    verdict.expect("messages left", [one for one in left if not one[0].endswith("_dlq")], [])
    dead = Counter(body["arguments"]["args"][0] for *_, body in left)
    expected = Counter(
        f"pgbus-wf:{run}:notify:{number}"
        for run, kind in kinds.items()
        for number, outcome in (kind.ends.members or {}).items()
        if outcome == "dead_lettered"
    )
    verdict.expect("dead letters", dead, expected)
    verdict.expect("failed jobs left", database.rows("SELECT * FROM pgbus.failed_jobs"), [])


def met(database: Database) -> str:
    """What the storm has met, by the events that tell of it."""
    rows = database.rows("""
        SELECT event || coalesce(' ' || (details ->> 'detection'), ' ' || (details ->> 'action'),
                                 CASE details ->> 'duplicate' WHEN 'true' THEN ' again' END,
                                 CASE actor WHEN 'operator' THEN ' by the operator' END, ''), count(*)
          FROM pgbus.workflow_events GROUP BY 1 ORDER BY 1
    """)
    return "\n".join(f"{count:6} {event}" for event, count in rows)


def trail(database: Database, run: str) -> str:
    """All that is stored about a run, for a person."""
    told = [
        f"{at:%H:%M:%S.%f} {event} {step}/{attempt} {source}→{target} {actor} {details or ''}"
        for at, event, step, attempt, source, target, actor, details in database.rows(
            "SELECT created_at, event, step_name, attempt, from_status, to_status, actor, details"
            " FROM pgbus.workflow_events WHERE workflow_id = %s ORDER BY event_id",
            run,
        )
    ]
    tables = [
        f"{table}: {row}"
        for table in ("workflows", "workflow_steps", "workflow_signals", "batches")
        for (row,) in database.rows(
            sql.SQL("SELECT to_jsonb(t) - 'error' FROM pgbus.{} t WHERE workflow_id = {}").format(
                sql.Identifier(table), sql.Literal(run)
            )
        )
    ]
    return "\n    ".join([run, *told, *tables])
