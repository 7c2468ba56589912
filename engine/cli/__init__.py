"""The `pgbus` command.

failures    what becomes of an error: one line and an exit code
app         --app: the host's bus
workflows, queues, jobs, dead_letters, migrate, processes, doctor    the commands, one noun a module
attention, stats    of `workflows`: what is stuck, and figures
on_runs, on_messages    a verb on one, or with --all on all that match
bulk        --all: the question, the progress, Ctrl-C
options, filters    what several of them take
documents   answers as JSON
answers, messages, effects, sentences, hints, tables       answers for people
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import click

from pgbus.engine.cli.attention import attention
from pgbus.engine.cli.dead_letters import dead_letters
from pgbus.engine.cli.doctor import doctor
from pgbus.engine.cli.failures import Commands
from pgbus.engine.cli.jobs import jobs
from pgbus.engine.cli.migrate import migrate
from pgbus.engine.cli.processes import dispatcher, processes, start, worker
from pgbus.engine.cli.queues import queues
from pgbus.engine.cli.stats import stats
from pgbus.engine.cli.workflows import workflows

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class _Main(Commands):
    """The commands of the engine, and those of what stands on it, loaded when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands that can run here."""
        return sorted({*super().list_commands(ctx), *filter(self._loads, _of_others())})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command; say what is to be installed for one that cannot be loaded."""
        if (found := super().get_command(ctx, name)) is not None:
            return found
        other = _of_others().get(name)
        if other is None:
            return None
        try:
            command: click.Command = other.load()
        except ImportError as problem:
            ctx.fail(f"{problem}: pip install 'pgbus[{name}]' brings what `pgbus {name}` needs.")
        return command

    def _loads(self, name: str) -> bool:
        try:
            _of_others()[name].load()
        except ImportError:
            return False
        return True


def _of_others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="pgbus.commands")}


@click.group(cls=_Main)
@click.version_option(package_name="pgbus", message="pgbus %(version)s")
def main() -> None:
    """Durable workflows on PostgreSQL.

    Commands that need your code take --app module:attribute (or PGBUS_APP), the Pgbus
    object of your application or a callable that returns one. The others run without it on
    PGBUS_DATABASE_URL.

    With --json a command prints one JSON document, an error too, as {"error": "..."} on
    standard error.

    \b
    Exit codes:
      0  done
      1  refused: the run's or message's state does not allow it, there is no such run,
         class, queue or message, a class is not loaded, the schema is not current (also:
         migrate --check); you said no; doctor found what keeps runs from going on
      2  wrong usage, a bad setting, or an application that cannot be loaded
      3  the database cannot be reached, or does not answer in time
      4  of many (--all, queues purge) some failed, or it was stopped before all were taken
    """  # noqa: D301 (click takes the character itself)


for command in (
    *(migrate, start, worker, dispatcher),
    *(workflows, queues, jobs, dead_letters, processes, doctor),
):
    main.add_command(command)
workflows.add_command(attention)
workflows.add_command(stats)
