"""How a run is to be started, until the bus starts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from pgbus.engine.active import current_bus
from pgbus.engine.definition.options import idempotency_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    from pgbus.engine.definition.workflow import Workflow
    from pgbus.engine.errors import AlreadyRunning
    from pgbus.engine.runner.run import Run

    HostSession = Session | scoped_session[Any] | Connection

#: The class of a workflow's subjects.
S = TypeVar("S", default=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions(Generic[S]):
    """Options of a start; what `OrderWorkflow.options(...)` returns.

    With a `session` the start joins its transaction. A blank `idempotency_key` is none.
    """

    workflow_class: type[Workflow[S]]
    session: HostSession | None = None
    idempotency_key: str | None = None
    actor: str = "app"
    reason: str | None = None

    def __post_init__(self) -> None:
        """Refuse a key that cannot be stored."""
        object.__setattr__(self, "idempotency_key", idempotency_key(self.idempotency_key))

    def start(self, subject: S | None = None, /, **arguments: Any) -> Run:
        """Start a run about `subject`; keywords are its arguments.

        Return the earlier run, with `duplicate_start` true, when the key was used before.
        Raise `AlreadyRunning` when the subject has an ongoing run of this class.
        """
        self._check()
        return current_bus().start_run(self, subject, arguments)

    def start_many(
        self, items: Iterable[tuple[S | None, Mapping[str, Any]]]
    ) -> list[Run | AlreadyRunning]:
        """Start a run for each (subject, arguments), in a few statements for thousands.

        A subject that has an ongoing run gives the `AlreadyRunning` in its place.
        """
        self._check()
        if self.idempotency_key is not None:
            raise ValueError("one idempotency_key cannot stand for many runs; start them singly")
        return current_bus().start_runs(self, items)

    def _check(self) -> None:
        self.workflow_class._definition.check_startable()  # noqa: SLF001 # the class's own part
