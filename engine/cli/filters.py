"""The options that narrow runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgbus.engine.cli.tables import printable
from pgbus.engine.definition import registry
from pgbus.engine.insights.stuck import StuckReason

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

class_option = click.option(
    "--class", "workflow_class", metavar="DOTTED.NAME", help="Such as shop.workflows.OrderWorkflow."
)


def _stuck_reason(
    _ctx: click.Context, _option: click.Parameter, text: str | None
) -> StuckReason | None:
    return StuckReason(text) if text else None


def run_filters(command: F) -> F:
    """Give a command the options that narrow runs, named as fields of a `RunFilter`; the status aside."""
    for option in (
        click.option("--subject-id", metavar="ID"),
        click.option("--subject-type", metavar="TYPE"),
        click.option(
            "--stuck",
            type=click.Choice([reason.value for reason in StuckReason]),
            callback=_stuck_reason,
            help="Why a run does not go on.",
        ),
        click.option("--error", "error_class", metavar="CLASS", help="Of a run's newest attempt."),
        click.option("--step", "current_step", metavar="NAME", help="The step a run is on."),
        class_option,
    ):
        command = option(command)
    return command


def class_hint(workflow_class: str | None, app: str | None) -> str | None:
    """Tell what may be wrong with a name that matched nothing; None for that of a loaded class."""
    known = [definition.name for definition in registry.definitions()]
    if workflow_class is None or workflow_class in known:
        return None
    hint = "--class takes a whole dotted name, such as shop.workflows.OrderWorkflow."
    if app:
        hint += f" {app} knows {', '.join(known) or 'no workflow class'}."
    return printable(hint)
