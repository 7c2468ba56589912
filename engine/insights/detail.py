"""One run with all that happened to it, what its class says of it, and what can be done."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgbus.engine.definition import registry
from pgbus.engine.errors import RunNotFound
from pgbus.engine.insights import attempts, events, reading, resume, runs, signals
from pgbus.engine.insights.documents import Document
from pgbus.engine.insights.phases import TELLING, pauses
from pgbus.engine.states import ONGOING, AttemptStatus, RunStatus, Verb, available_actions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.insights.attempts import Attempt
    from pgbus.engine.insights.documents import Slice
    from pgbus.engine.insights.events import TrailEntry
    from pgbus.engine.insights.phases import Pause
    from pgbus.engine.insights.resume import ResumePlan
    from pgbus.engine.insights.runs import RunSummary
    from pgbus.engine.insights.signals import StoredSignal
    from pgbus.engine.settings import Settings
    from pgbus.engine.storage.database import Connection

#: Of a run that was repeated more often, the newest reruns.
_MOST_RERUNS = 20


@dataclass(frozen=True, slots=True)
class RelatedRun:
    """A run that another one repeats, or that repeats it; the status is None once it is deleted."""

    workflow_id: str
    status: RunStatus | None


@dataclass(frozen=True, slots=True)
class AddedStep:
    """A step that the class has gained since a run began, after which one (None: as the first).

    When `past`, the run will not come to it any more.
    """

    name: str
    after: str | None
    past: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionChange:
    """What the loaded class does otherwise than when the run began.

    `changed` are steps with other options, as far as they make another version; `reordered` says that
    those which both have stand in another order.
    """

    added: tuple[AddedStep, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    reordered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOfRun:
    """A live step of the loaded class, and what became of it in a run.

    `status` is that of its newest attempt, None when it has none; the run is `here`, or the step is
    still `to_come`.
    """

    name: str
    status: AttemptStatus | None
    attempts: int
    here: bool
    to_come: bool
    waits_for: str | None
    fan_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail:
    """A run with its history, newest first; `older_…` tell that there is more of it.

    `as_of` is the database's moment. `current_digest`, `change` and `steps` are of the loaded class:
    None, and none, without it; `change` also when the run began on the same version, or on one that
    is not stored.
    """

    as_of: datetime
    run: RunSummary
    arguments: Document
    idempotency_key: str | None
    definition_digest: str
    current_digest: str | None
    change: DefinitionChange | None
    steps: tuple[StepOfRun, ...]
    rerun_of: RelatedRun | None
    reruns: tuple[RelatedRun, ...]
    available_actions: tuple[Verb, ...]
    resume: ResumePlan | None
    attempts: tuple[Attempt, ...]
    older_attempts: bool
    signals: tuple[StoredSignal, ...]
    older_signals: bool
    events: tuple[TrailEntry, ...]
    older_events: bool
    pauses: tuple[Pause, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where the time of a run's newest attempts went, newest first, and when it was paused."""

    as_of: datetime
    run: RunSummary
    attempts: tuple[Attempt, ...]
    pauses: tuple[Pause, ...]


_ROW = """
SELECT CASE WHEN coalesce(octet_length(d.arguments) <= CAST(:inline AS integer), true) THEN d.arguments END,
       octet_length(d.arguments), w.idempotency_key, w.definition_digest, w.rerun_of::text, o.status, v.steps::text
  FROM {schema}.workflows w
 CROSS JOIN LATERAL (SELECT w.arguments::text AS arguments OFFSET 0) d
  LEFT JOIN {schema}.workflows o ON o.workflow_id = w.rerun_of
  LEFT JOIN {schema}.workflow_definitions v
    ON v.workflow_class = w.workflow_class AND v.digest = w.definition_digest
 WHERE w.workflow_id = CAST(:workflow_id AS uuid)
"""

_RERUNS = """
SELECT workflow_id::text, status FROM {schema}.workflows
 WHERE rerun_of = CAST(:workflow_id AS uuid)
 ORDER BY workflow_id DESC
 LIMIT CAST(:limit AS integer)
"""

#: Of each step that was tried: its newest attempt, which has the highest number.
_TRIED = """
SELECT DISTINCT ON (step_name) step_name, attempt, status
  FROM {schema}.workflow_steps
 WHERE workflow_id = CAST(:workflow_id AS uuid)
 ORDER BY step_name, attempt DESC
"""

_ARGUMENTS = """
SELECT arguments::text FROM {schema}.workflows WHERE workflow_id = CAST(:workflow_id AS uuid)
"""


def detail(
    connection: Connection,
    settings: Settings,
    workflow_id: str,
    *,
    limit: int,
    inline: int | None = None,
) -> RunDetail:
    """Return the run with its newest attempts, signals and events, `limit` of each.

    Documents of more than `inline` bytes are left out, and of errors all but the newest are cut; None:
    nothing is. Raise `RunNotFound`.
    """
    run = runs.summary(connection, settings, workflow_id)
    row = connection.row(_ROW, workflow_id=workflow_id, inline=inline)
    if row is None:
        raise _gone(workflow_id)
    encoded, size, idempotency_key, digest, rerun_of, status, stored = row
    definition = registry.find(run.workflow_class)
    now, trail = reading.now(connection), events.of_kinds(connection, workflow_id, TELLING)
    tries = attempts.newest(connection, workflow_id, trail, now, limit=limit, inline=inline)
    received = signals.newest(connection, workflow_id, limit=limit, inline=inline)
    told = events.newest(connection, workflow_id, limit)
    change = None
    if definition is not None and stored is not None and digest != definition.digest:
        change = _change(definition, json.loads(stored), run)
    return RunDetail(
        as_of=now,
        run=run,
        arguments=Document(encoded, size),
        idempotency_key=idempotency_key,
        definition_digest=digest,
        current_digest=definition.digest if definition else None,
        change=change,
        steps=_steps(connection, definition, run) if definition else (),
        rerun_of=RelatedRun(rerun_of, status and RunStatus(status)) if rerun_of else None,
        reruns=_reruns(connection, workflow_id),
        available_actions=available_actions(
            run.status, run.attempt_status, class_loaded=run.class_loaded
        ),
        resume=resume.plan(connection, run),
        attempts=tries.entries,
        older_attempts=tries.more,
        signals=received.entries,
        older_signals=received.more,
        events=told.entries,
        older_events=told.more,
        pauses=pauses(trail),
    )


def timeline(
    connection: Connection, settings: Settings, workflow_id: str, *, limit: int
) -> Timeline:
    """Return where the time of the run's newest attempts went; raise `RunNotFound`."""
    run = runs.summary(connection, settings, workflow_id)
    now, trail = reading.now(connection), events.of_kinds(connection, workflow_id, TELLING)
    tries = attempts.newest(connection, workflow_id, trail, now, limit=limit, inline=0)
    return Timeline(now, run, tries.entries, pauses(trail))


def older_attempts(
    connection: Connection, workflow_id: str, *, limit: int, older_than: int | None, inline: int
) -> Slice[Attempt]:
    """Return the attempts before the one of a step_id; the newest without one."""
    now, trail = reading.now(connection), events.of_kinds(connection, workflow_id, TELLING)
    return attempts.newest(
        connection, workflow_id, trail, now, limit=limit, older_than=older_than, inline=inline
    )


def attempt(connection: Connection, workflow_id: str, step_id: int) -> Attempt:
    """Return an attempt of the run with its whole output and error; raise `EntryNotFound`."""
    now, trail = reading.now(connection), events.of_kinds(connection, workflow_id, TELLING)
    return attempts.one(connection, workflow_id, step_id, trail, now)


def arguments(connection: Connection, workflow_id: str) -> str:
    """Return all that the run was started with, encoded; raise `RunNotFound`."""
    row = connection.row(_ARGUMENTS, workflow_id=workflow_id)
    if row is None:
        raise _gone(workflow_id)
    encoded: str = row[0]
    return encoded


def _gone(workflow_id: str) -> RunNotFound:
    return RunNotFound(f"There is no run {workflow_id} any more.")


def _reruns(connection: Connection, workflow_id: str) -> tuple[RelatedRun, ...]:
    rows = connection.rows(_RERUNS, workflow_id=workflow_id, limit=_MOST_RERUNS)
    return tuple(RelatedRun(related, RunStatus(status)) for related, status in rows)


def _steps(
    connection: Connection, definition: Definition, run: RunSummary
) -> tuple[StepOfRun, ...]:
    tried = {
        name: (AttemptStatus(status), number)
        for name, number, status in connection.rows(_TRIED, workflow_id=run.workflow_id)
    }
    ahead = _ahead(definition, run)
    found = []
    for step in definition.steps:
        if step.removed:
            continue
        status, number = tried.get(step.name, (None, 0))
        found.append(
            StepOfRun(
                name=step.name,
                status=status,
                attempts=number,
                here=run.status in ONGOING and step.name == run.current_step,
                to_come=step.name in ahead,
                waits_for=step.wait_for.description if step.wait_for else None,
                fan_out=step.fan_out,
            )
        )
    return tuple(found)


def _ahead(definition: Definition, run: RunSummary) -> frozenset[str]:
    """Return the steps that the run will still come to: none once it is over, or knows no way on."""
    names = [step.name for step in definition.steps]
    if run.status not in ONGOING or run.current_step not in names:
        return frozenset()
    return frozenset(names[names.index(run.current_step) + 1 :])


def _change(
    definition: Definition, before: Sequence[dict[str, Any]], run: RunSummary
) -> DefinitionChange:
    then = {step["name"]: step for step in before if not step.get("removed")}
    now = {step["name"]: step for step in definition.step_list if not step.get("removed")}
    names, ahead = list(now), _ahead(definition, run)
    return DefinitionChange(
        added=tuple(
            AddedStep(
                name, names[place - 1] if place else None, name not in {*ahead, run.current_step}
            )
            for place, name in enumerate(names)
            if name not in then
        ),
        removed=tuple(name for name in then if name not in now),
        changed=tuple(name for name in then if name in now and now[name] != then[name]),
        reordered=[name for name in then if name in now] != [name for name in now if name in then],
    )
