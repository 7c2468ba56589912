"""`pgbus start`, `worker`, `dispatcher`, which run workflows and jobs, and `processes`, which shows them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.options import Count, json_option
from pgbus.engine.cli.sentences import about, at
from pgbus.engine.cli.tables import table
from pgbus.engine.insights.processes import fleet
from pgbus.engine.insights.reading import reading
from pgbus.engine.observe import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgbus.engine.bus import Pgbus
    from pgbus.engine.insights.processes import Fleet, Process

F = TypeVar("F", bound="Callable[..., Any]")

#: Of what a process runs; as many attempts, and as many jobs.
_FEW = 10


def setting_option(setting: str, help_text: str, **shape: Any) -> Callable[[F], F]:
    """Return an option that sets a setting's variable before the application is imported."""

    def set_variable(_ctx: click.Context, _option: click.Parameter, value: object) -> None:
        if value is not None:
            os.environ[f"PGBUS_{setting.upper()}"] = str(value)

    return click.option(
        f"--{setting.replace('_', '-')}",
        callback=set_variable,
        expose_value=False,
        help=f"{help_text} Sets PGBUS_{setting.upper()}.",
        **shape,
    )


#: Given by the supervisor to its children: without the process that has it, they stop.
supervisor_option = click.option("--supervisor", type=int, hidden=True)

log_format_option = setting_option(
    "log_format", "How records are written.", type=click.Choice(["text", "json"])
)


@click.command()
@app_option(why="start must load your workflows and jobs")
@setting_option("workers", "How many worker processes.", type=int)
@log_format_option
@click.pass_context
def start(ctx: click.Context, app: str) -> None:
    """Run workers and a dispatcher, and restart what dies.

    The options set PGBUS_* variables; a keyword that your code gives to Pgbus(...) wins over
    them. So does logging that your code has configured.
    """
    from pgbus.engine.processes.supervisor import supervise  # noqa: PLC0415 (its process only)

    _run(ctx, app, lambda bus: supervise(bus, app))


@click.command()
@app_option(why="worker must load your workflows and jobs")
@setting_option("queues", "The queues to serve.", metavar="NAME,...")
@setting_option("threads", "How many steps and jobs run at once.", type=int)
@log_format_option
@supervisor_option
@click.pass_context
def worker(ctx: click.Context, app: str, supervisor: int | None) -> None:
    """Run one worker process.

    The options set PGBUS_* variables; a keyword that your code gives to Pgbus(...) wins over
    them. So does logging that your code has configured.
    """
    from pgbus.engine.processes.worker import run_worker  # noqa: PLC0415 (its process only)

    _run(ctx, app, lambda bus: run_worker(bus, supervisor=supervisor))


@click.command()
@app_option(why="dispatcher needs the Pgbus of your application")
@log_format_option
@supervisor_option
@click.pass_context
def dispatcher(ctx: click.Context, app: str, supervisor: int | None) -> None:
    """Run one dispatcher process: the timer and the repairs.

    The option sets a PGBUS_* variable; a keyword that your code gives to Pgbus(...) wins over
    it. So does logging that your code has configured.
    """
    from pgbus.engine.processes.dispatcher import run_dispatcher  # noqa: PLC0415 (its process only)

    _run(ctx, app, lambda bus: run_dispatcher(bus, supervisor=supervisor))


@click.command()
@app_option()
@click.option(
    "--limit",
    type=Count(10_000),
    default=100,
    show_default=True,
    help="At most so many processes, the silent ones first.",
)
@json_option
def processes(app: str | None, limit: int, *, as_json: bool) -> None:
    """Show what serves this database, and what it runs now."""
    with opened(app) as bus:
        bus.check_schema()
        with reading(bus.services) as connection:
            found = fleet(connection, bus.settings, limit=limit, few=_FEW)
        zone = ZoneInfo(bus.settings.time_zone)
    click.echo(document(found) if as_json else _text(found, zone))


def _text(found: Fleet, zone: ZoneInfo) -> str:
    if not found.processes:
        return "No process runs: pgbus start begins workers and a dispatcher."
    head = ("kind", "host", "pid", "revision", "last beat", "runs", "since")
    told = table(head, [row for one in found.processes for row in _rows(one, zone)])
    left = sum(found.alive.values()) + sum(found.silent.values()) - len(found.processes)
    return f"{told}\n{left} more: --limit shows them." if left else told


def _rows(process: Process, zone: ZoneInfo) -> Iterator[tuple[str, ...]]:
    """Yield the process with the first thing that it runs, then a row for each other."""
    who: tuple[str, ...] = (
        process.kind,
        process.host,
        str(process.pid),
        process.revision or "",
        f"{about(process.silent_seconds)} ago{'' if process.alive else ', silent'}",
    )
    for runs, since in [*_running(process, zone)] or [("", "")]:
        yield *who, runs, since
        who = ("",) * len(who)


def _running(process: Process, zone: ZoneInfo) -> Iterator[tuple[str, str]]:
    """Yield what it runs, and since when; at most so much as was asked for."""
    for one in process.attempts:
        what = f"{one.workflow_class} {one.step_name} {one.attempt} of {one.workflow_id}"
        yield what, at(one.started_at, zone)
    for job in process.running_jobs:
        yield (
            f"{job.job or 'a job'}, message {job.message_id} of {job.queue}",
            at(job.started_at, zone),
        )
    left = process.running - len(process.attempts) + process.jobs - len(process.running_jobs)
    if left:
        yield f"and {left} more", ""


def _run(ctx: click.Context, app: str, process: Callable[[Pgbus], int]) -> None:
    with opened(app) as bus:
        logs.configure(bus.settings.log_format)
        ctx.exit(process(bus))
