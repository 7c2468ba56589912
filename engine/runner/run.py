"""The handle of a run: what it reads, and the verbs a caller may ask of it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self

from pgbus.engine import codec, subjects
from pgbus.engine.definition import registry
from pgbus.engine.definition.signal import Sending
from pgbus.engine.errors import RunNotFound
from pgbus.engine.runner import control, signals, start
from pgbus.engine.runner.control import Request
from pgbus.engine.states import ONGOING, RunStatus, Verb, available_actions
from pgbus.engine.storage import runs
from pgbus.engine.storage import signals as signal_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from pgbus.engine.definition.signal import Signal
    from pgbus.engine.definition.start import HostSession
    from pgbus.engine.runner.services import Services
    from pgbus.engine.storage.runs import AttemptRow, EventRow, RunRow
    from pgbus.engine.storage.signals import SignalRow

_POLL = 0.05


class Run:
    """One execution of a workflow class, as it was when last read (`reload` reads again).

    Each verb is one guarded transition on the run as it is *now*: one that its state does
    not allow raises `InvalidTransition`, which names that state, and changes nothing.
    With `if_unmoved=True` it is one on the run as this handle saw it: once anything has moved
    the run since, the verb raises `RunMoved` and changes nothing.
    With `session=` a verb joins the host's transaction; nothing of it is visible or sent
    before the host commits. (A bare Connection as `session=` emits no events: it gives no
    word of its commit.)
    """

    def __init__(self, services: Services, row: RunRow, *, duplicate_start: bool = False) -> None:
        self._services = services
        self._row = row
        self.duplicate_start = duplicate_start

    def __repr__(self) -> str:
        return (
            f"<Run {self.workflow_id} {self.workflow_class} {self.status} at {self.current_step}>"
        )

    @property
    def workflow_id(self) -> str:
        """The run's id, a UUIDv7."""
        return self._row.workflow_id

    @property
    def workflow_class(self) -> str:
        """The dotted name of its class."""
        return self._row.workflow_class

    @property
    def status(self) -> RunStatus:
        """Its status when last read."""
        return self._row.status

    @property
    def current_step(self) -> str:
        """The step its newest attempt is of."""
        return self._row.current_step

    @property
    def created_at(self) -> datetime:
        """When it was started."""
        return self._row.created_at

    @property
    def ended_at(self) -> datetime | None:
        """When it finished or was cancelled; None while it is ongoing."""
        return self._row.ended_at

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What it was started with; a subject among them is a reference."""
        return self._row.arguments

    @property
    def subject(self) -> Any:
        """The record it is about, loaded through the host's session_factory; None when gone."""
        if self._row.subject_type is None or self._row.subject_id is None:
            return None
        reference = subjects.SubjectReference(self._row.subject_type, self._row.subject_id)
        return self._services.host.load(reference)

    @property
    def steps(self) -> list[AttemptRow]:
        """Every attempt of its steps, oldest first."""
        with self._services.database.autocommit() as connection:
            return runs.attempts(connection, self.workflow_id)

    @property
    def events(self) -> list[EventRow]:
        """Its audit trail, oldest first."""
        with self._services.database.autocommit() as connection:
            return runs.events(connection, self.workflow_id)

    @property
    def signals(self) -> list[SignalRow]:
        """Every signal it was sent, oldest first."""
        with self._services.database.autocommit() as connection:
            return signal_rows.of_run(connection, self.workflow_id)

    @property
    def outputs(self) -> Mapping[str, Mapping[str, Any]]:
        """The output of each step's latest completed attempt."""
        with self._services.database.autocommit() as connection:
            encoded = runs.outputs(connection, self.workflow_id)
        return {name: codec.decode(text) for name, text in encoded.items()}

    @property
    def available_actions(self) -> tuple[Verb, ...]:
        """The verbs that its present state allows (read afresh)."""
        with self._services.database.autocommit() as connection:
            row = self._found(runs.find(connection, self.workflow_id))
            attempt = runs.newest_attempt(connection, row)
        loaded = registry.find(row.workflow_class) is not None
        return available_actions(row.status, attempt.status, class_loaded=loaded)

    @property
    def definition_outdated(self) -> bool:
        """Whether its class has changed its steps since it began; False for a class not loaded."""
        definition = registry.find(self.workflow_class)
        return definition is not None and definition.digest != self._row.definition_digest

    @property
    def rerun_of(self) -> str | None:
        """The id of the run that this one repeats."""
        return self._row.rerun_of

    @property
    def reruns(self) -> list[str]:
        """The ids of the runs that repeat this one."""
        with self._services.database.autocommit() as connection:
            return runs.reruns(connection, self.workflow_id)

    def reload(self) -> Self:
        """Read the run again; raise `RunNotFound` when it was deleted."""
        with self._services.database.autocommit() as connection:
            self._row = self._found(runs.find(connection, self.workflow_id))
        return self

    def wait(self, timeout: float | timedelta = 30.0) -> Self:
        """Wait until the run has ended (seconds or timedelta); raise `TimeoutError` otherwise.

        For tests and scripts: it asks the database twenty times a second.
        """
        seconds = timeout if isinstance(timeout, (int, float)) else timeout.total_seconds()
        deadline = time.monotonic() + seconds
        while self.reload().status in ONGOING:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Run {self.workflow_id} is still {self.status} at {self.current_step} after "
                    f"{seconds:g} s."
                )
            threading.Event().wait(_POLL)
        return self

    def pause(
        self,
        *,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        if_unmoved: bool = False,
    ) -> Self:
        """Pause the run: nothing starts; a body that runs ends, and what follows waits."""
        request = self._request(actor, reason, session, if_unmoved=if_unmoved)
        return self._now(control.pause(self._services, self.workflow_id, request))

    def resume(
        self,
        *,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        if_unmoved: bool = False,
    ) -> Self:
        """Go on: retry a failed step, continue after a completed one, keep a scheduled time."""
        request = self._request(actor, reason, session, if_unmoved=if_unmoved)
        return self._now(control.resume(self._services, self.workflow_id, request))

    def resume_at(
        self,
        step: str,
        *,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        if_unmoved: bool = False,
    ) -> Self:
        """Go on with a new attempt of this step, also one that completed before."""
        request = self._request(actor, reason, session, if_unmoved=if_unmoved)
        return self._now(control.resume_at(self._services, self.workflow_id, step, request))

    def cancel(
        self,
        *,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        if_unmoved: bool = False,
    ) -> Self:
        """Cancel the run; the outcome of a body that still runs is ignored."""
        request = self._request(actor, reason, session, if_unmoved=if_unmoved)
        return self._now(control.cancel(self._services, self.workflow_id, request))

    def skip(
        self,
        *,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        if_unmoved: bool = False,
    ) -> Self:
        """Skip the step that the waiting or paused run is on and schedule the next."""
        request = self._request(actor, reason, session, if_unmoved=if_unmoved)
        return self._now(control.skip(self._services, self.workflow_id, request))

    def run_now(
        self,
        *,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        if_unmoved: bool = False,
    ) -> Self:
        """Run the scheduled step at once; one that is due already is sent again."""
        request = self._request(actor, reason, session, if_unmoved=if_unmoved)
        return self._now(control.run_now(self._services, self.workflow_id, request))

    def reschedule(
        self,
        at: datetime,
        *,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        if_unmoved: bool = False,
    ) -> Self:
        """Move the scheduled step to an aware moment; the past means now."""
        request = self._request(actor, reason, session, if_unmoved=if_unmoved)
        return self._now(control.reschedule(self._services, self.workflow_id, at, request))

    def signal(
        self,
        name: str,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        *,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
        if_unmoved: bool = False,
    ) -> Signal:
        """Send a signal: the step that waits for it runs at once, a later one finds it stored.

        A key that was used before stores nothing and returns the earlier signal, with
        `duplicate_delivery` true. Raise `NotOngoing` when the run is over, `SignalKeyReused` for a key
        that came with another name, `PayloadError` for a payload that cannot be stored or is not what
        the step declares.
        """
        seen = self._row.updated_at if if_unmoved else None
        sending = Sending(name, payload, idempotency_key, actor, reason, session, seen)
        return signals.signal(self._services, self.workflow_id, sending)

    def rerun(
        self,
        *,
        idempotency_key: str | None = None,
        actor: str = "app",
        reason: str | None = None,
        session: HostSession | None = None,
    ) -> Run:
        """Start a new run with the same subject and arguments; the two know of each other.

        A key that the class has used before starts nothing: the earlier run is returned, with
        `duplicate_start` true.
        """
        request = Request(actor, reason, session)
        return start.rerun(self._services, self.workflow_id, request, idempotency_key)

    def _request(
        self, actor: str, reason: str | None, session: HostSession | None, *, if_unmoved: bool
    ) -> Request:
        return Request(actor, reason, session, seen=self._row.updated_at if if_unmoved else None)

    def _now(self, row: RunRow) -> Self:
        self._row = row
        return self

    def _found(self, row: RunRow | None) -> RunRow:
        if row is None:
            raise RunNotFound(f"There is no run {self.workflow_id} (any more).")
        return row
