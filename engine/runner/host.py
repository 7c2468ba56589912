"""The host's surroundings of guards, bodies and jobs: its sessions, its `around=`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import NotInStep, UnknownSubject
from pgbus.engine.subjects import SubjectReference, load_subject

if TYPE_CHECKING:
    from collections.abc import Callable


class Host:
    """What the application gave the bus: a session factory and a context for its code."""

    def __init__(
        self,
        session_factory: Callable[[], Any] | None,
        around: Callable[[], AbstractContextManager[Any]] | None,
    ) -> None:
        self._session_factory = session_factory
        self._around = around or nullcontext

    def surroundings(self) -> AbstractContextManager[Any]:
        """The context in which the host's code runs (an application context, say)."""
        return self._around()

    def phase_session(self) -> PhaseSession:
        """A session for one phase of one attempt; nothing is opened before it is used."""
        return PhaseSession(self._session_factory)

    def load(self, reference: SubjectReference) -> object | None:
        """The record, for a caller outside any step.

        Through a scoped_session it belongs to the caller's own session; else it is
        detached from the session that loaded it.
        """
        if self._session_factory is None:
            raise UnknownSubject(
                f"{reference.type} {reference.id} cannot be loaded: the bus has no session_factory. "
                "Give it your sessionmaker or scoped_session."
            )
        session = self._session_factory()
        if hasattr(self._session_factory, "remove"):
            return load_subject(reference, session)
        with session:
            record = load_subject(reference, session)
            if record is not None and record in session:
                session.expunge(record)
            return record


class PhaseSession:
    """The host's session of one phase: opened on first use, always closed."""

    def __init__(self, factory: Callable[[], Any] | None) -> None:
        self._factory = factory
        self._session: Any = None

    @property
    def opened(self) -> bool:
        """Whether the host's code has used it."""
        return self._session is not None

    def __call__(self) -> Any:
        """The session; raises `NotInStep` when the bus has no session_factory."""
        if self._session is None:
            if self._factory is None:
                raise NotInStep(
                    "self.session needs Pgbus(session_factory=...): give the bus your sessionmaker "
                    "or scoped_session."
                )
            session = self._factory()
            # A scoped_session itself is kept, not the session it holds: only it can remove it.
            self._session = self._factory if hasattr(self._factory, "remove") else session
        return self._session

    def commit(self) -> None:
        """Commits what the phase wrote, if it used the session."""
        if self._session is not None:
            self._session.commit()

    def close(self) -> None:
        """Rolls back what was not committed and gives the connection back."""
        session, self._session = self._session, None
        if session is None:
            return
        if hasattr(session, "remove"):
            session.remove()
        else:
            session.close()
