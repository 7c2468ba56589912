"""What became of one message or of many things that a verb was asked of, in words and as an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgbus.engine.cli.documents import document
from pgbus.engine.cli.failures import DatabaseAway, Incomplete, Refused
from pgbus.engine.cli.tables import printable
from pgbus.engine.jobs.control import Effect

if TYPE_CHECKING:
    from pgbus.engine.runner.bulk import BulkResult

_NOTHING_DONE = {
    Effect.DUE: "it is due, and waits for a worker only",
    Effect.IN_HAND: "a worker has it in hand",
    Effect.MOVED_ON: "it was delivered again meanwhile",
    Effect.OF_A_RUN: "it is a run's; pgbus workflows moves those",
    Effect.GONE: "there is no such message any more",
}


def tell_effect(queue: str, message_id: int, effect: Effect, done: str, *, as_json: bool) -> None:
    """Print what was done; raise `Refused` with the reason when nothing was."""
    if effect is not Effect.DONE:
        raise Refused(f"Message {message_id} of {queue}: {_NOTHING_DONE[effect]}.")
    answer = {"queue": queue, "message_id": message_id, "effect": effect}
    text = f"Message {message_id} of {queue}: {done}."
    click.echo(document(answer) if as_json else printable(text))


def tell_result(result: BulkResult, done: str, *, limit: int, as_json: bool) -> None:
    """Print what became of many, of at most `limit`; end in another exit code when that is not all well."""
    stopped = result.may_be_more and result.taken < limit
    if as_json:
        click.echo(document(result))
    else:
        click.echo(printable(" ".join(_sentences(result, done, stopped=stopped))))
    context = click.get_current_context()
    if result.in_doubt:
        context.exit(DatabaseAway.exit_code)
    if result.failed or stopped:
        context.exit(Incomplete.exit_code)


def _sentences(result: BulkResult, done: str, *, stopped: bool) -> list[str]:
    told = [f"{done} {result.done}."]
    if result.moved_on:
        told.append(f"{result.moved_on} had moved on.")
    if result.failed:
        told.append(f"{result.failed} failed, the first one: {result.first_failure}")
    if result.in_doubt:
        told.append(
            f"PostgreSQL went away during {result.in_doubt}: nobody knows whether it is done."
        )
    if stopped:
        told.append("Stopped before all were taken.")
    elif result.may_be_more:
        told.append("There may be more; ask again.")
    return told
