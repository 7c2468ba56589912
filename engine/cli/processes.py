"""`pgbus start`, `worker` and `dispatcher`: the processes that run workflows and jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.observe import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.bus import Pgbus

F = TypeVar("F", bound="Callable[..., Any]")


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


def _run(ctx: click.Context, app: str, process: Callable[[Pgbus], int]) -> None:
    with opened(app) as bus:
        logs.configure(bus.settings.log_format)
        ctx.exit(process(bus))
