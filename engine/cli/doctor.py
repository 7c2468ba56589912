"""`pgbus doctor`: what in the database or in the code keeps runs from going on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from pgbus.engine.cli import hints
from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.bulk import counted
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.failures import Refused
from pgbus.engine.cli.tables import aligned
from pgbus.engine.insights import deployment, health, liveness

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pgbus.engine.bus import Pgbus
    from pgbus.engine.insights.deployment import Misfits, RunsOnStep
    from pgbus.engine.insights.health import Hint
    from pgbus.engine.insights.liveness import BrokenRun


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found; None stands for what could not be looked at."""

    healthy: bool
    schema: tuple[str, ...]
    code: Misfits | None = None
    broken_runs: tuple[BrokenRun, ...] | None = None
    hints: tuple[Hint, ...] | None = None


@click.command()
@app_option()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def doctor(ctx: click.Context, app: str | None, *, as_json: bool) -> None:
    """Find what keeps ongoing runs from going on.

    It looks at the schema, at every ongoing run, at who serves them, and with --app at the code
    that is to be deployed. Exit 1 on what would break, 0 where there are only hints. It changes
    nothing.
    """
    with opened(app) as bus:
        found = _examined(bus, with_code=app is not None)
        zone = ZoneInfo(bus.settings.time_zone)
    click.echo(document(found) if as_json else "\n\n".join(_told(found, app, zone)))
    if not found.healthy:
        ctx.exit(Refused.exit_code)


def _examined(bus: Pgbus, *, with_code: bool) -> Diagnosis:
    from pgbus.engine.storage import migrate  # noqa: PLC0415 (Alembic is slow to import)

    database = bus.services.database
    if reasons := migrate.pending(database.engine, bus.settings.schema):
        return Diagnosis(healthy=False, schema=tuple(reasons))
    with database.autocommit() as connection:
        code = deployment.misfits(connection) if with_code else None
        broken = tuple(liveness.broken(connection, bus.settings))
        trouble = health.hints(connection, bus.settings)
    unfit = code is not None and bool(code.not_loaded or code.undeclared)
    return Diagnosis(
        healthy=not (broken or unfit), schema=(), code=code, broken_runs=broken, hints=trouble
    )


def _told(found: Diagnosis, app: str | None, zone: ZoneInfo) -> Iterator[str]:
    """Yield a section for each kind of finding; what is as it should be makes one line in all."""
    if found.schema:
        yield _section(
            "The schema is not what this pgbus needs (run pgbus migrate):",
            [[one] for one in found.schema],
        )
        yield "The runs were not looked at."
        return
    sections = [
        *_told_of_code(found.code),
        *_told_of_runs(found.broken_runs or ()),
        *_told_of_hints(found.hints or (), zone),
    ]
    yield from sections or ["Nothing to mend."]
    if not app:
        yield "The code was not looked at; --app compares it with the runs."


def _told_of_code(code: Misfits | None) -> Iterator[str]:
    if code is None:
        return
    in_flight = [one for one in code.removed if one.runs]
    can_go = [one for one in code.removed if not one.runs]
    for title, places in (
        (
            "Runs whose class no loaded module declares (import it, or cancel them):",
            code.not_loaded,
        ),
        (
            "Runs on a step that their class does not declare (leave a removed_step()):",
            code.undeclared,
        ),
        ("Hint: anonymous steps that have moved since runs began (name them):", code.moved),
        ("Hint: removed steps with runs still on them:", in_flight),
        ("Hint: removed steps without runs, whose lines can go:", can_go),
    ):
        if places:
            yield _section(title, map(_place, places))


def _told_of_runs(broken: Iterable[BrokenRun]) -> Iterator[str]:
    rows = [
        [run.workflow_id, run.workflow_class, run.status, _attempt(run), run.missing]
        for run in broken
    ]
    if rows:
        title = "Runs that nothing moves on (run-now if ready; else pause, then resume-at):"
        yield _section(title, rows)


def _told_of_hints(found: Iterable[Hint], zone: ZoneInfo) -> Iterator[str]:
    """Yield the hints, the worst first; those that one thing mends in one section."""
    for mend, alike in groupby(found, hints.mend):
        yield "\n".join([*(f"Hint: {hints.trouble(hint, zone)}" for hint in alike), f"  {mend}"])


def _attempt(run: BrokenRun) -> str:
    return run.step_name if run.attempt is None else f"{run.step_name} {run.attempt}"


def _place(one: RunsOnStep) -> list[str]:
    return [one.workflow_class, one.step_name, counted(one.runs, ("run", "runs"))]


def _section(title: str, rows: Iterable[list[str]]) -> str:
    lines = aligned(rows).splitlines()
    return "\n".join([title, *(f"  {line}" for line in lines)])
