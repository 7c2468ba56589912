"""Steps performed one by one, or all of them, whenever they are due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbus.engine.errors import InvalidTransition, PgbusError, RunNotFound, StepWaiting
from pgbus.engine.states import RunStatus
from pgbus.engine.storage import batches, waits
from pgbus.testing import taking
from pgbus.testing.taking import ACTOR, services_of, worker_of

if TYPE_CHECKING:
    from pgbus.engine.runner.run import Run
    from pgbus.engine.storage.claims import Delivery
    from pgbus.engine.storage.runs import AttemptRow

_AT_REST = frozenset({RunStatus.PAUSED, RunStatus.FINISHED, RunStatus.CANCELLED})


def perform_next_step(run: Run) -> Run:
    """Perform the step that the run is on, however far off it is.

    What its body raises goes to the policies, as in a worker, and is not raised here. Raise
    `StepWaiting` when the run waits for a signal or a batch, and `InvalidTransition` when it is
    performing, paused or over; both say what to do instead.
    """
    attempt = newest_attempt(run)
    if run.status is not RunStatus.READY:
        raise refusal(run, attempt)
    return perform(run, attempt)


def run_step_inline(run: Run, step: str) -> Run:
    """Perform the run's next step if it is the named one; else raise `InvalidTransition`.

    Raise also what `perform_next_step` raises.
    """
    following = newest_attempt(run).step_name
    if run.status is RunStatus.READY and following != step:
        raise InvalidTransition(
            f"{_named(run)} is on its step {following!r}, not on {step!r}: perform what comes before "
            "with perform_next_step(run), or pause it and use run.resume_at(step).",
            status=run.status,
        )
    return perform_next_step(run)


def speedrun(run: Run, max_steps: int = 1000) -> Run:
    """Perform step after step until the run is paused, finished or cancelled.

    Raise `StepWaiting` when it waits, naming the helper that moves it on, and `RuntimeError` when
    it is not there after `max_steps`.
    """
    performed = 0
    while _reloaded(run).status not in _AT_REST:
        if performed == max_steps:
            raise RuntimeError(
                f"{_named(run)} is still {run.status} at {run.current_step!r} after {max_steps} steps: "
                "does a step reattempt itself without end? Else give a larger max_steps=."
            )
        perform_next_step(run)
        performed += 1
    return run


def newest_attempt(run: Run) -> AttemptRow:
    """Reload the run and return the attempt that decides what it is on."""
    return _reloaded(run).steps[-1]


def _reloaded(run: Run) -> Run:
    try:
        return run.reload()
    except RunNotFound as error:
        error.add_note("A run that was started with session= exists once that session committed.")
        raise


def perform(run: Run, attempt: AttemptRow) -> Run:
    """Perform the scheduled attempt of a ready run, by its own message."""
    delivery = _due(run, attempt)
    if delivery is not None:
        taking.perform(run, delivery)
    performed = next(one for one in run.steps if one.step_id == attempt.step_id)
    if performed.worker != worker_of(services_of(run)).name:
        raise InvalidTransition(
            f"{_named(run)}: another worker took its step {attempt.step_name!r} first. Let none run "
            "(bus.run_in_background(), pgbus start) while a test moves runs itself.",
            status=run.reload().status,
        )
    return run.reload()


def _due(run: Run, attempt: AttemptRow) -> Delivery | None:
    """Take the attempt's message; one that is not sent yet, not due, or lost is sent by run_now."""
    with services_of(run).database.autocommit() as connection:
        early = waits.is_ahead(connection, attempt.scheduled_at)
    delivery = None if early else taking.take(run, attempt.queue, attempt.message_id)
    if delivery is None:
        run.run_now(actor=ACTOR)
        sent = run.steps[-1]
        delivery = taking.take(run, sent.queue, sent.message_id)
    return delivery


def refusal(run: Run, attempt: AttemptRow) -> PgbusError:
    """Return the error that says what the run is at, and what moves it on from there."""
    if run.status is RunStatus.WAITING:
        return StepWaiting(
            f"{_named(run)} waits at its step {attempt.step_name!r} {_wait(run, attempt)}."
        )
    match run.status:
        case RunStatus.READY:
            state = (
                f"ready at its step {attempt.step_name!r}: perform it with perform_next_step(run)"
            )
        case RunStatus.PERFORMING:
            state = (
                f"performing {attempt.step_name!r} in {attempt.worker}: let no other worker run while a "
                "test moves runs itself; one that is left over from a crash ends with run.cancel()"
            )
        case RunStatus.PAUSED:
            cause = (
                f" by {attempt.error_class} ({attempt.error_message})"
                if attempt.error_class
                else ""
            )
            state = f"paused at {attempt.step_name!r}{cause}: go on with run.resume()"
        case _:
            state = f"{run.status}: it is over; start another, or use run.rerun()"
    return InvalidTransition(f"{_named(run)} is {state}.", status=run.status)


def _wait(run: Run, attempt: AttemptRow) -> str:
    if attempt.batch_id is None:
        return (
            f"for the signal {attempt.waiting_for!r}: send it with deliver_signal(run, ...), or let "
            "its deadline come with expire_wait(run)"
        )
    with services_of(run).database.autocommit() as connection:
        batch = batches.find(connection, attempt.batch_id)
    jobs = f"{batch.open_jobs} of {batch.total_jobs} jobs are open" if batch else "it is gone"
    return f"for its batch {attempt.batch_id} ({jobs}): end it with complete_fan_out(run)"


def _named(run: Run) -> str:
    return f"Run {run.workflow_id} of {run.workflow_class}"
