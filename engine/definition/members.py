"""Jobs gathered into a batch: each is checked and encoded when it is added, and sent later."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec

from pgbus.engine.errors import AlreadyFinished

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime, timedelta
    from typing import Never

    from pgbus.engine.jobs.job import EnqueueOptions, Job

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class JobCall:
    """One call of a job, until its message is sent.

    `job` is its dotted name, `queue` the logical one, `body` the encoded envelope.
    """

    job: str
    queue: str
    priority: int
    wait: timedelta
    wait_until: datetime | None
    body: str


class Members:
    """The builder of a batch: takes jobs until its block ends, and sends nothing itself."""

    def __init__(self) -> None:
        self._calls: list[JobCall] = []
        self._closed = False

    @property
    def calls(self) -> tuple[JobCall, ...]:
        """What was added, in its order."""
        return tuple(self._calls)

    def add(
        self, job: Job[P, Any] | EnqueueOptions[P], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Add one call of a job, or of its `options(...)`.

        Raise `TypeError` for arguments that do not fit the function, `PayloadError` for one
        that cannot be stored, `AlreadyFinished` after the block.
        """
        self._extend([_call(job, args, kwargs)])

    def add_many(
        self,
        job: Job[..., Any] | EnqueueOptions[...],
        arguments: Iterable[tuple[Any, ...]],
        /,
    ) -> None:
        """Add a call for each tuple of positional arguments; all of them, or none on an error."""
        self._extend([_call(job, _positional(one), {}) for one in arguments])

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Let `enqueue()` of any job within the block add it here instead of sending it.

        So do those of the host's own functions that the block calls; a `session=` of theirs has
        no effect, and `enqueue()` returns None.
        """
        token = _collector.set(self)
        try:
            yield
        finally:
            _collector.reset(token)

    def close(self) -> None:
        """Take no more; the engine is about to send what there is."""
        self._closed = True

    def _extend(self, calls: list[JobCall]) -> None:
        if self._closed:
            raise AlreadyFinished(
                "The block (or step body) that this batch's members are added in has ended, and "
                "nothing more is sent; add to an open batch with Batch.find(batch_id).adding()."
            )
        self._calls.extend(calls)


class _Owned:
    """An attribute that a fan-out's body may not set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, instance: object, value: Never) -> None:
        raise AttributeError(
            f"{self._name} of a fan-out is the workflow's own, which goes on when the batch has "
            "finished: put what is to follow into the next step, and say with on_batch_failure= "
            "what becomes of failed jobs."
        )


class FanOut(Members):
    """The builder that a `fan_out` body gets: the run goes on when all that it added has ended."""

    on_complete = _Owned()
    on_success = _Owned()
    on_failure = _Owned()


_collector: ContextVar[Members | None] = ContextVar("pgbus_collector", default=None)


def collector() -> Members | None:
    """Return the builder that takes what is enqueued here, None outside of `collecting()`."""
    return _collector.get()


def _call(job: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobCall:
    encode = getattr(job, "call", None)
    if encode is None:
        raise TypeError(f"{job!r} is no job; add one that is declared with @job, or its options()")
    call: JobCall = encode(args, kwargs)
    return call


def _positional(arguments: Any) -> tuple[Any, ...]:
    if not isinstance(arguments, tuple):
        raise TypeError(
            f"add_many takes tuples of positional arguments, not {arguments!r:.100}; write (7,) for "
            "a single 7"
        )
    return arguments
