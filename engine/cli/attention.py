"""`pgbus workflows attention`: the runs that do not go on by themselves, by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.cli.documents import document
from pgbus.engine.cli.filters import class_hint, class_option
from pgbus.engine.cli.options import json_option
from pgbus.engine.cli.sentences import at
from pgbus.engine.cli.tables import shortened, table
from pgbus.engine.insights import stuck
from pgbus.engine.insights.reading import reading
from pgbus.engine.states import Move

if TYPE_CHECKING:
    from pgbus.engine.insights.stuck import Attention, StuckGroup

#: Of an error, or of why somebody paused; `--json` has 1,000 characters.
_MESSAGE_WIDTH = 80

_ENDS = {None: "", Move.FINISH: ", resume finishes", Move.STEP_CANCEL: ", resume cancels"}


@click.command()
@app_option()
@class_option
@json_option
def attention(app: str | None, workflow_class: str | None, *, as_json: bool) -> None:
    """Show what keeps runs from going on.

    The most frequent cause comes first: a class, a step, a reason and an error. `list`, and
    verbs with --all, take these as --class, --step, --stuck and --error.
    """
    with opened(app) as bus:
        bus.check_schema()
        with reading(bus.services) as connection:
            found = stuck.groups(connection, bus.settings, workflow_class)
        zone = ZoneInfo(bus.settings.time_zone)
    click.echo(document(found) if as_json else _text(found, zone))
    if not (as_json or found.groups) and (hint := class_hint(workflow_class, app)):
        click.echo(hint)


def _text(found: Attention, zone: ZoneInfo) -> str:
    if not found.groups:
        return "No run is stuck."
    head = ("runs", "since", "class", "step", "stuck", "error", "of the newest")
    total = f"{found.total} stuck."
    if not found.exhaustive:
        total = f"{found.total} stuck; these are the {len(found.groups)} biggest groups, there are more."
    return "\n".join([table(head, [_row(group, zone) for group in found.groups]), total])


def _row(group: StuckGroup, zone: ZoneInfo) -> tuple[str, ...]:
    key = group.key
    return (
        str(group.count),
        at(group.first_at, zone),
        key.workflow_class,
        key.step_name,
        f"{key.reason}{_ENDS[key.held]}",
        key.error_class or "none",
        shortened(_of_newest(group), _MESSAGE_WIDTH),
    )


def _of_newest(group: StuckGroup) -> str:
    """Return the newest run's error, else who paused it and why."""
    if group.newest_error_message or group.newest_actor is None:
        return group.newest_error_message or ""
    because = f": {group.newest_because}" if group.newest_because else ""
    return f"paused by {group.newest_actor}{because}"
