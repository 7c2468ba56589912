"""What a run waits for without jobs, brought about: a signal, or a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgbus.engine.definition import registry
from pgbus.engine.insights.signals import unexpected
from pgbus.engine.runner import waits
from pgbus.engine.states import AttemptStatus, RunStatus
from pgbus.testing.steps import newest_attempt, perform, refusal
from pgbus.testing.taking import ACTOR, as_worker, services_of, worker_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbus.engine.runner.run import Run
    from pgbus.engine.storage.runs import AttemptRow


def deliver_signal(
    run: Run,
    name: str,
    payload: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Run:
    """Send the signal, and perform the step that it wakes.

    One that no step waits for yet is kept until a step takes it, and a redelivery (a key that was
    used before) is only noted: neither performs anything. Raise what `Run.signal` raises, and
    `ValueError` when no step of the class waits for signals of this name.
    """
    attempt = newest_attempt(run)
    definition = registry.find(run.workflow_class)
    if definition and (mistake := unexpected(definition, name)):
        raise ValueError(mistake)
    run.signal(name, payload, idempotency_key, actor=ACTOR)
    return _perform_if_woken(run, attempt)


def expire_wait(run: Run) -> Run:
    """Apply the `on_timeout` of the step that waits for a signal, however far off its deadline is.

    Under "run" its body is performed; under "notify" the run waits on. Raise `StepWaiting` when the
    run waits for a batch, `InvalidTransition` when it does not wait or is paused.
    """
    attempt = newest_attempt(run)
    services = services_of(run)
    worker = worker_of(services)
    if not as_worker(lambda: waits.expire(services, worker, run.workflow_id, early=True)):
        raise refusal(run, attempt)
    return _perform_if_woken(run, attempt)


def _perform_if_woken(run: Run, waited: AttemptRow) -> Run:
    """Perform the attempt if it waited and is scheduled now; return the reloaded run."""
    newest = newest_attempt(run)
    woken = waited.status is AttemptStatus.WAITING and newest.step_id == waited.step_id
    return perform(run, newest) if woken and run.status is RunStatus.READY else run
