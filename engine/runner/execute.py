"""The body: run with no lock held, or in the host's transaction together with its outcome."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pgbus.engine.definition.scope import Phase
from pgbus.engine.runner.attempt import COMMITTING, commits_refused
from pgbus.engine.runner.finalize import Applied, Ending
from pgbus.engine.runner.policies import after_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbus.engine.runner.attempt import Attempt
    from pgbus.engine.runner.decide import Result
    from pgbus.engine.runner.finalize import Finalizer
    from pgbus.engine.runner.host import PhaseSession
    from pgbus.engine.runner.services import Services


def execute(services: Services, finalizer: Finalizer, attempt: Attempt) -> Ending | Applied:
    """Runs the body; an `Applied` is committed already, together with what the body wrote."""
    began = time.monotonic()
    decider = services.decider(attempt.delivery, attempt.definition, attempt.step)

    def ending(result: Result) -> Ending:
        final = decider.after_result(result)
        return Ending(attempt.delivery, attempt.definition, final, time.monotonic() - began)

    try:
        with attempt.phase(Phase.BODY) as (workflow, session):
            if attempt.step.transactional:
                return _in_host_transaction(services, finalizer, attempt, workflow, session, ending)
            result = attempt.run_body(workflow)
            if result.outcome in COMMITTING:
                session.commit()
        return ending(result)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a host's body: whatever it raises is recorded)
        return after_error(services, attempt, error, seconds=time.monotonic() - began)


def _in_host_transaction(
    services: Services,
    finalizer: Finalizer,
    attempt: Attempt,
    workflow: Any,
    session: PhaseSession,
    ending: Callable[[Result], Ending],
) -> Ending | Applied:
    """Runs a transactional body: its writes, its completion and the next attempt commit as one.

    A host session of another database is refused before the body writes anything. When
    the attempt was taken away meanwhile, the host's writes are rolled back.
    """
    host = session()
    services.database.joined(host)
    with commits_refused(host) as permit:
        result = attempt.run_body(workflow)
        ended = ending(result)
        if result.outcome not in COMMITTING:
            return ended
        host.flush()
        applied = finalizer.apply(services.database.joined(host), ended)
        if applied.finalized.verdict == "late":
            host.rollback()
            return ended
        permit()
        session.commit()
    return applied
