"""The host's surroundings of guards, bodies and jobs: its sessions, its `around=`."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from pgbus.engine.errors import InvalidSetting
from pgbus.engine.subjects import SubjectReference, load_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Host:
    """What the application gave the bus: a session factory and a context for its code."""

    def __init__(
        self,
        session_factory: Callable[[], Any] | None,
        around: Callable[[], AbstractContextManager[Any]] | None,
    ) -> None:
        _check_callable("session_factory", session_factory, "db.session or a sessionmaker")
        _check_callable("around", around, "app.app_context, without ()")
        self._session_factory = session_factory
        self._around = around or nullcontext

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Enter the context in which the host's code runs (an application context, say).

        An error that `around=` swallows would pass for success: it comes out as a RuntimeError.
        """
        swallowed: BaseException | None = None
        with self._around():
            try:
                yield
            except BaseException as error:
                swallowed = error
                raise
            return
        raise RuntimeError(
            f"around= swallowed what its block raised ({type(swallowed).__qualname__}); let errors "
            "pass through it."
        ) from swallowed

    def phase_session(self) -> PhaseSession:
        """Return a session for one phase of one attempt; nothing is opened before it is used."""
        return PhaseSession(self._session_factory)

    def load(self, reference: SubjectReference) -> object | None:
        """Return the record, for a caller outside any step.

        Through a scoped_session it belongs to the caller's own session; else it is
        detached from the session that loaded it.
        """
        if self._session_factory is None:
            return load_subject(reference, None)
        session = self._session_factory()
        if hasattr(self._session_factory, "remove"):
            return load_subject(reference, session)
        with session:
            return load_subject(reference, session)


def _check_callable(setting: str, value: object, example: str) -> None:
    if value is not None and not callable(value):
        raise InvalidSetting(
            setting, f"must be callable, such as {example}; this is a {type(value).__qualname__}"
        )


class PhaseSession:
    """The host's session of one phase: opened on first use, always closed."""

    def __init__(self, factory: Callable[[], Any] | None) -> None:
        self._factory = factory
        self._scope: Any = factory if hasattr(factory, "remove") else None
        self._session: Any = None

    def __call__(self) -> Any:
        """Return the session; raise `InvalidSetting` when the bus has no session_factory."""
        if self._session is None:
            if self._factory is None:
                raise InvalidSetting(
                    "session_factory",
                    "is missing, and self.session needs it: give Pgbus(session_factory=...) your "
                    "sessionmaker or scoped_session.",
                )
            # A scoped_session itself is kept, not the session it holds: only it can remove it.
            self._session = self._scope or self._factory()
        return self._session

    def load(self, reference: SubjectReference) -> object | None:
        """Return the record of this phase; None when it is gone.

        An adapter may do without a session.
        """
        return load_subject(reference, None if self._factory is None else self())

    def commit(self) -> None:
        """Commit what the phase wrote, if it used the session."""
        if session := self._used():
            session.commit()

    def close(self) -> None:
        """Roll back what was not committed and give the connection back."""
        session, self._session = self._used(), None
        if session is None:
            return
        if session is self._scope:
            session.remove()
        else:
            session.close()

    def _used(self) -> Any:
        """Return the session if the host's code used it; a scoped one also past `self.session`."""
        if self._session is None and self._scope is not None:
            # Outside its scope (no application context, say) asking raises: none was used.
            with suppress(Exception):
                return self._scope if self._scope.registry.has() else None
        return self._session
