"""`@job`: a function that can be called as ever, or enqueued for a worker to run."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from pgbus.engine.active import current_bus
from pgbus.engine.definition.members import JobCall, collector
from pgbus.engine.definition.options import (
    ZERO,
    OptionError,
    aware_moment,
    checked,
    declared_in,
    duration,
    priority,
    queue,
)
from pgbus.engine.errors import DefinitionError
from pgbus.engine.jobs import envelope, registry
from pgbus.engine.queues import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime, timedelta

    from pgbus.engine.definition.start import HostSession
    from pgbus.engine.definition.step import JobOptions

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE = "default"
DEFAULT_MAX_RETRIES = 5


class JobDeclaration(TypedDict, total=False):
    """Options of `job`."""

    queue: str
    max_retries: int
    priority: Literal[0, 1, 2]


def _retries(value: object) -> int:
    if type(value) is not int or value < 0:
        raise OptionError(f"{value!r} is no number of retries; give 0 (run once) or more")
    return value


_DECLARATION_CHECKS: dict[str, Callable[[Any], Any]] = {
    "queue": queue,
    "max_retries": _retries,
    "priority": priority,
}
_MESSAGE_CHECKS: dict[str, Callable[[Any], Any]] = {
    "queue": queue,
    "priority": priority,
    "wait": duration,
    "wait_until": aware_moment,
}


class Job(Generic[P, R]):
    """A declared job: `notify_vendor(7)` calls the function, `notify_vendor.enqueue(7)` sends it.

    Workers know it by `name`, its dotted name.
    """

    def __init__(self, function: Callable[P, R], options: Mapping[str, Any]) -> None:
        if not isinstance(function, FunctionType):
            raise DefinitionError(f"job takes a function, not {function!r}; write @job on a def")
        functools.update_wrapper(self, function)
        self.name = f"{function.__module__}.{function.__qualname__}"
        with declared_in(f"job {self.name}"):
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise OptionError("it is a generator and would never run; take out its yield")
            declared = checked(options, _DECLARATION_CHECKS)
        self.queue: str = declared.get("queue", DEFAULT_QUEUE)
        self.max_retries: int = declared.get("max_retries", DEFAULT_MAX_RETRIES)
        self.priority: int = declared.get("priority", DEFAULT_PRIORITY)
        self._function: Callable[P, R] = function
        # A decorator's wrapper takes what it takes, whatever the function inside it does.
        self._signature = inspect.signature(function, follow_wrapped=False)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self._function(*args, **kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> int | None:
        """Send the call to a worker, in a transaction of its own; return the message's id.

        None inside a batch's `collecting()`, which it joins.
        """
        return self.options().enqueue(*args, **kwargs)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobCall:
        """Return the call as a batch keeps it; see `EnqueueOptions.call`."""
        return self.options().call(args, kwargs)

    def options(
        self, *, session: HostSession | None = None, **options: Unpack[JobOptions]
    ) -> EnqueueOptions[P]:
        """Return options of one call: `notify_vendor.options(wait=60).enqueue(7)`.

        - `session`: nothing is sent before the host commits, and nothing after a rollback.
        - `queue`, `priority`: instead of the job's own.
        - `wait`, `wait_until`: not before both this long from now and this moment.
        """
        with declared_in(f"{self.name}.options"):
            message = checked(options, _MESSAGE_CHECKS)
        return EnqueueOptions(
            job=self,
            session=session,
            queue=message.get("queue", self.queue),
            priority=message.get("priority", self.priority),
            wait=message.get("wait", ZERO),
            wait_until=message.get("wait_until"),
        )

    def check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` when the function cannot be called with these."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self._signature}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOptions(Generic[P]):
    """How one call of a job is to be sent; what `notify_vendor.options(...)` returns."""

    job: Job[P, Any]
    session: HostSession | None
    queue: str
    priority: int
    wait: timedelta
    wait_until: datetime | None

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> int | None:
        """Send the call to a worker; return the message's id in its queue.

        None inside a batch's `collecting()`, which it joins. Raise `TypeError` for arguments that
        do not fit the function, `PayloadError` for one that cannot be stored.
        """
        if (members := collector()) is not None:
            members.add(replace(self, session=None), *args, **kwargs)
            return None
        self.job.check_call(args, kwargs)
        return current_bus().enqueue_job(self, args, kwargs)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobCall:
        """Return the call, checked and encoded, to be sent with a batch."""
        if self.session is not None:
            raise ValueError(
                f"{self.job.name}: what belongs to a batch is sent in the batch's transaction; leave "
                "session= out of its options"
            )
        self.job.check_call(args, kwargs)
        limit = current_bus().settings.workflow_max_payload_size
        return JobCall(
            job=self.job.name,
            queue=self.queue,
            priority=self.priority,
            wait=self.wait,
            wait_until=self.wait_until,
            body=envelope.encode(self.job.name, args, kwargs, limit=limit),
        )


@overload
def job(function: Callable[P, R], /) -> Job[P, R]: ...
@overload
def job(**options: Unpack[JobDeclaration]) -> Callable[[Callable[P, R]], Job[P, R]]: ...
def job(function: Any = None, /, **options: Any) -> Any:
    """Declare a function, or an `async def`, as a job: `@job`, or `@job(...)` with options.

    A job may run more than once: when it raises, and when its worker dies. Subjects among its
    arguments are loaded anew, in a session of the host's that is committed when it returns and
    rolled back when it raises.

    - `queue`: where its messages go ("default").
    - `max_retries`: how often it is tried again before it becomes a dead letter (5).
    - `priority`: 0 (first), 1 (the default) or 2 (last).
    """

    def declare(function: Callable[P, R]) -> Job[P, R]:
        declared = Job(function, options)
        registry.register(declared)
        return declared

    return declare if function is None else declare(function)
