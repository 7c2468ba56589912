"""The body: run with no lock held, or in the host's transaction together with its outcome."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from pgbus.engine.definition.scope import Phase
from pgbus.engine.runner import fan_out
from pgbus.engine.runner.attempt import COMMITTING, commits_refused
from pgbus.engine.runner.decide import rule_stall
from pgbus.engine.runner.finalize import Applied, Ending
from pgbus.engine.runner.policies import after_error
from pgbus.engine.states import Outcome, StallAction
from pgbus.engine.storage import runs
from pgbus.engine.storage.database import is_passing
from pgbus.engine.storage.endings import EndVerdict

if TYPE_CHECKING:
    from pgbus.engine.runner.attempt import Attempt
    from pgbus.engine.runner.decide import Result
    from pgbus.engine.runner.finalize import Finalizer
    from pgbus.engine.runner.host import PhaseSession
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.database import Connection

_log = logging.getLogger("pgbus.runner")


def execute(services: Services, finalizer: Finalizer, attempt: Attempt) -> Ending | Applied:
    """Run the body; an `Applied` is committed already, together with what the body wrote."""
    execution = _Execution(services, finalizer, attempt)
    try:
        with attempt.phase(Phase.BODY) as (workflow, session):
            if attempt.step.transactional:
                return execution.in_host_transaction(workflow, session)
            return execution.by_itself(workflow, session)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a host's body: whatever it raises is recorded)
        return execution.failed(error)


class _Execution:
    """One body's run, and what became of it."""

    def __init__(self, services: Services, finalizer: Finalizer, attempt: Attempt) -> None:
        self._services = services
        self._finalizer = finalizer
        self._attempt = attempt
        self._began = time.monotonic()
        self._decider = services.decider(attempt.definition, attempt.step)
        #: The ending that went into the host's transaction; an error may hide that it committed.
        self._joined: Ending | None = None

    def by_itself(self, workflow: Any, session: PhaseSession) -> Ending:
        """Run the body and commit what it wrote through its session."""
        result = self._attempt.run_body(workflow)
        if result.outcome in COMMITTING:
            session.commit()
        return self._ending(result)

    def in_host_transaction(self, workflow: Any, session: PhaseSession) -> Ending | Applied:
        """Run a transactional body: its writes, completion and next attempt commit as one.

        Refuse a host session of another database before the body writes anything. When the
        attempt was taken away meanwhile, roll the host's writes back.
        """
        host = session()
        database = self._services.database
        database.joined(host)
        with commits_refused(host) as permit:
            result = self._attempt.run_body(workflow)
            ended = self._ending(result)
            if result.outcome not in COMMITTING:
                return ended
            self._joined = ended
            host.flush()
            applied = self._finalizer.apply(database.joined(host), ended)
            if applied.finalized.verdict is EndVerdict.LATE:
                host.rollback()
                return ended
            permit()
            session.commit()
        return applied

    def failed(self, error: BaseException) -> Ending:
        """Return how the attempt ends after an error.

        One that came after a transactional step's commit, or hid its success, changes
        nothing. A database that only failed for the moment is no fault of the body.
        """
        if self._joined is not None:
            if self._committed():
                _log.warning("Raised after its step had ended; that stands.", exc_info=error)
                return self._joined
            if is_passing(error):
                return self._again(error)
        return after_error(self._services, self._attempt, error, seconds=self._seconds())

    def _committed(self) -> bool:
        """Return whether the attempt has ended.

        The lock is had once a commit in flight is decided.
        """
        delivery = self._attempt.delivery

        def ended(connection: Connection) -> bool:
            runs.lock(connection, delivery.workflow_id)
            return not runs.in_progress(connection, delivery.step_id)

        return self._services.database.persistently(ended)

    def _again(self, error: BaseException) -> Ending:
        delivery, services = self._attempt.delivery, self._services
        _log.warning("The database failed a transactional step; trying again.", exc_info=error)
        final = self._decider.after_error(
            services.recorded(error),
            rule_stall(StallAction.REATTEMPT, reattempted=services.reattempts(delivery).by_stalls),
            output=self._attempt.storable_output(),
        )
        return Ending(delivery, self._attempt.definition, final, self._seconds())

    def _ending(self, result: Result) -> Ending:
        if self._attempt.step.fan_out and result.outcome is Outcome.COMPLETED:
            batch = fan_out.plan(self._services, self._attempt)
            final = self._decider.after_fan_out(result.output, batch)
        else:
            final = self._decider.after_result(result)
        return Ending(self._attempt.delivery, self._attempt.definition, final, self._seconds())

    def _seconds(self) -> float:
        return time.monotonic() - self._began
