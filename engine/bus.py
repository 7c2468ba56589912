"""`Pgbus`: the settings and connections of one application, and the way into everything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from pgbus.engine import active
from pgbus.engine.definition import registry
from pgbus.engine.definition.workflow import Workflow
from pgbus.engine.errors import InvalidSetting, SchemaOutdated
from pgbus.engine.jobs import enqueue
from pgbus.engine.jobs import registry as jobs
from pgbus.engine.observe import metrics
from pgbus.engine.observe.emission import Emitter
from pgbus.engine.observe.reports import Reporters
from pgbus.engine.processes.background import Background
from pgbus.engine.runner import signals, start
from pgbus.engine.runner.event_loop import EventLoop
from pgbus.engine.runner.host import Host
from pgbus.engine.runner.run import Run
from pgbus.engine.runner.services import Services
from pgbus.engine.settings import Settings
from pgbus.engine.storage import definitions, messages, revision, runs
from pgbus.engine.storage.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pgbus.engine.definition.definition import Definition
    from pgbus.engine.definition.signal import Sending, Signal
    from pgbus.engine.definition.start import StartOptions
    from pgbus.engine.errors import AlreadyRunning
    from pgbus.engine.jobs.job import EnqueueOptions
    from pgbus.engine.observe.reports import Reporter
    from pgbus.engine.observe.tracing import Tracer
    from pgbus.engine.storage.runs import RunRow

S = TypeVar("S")


class Pgbus:
    """One application's workflows and jobs in one PostgreSQL database.

    `session_factory` makes the host's SQLAlchemy sessions (a sessionmaker or a
    scoped_session): subjects are loaded through it and it is `self.session` in a step.
    `around` gives a context manager that is entered around every guard, body and job
    (`app.app_context`, say). `error_reporters` are called with each error of a step or job, and
    with the facts around it. Everything else is a setting: a keyword here, else a
    `PGBUS_*` variable, else its default; see `Settings`.
    """

    def __init__(
        self,
        *,
        session_factory: Callable[[], Any] | None = None,
        around: Callable[[], AbstractContextManager[Any]] | None = None,
        error_reporters: Iterable[Reporter] = (),
        **settings: Any,
    ) -> None:
        self.settings = Settings.load(os.environ, **settings)
        self._metrics = metrics.recorder(self.settings)
        self.services = Services(
            bus=self,
            settings=self.settings,
            database=Database(self.settings),
            host=Host(session_factory, around),
            event_loop=EventLoop(),
            events=Emitter([self._metrics] if self._metrics else []),
            reporters=Reporters(error_reporters),
            tracer=_tracer() if self.settings.tracing else None,
        )
        self._queues: set[str] = set()
        self._definitions: set[tuple[str, str]] = set()
        self._migrated = False
        active.add_bus(self)

    def __repr__(self) -> str:
        url = self.services.database.engine.url.render_as_string(hide_password=True)
        return f"<Pgbus {url} schema {self.settings.schema}>"

    def start(
        self,
        workflow: type[Workflow[S]] | StartOptions[S],
        subject: S | None = None,
        /,
        **arguments: Any,
    ) -> Run:
        """Start a run on this bus; `workflow` is a class, or its `options(...)`."""
        with active.running_on(self):
            return workflow.start(subject, **arguments)

    def find(self, workflow_id: str) -> Run | None:
        """Return the run of any class, also of one that is not loaded; None when there is none."""
        with self.services.database.autocommit() as connection:
            row = runs.find(connection, workflow_id)
        return self.handle(row) if row else None

    def active(self) -> AbstractContextManager[None]:
        """Let `OrderWorkflow.start(...)` and its like mean this bus, within the block."""
        return active.activated(self)

    def migrate(self) -> None:
        """Bring the database to this code's schema; safe from many processes at once."""
        from pgbus.engine.storage import migrate  # noqa: PLC0415 (Alembic: half the import time)

        migrate.migrate(self.services.database.engine, self.settings.schema)

    def run_in_background(self) -> Background:
        """Start a worker and a dispatcher in this process; return what stops them.

        For development and small sites: `pgbus start` gives them processes of their own.
        """
        return Background(self)

    def close(self) -> None:
        """Close its connections; have the process forget this bus."""
        active.remove_bus(self)
        if self._metrics:
            self._metrics.close()
        self.services.event_loop.close()
        self.services.database.close()

    def start_run(
        self, options: StartOptions[Any], subject: object, arguments: Mapping[str, Any]
    ) -> Run:
        """Start a run as its options say."""
        return start.start(self.services, options, subject, arguments)

    def start_runs(
        self, options: StartOptions[Any], items: Iterable[tuple[Any, Mapping[str, Any]]]
    ) -> list[Run | AlreadyRunning]:
        """Start many runs as their options say."""
        return start.start_many(self.services, options, items)

    def enqueue_job(
        self, options: EnqueueOptions[...], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        """Send the message of a job's call as its options say; return its id."""
        return enqueue.enqueue(self.services, options, args, kwargs)

    def signal_subject(
        self,
        workflow_class: type[Workflow[Any]],
        subject: object,
        sending: Sending,
        *,
        missing: str,
    ) -> Signal | None:
        """Signal the ongoing run of exactly this class that is about the subject."""
        definition = workflow_class._definition  # noqa: SLF001 (the engine's own half of the class)
        return signals.signal_subject(self.services, definition, subject, sending, missing=missing)

    def find_run(self, workflow_class: type[Workflow[Any]], workflow_id: str) -> Run | None:
        """Return the run when it is of this class or a subclass; of any class for Workflow."""
        run = self.find(workflow_id)
        if run is None or workflow_class is Workflow:
            return run
        definition = registry.find(run.workflow_class)
        found = definition is not None and issubclass(definition.workflow_class, workflow_class)
        return run if found else None

    def removed_steps_in_flight(self, definition: Definition) -> dict[str, int]:
        """Count the ongoing runs that are on each gravestone of the class."""
        with self.services.database.autocommit() as connection:
            on_steps = runs.ongoing_on_steps(connection, definition.name, definition.removed)
        return {name: on_steps.get(name, 0) for name in definition.removed}

    def handle(self, row: RunRow, *, duplicate_start: bool = False) -> Run:
        """Return the handle of a run that was read."""
        return Run(self.services, row, duplicate_start=duplicate_start)

    def make_ready(self, definition: Definition) -> None:
        """Check the schema and bring into being what the runs of this class need.

        Done once per process and thing, on a connection of its own: a host's transaction
        never creates a table or keeps one locked.
        """
        self.check_schema()
        version = (definition.name, definition.digest)
        if version not in self._definitions:
            with self.services.database.autocommit() as connection:
                definitions.store(connection, definition)
            self.ensure_queues(map(self.services.queue_of, definition.steps))
            self._definitions.add(version)

    def check_schema(self, *, anew: bool = False) -> None:
        """Raise `SchemaOutdated` unless the database is migrated; ask until it is, or `anew`."""
        if self._migrated and not anew:
            return
        with self.services.database.engine.connect() as connection:
            self._migrated = revision.is_current(connection, self.settings.schema)
        if not self._migrated:
            raise SchemaOutdated(
                f"The schema {self.settings.schema} is not the one this pgbus needs: run "
                "`pgbus migrate` (`pgbus migrate --check` says what is missing)."
            )

    def known_queues(self) -> set[str]:
        """Return the logical queues that the loaded classes and jobs name."""
        steps = {
            step.queue
            for definition in registry.definitions()
            for step in definition.steps
            if step.queue
        }
        return {self.settings.workflow_queue, *steps, *jobs.queues()}

    def ensure_queues(self, queues: Iterable[str]) -> None:
        """Create those physical queues that do not exist."""
        unknown = set(queues) - self._queues
        if not unknown:
            return
        with self.services.database.autocommit() as connection:
            for queue in sorted(unknown - messages.queues(connection)):
                messages.create_queue(connection, queue)
        self._queues |= unknown


def _tracer() -> Tracer:
    try:
        from pgbus.engine.observe.tracing import Tracer  # noqa: PLC0415 (only where it is wanted)
    except ModuleNotFoundError:
        raise InvalidSetting(
            "tracing", "needs OpenTelemetry: pip install 'pgbus[opentelemetry]'"
        ) from None
    return Tracer()
