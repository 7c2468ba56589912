"""A verb on the runs of a stuck group, or of whatever else was found: on each by itself, as it was then."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pgbus.engine.errors import PgbusError, RunMoved, RunNotFound
from pgbus.engine.insights import stuck
from pgbus.engine.insights.reading import reading
from pgbus.engine.runner import control
from pgbus.engine.runner.control import Request
from pgbus.engine.states import Verb
from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from pgbus.engine.insights.stuck import GroupKey, Member
    from pgbus.engine.runner.services import Services

T = TypeVar("T")

#: So many are taken at once, unless somebody asks for fewer.
LIMIT = 500

#: No further one is taken then: each run that is locked by another transaction costs ten seconds.
LONGEST_SECONDS = 30.0

_ACTS = {Verb.RESUME: control.resume, Verb.RUN_NOW: control.run_now, Verb.CANCEL: control.cancel}

#: What can be asked of many runs at once.
VERBS = frozenset(_ACTS)

_log = logging.getLogger("pgbus.runner")


class _Ending(Enum):
    DONE = auto()
    MOVED_ON = auto()
    IN_DOUBT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What became of those that were taken.

    `moved_on`: something else had moved them, so they were left alone. `first_failure` says why the
    first of the `failed` did. `in_doubt`: PostgreSQL went away while this one was in hand, so nobody
    knows whether the verb reached it. `may_be_more`: the limit, the time, who asked or an outage ended it
    before all that were asked for had been taken.
    """

    done: int
    moved_on: int
    failed: int
    first_failure: str | None
    in_doubt: str | None
    may_be_more: bool

    @property
    def taken(self) -> int:
        """How many were taken, whatever became of them."""
        return self.done + self.moved_on + self.failed + (self.in_doubt is not None)


def act(
    services: Services,
    group: GroupKey,
    verb: Verb,
    *,
    stuck_before: datetime,
    at_most: int,
    actor: str,
    reason: str | None,
    limit: int = LIMIT,
) -> BulkResult:
    """Ask the verb of the group's runs that were stuck at the moment, those first that were for longest.

    At most `at_most` are taken, and no more than `limit` of them, each in a transition of its own: what
    is done stays done, whatever becomes of the others. `stuck.VERBS` tells which verb can be asked; any other
    raises `ValueError`.
    """
    if verb not in stuck.VERBS[group.reason]:
        allowed = " or ".join(stuck.VERBS[group.reason])
        raise ValueError(f"{verb} of runs that are {group.reason}: only {allowed} can be asked.")
    if at_most < 0:
        raise ValueError(f"at_most is {at_most}; give a number of runs.")
    with reading(services) as connection:
        services.bus.check_schema()
        found = stuck.members(
            connection,
            services.settings,
            group,
            stuck_before=stuck_before,
            limit=min(at_most, limit + 1),
        )
    return on_runs(services, found, verb, actor=actor, reason=reason, limit=limit)


def on_runs(
    services: Services,
    found: Sequence[Member],
    verb: Verb,
    *,
    actor: str,
    reason: str | None,
    limit: int = LIMIT,
    goes_on: Callable[[int], bool] | None = None,
) -> BulkResult:
    """Ask one of `VERBS` of runs as they were found, in the manner of `press`."""
    return press(
        found,
        partial(_is_done, services, verb, actor, reason),
        limit=limit,
        name=lambda member: member.workflow_id,
        goes_on=goes_on,
    )


def press(
    found: Sequence[T],
    ask: Callable[[T], bool],
    *,
    limit: int,
    name: Callable[[T], str],
    goes_on: Callable[[int], bool] | None = None,
) -> BulkResult:
    """Ask something of each that was found, at most `limit`; `ask` returns False of one that has moved on.

    `name` is what one is called in the result and the log. `goes_on` is told how many more were taken, and tells
    whether another may be; without it that is so for half a minute.
    """
    endings = list(_endings(found[:limit], ask, name, goes_on or for_seconds(LONGEST_SECONDS)))
    failures = [ending for ending in endings if isinstance(ending, str)]
    return BulkResult(
        done=endings.count(_Ending.DONE),
        moved_on=endings.count(_Ending.MOVED_ON),
        failed=len(failures),
        first_failure=failures[0] if failures else None,
        in_doubt=name(found[len(endings) - 1]) if _Ending.IN_DOUBT in endings else None,
        may_be_more=len(endings) < len(found),
    )


def for_seconds(seconds: float) -> Callable[[int], bool]:
    """Return what lets others be taken for so long from now."""
    last_start = time.monotonic() + seconds
    return lambda _taken: time.monotonic() <= last_start


def _endings(
    found: Sequence[T],
    ask: Callable[[T], bool],
    name: Callable[[T], str],
    goes_on: Callable[[int], bool],
) -> Iterator[_Ending | str]:
    """Yield what became of each, a text where the verb failed, until it has to end."""
    for one in found:
        ending = _ending(one, ask, name)
        yield ending
        if not goes_on(1) or ending is _Ending.IN_DOUBT:
            return


def _ending(one: T, ask: Callable[[T], bool], name: Callable[[T], str]) -> _Ending | str:
    try:
        return _Ending.DONE if ask(one) else _Ending.MOVED_ON
    except PgbusError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 (what fails one, even a bug, must not hide what was done)
        if is_passing(error):
            return _Ending.IN_DOUBT
        _log.exception("The press failed on %s.", name(one))
        return f"{type(error).__qualname__}: {error}"


def _is_done(
    services: Services, verb: Verb, actor: str, reason: str | None, member: Member
) -> bool:
    request = Request(actor, reason, seen=member.updated_at)
    try:
        _ACTS[verb](services, member.workflow_id, request)
    except (RunMoved, RunNotFound):
        return False
    return True
