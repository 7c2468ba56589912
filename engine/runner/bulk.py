"""A verb on the runs of a stuck group: on each by itself, as it was when it was found."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from pgbus.engine.errors import PgbusError, RunMoved, RunNotFound
from pgbus.engine.insights import stuck
from pgbus.engine.insights.reading import reading
from pgbus.engine.runner import control
from pgbus.engine.runner.control import Request
from pgbus.engine.states import Verb
from pgbus.engine.storage.database import is_passing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from pgbus.engine.insights.stuck import GroupKey, Member
    from pgbus.engine.runner.services import Services

#: So many runs are taken at once, unless somebody asks for fewer.
LIMIT = 500

#: No further run is taken then: each that is locked by another transaction costs ten seconds.
_LONGEST_SECONDS = 30.0

_ACTS = {Verb.RESUME: control.resume, Verb.RUN_NOW: control.run_now, Verb.CANCEL: control.cancel}

_log = logging.getLogger("pgbus.runner")


class _Ending(Enum):
    DONE = auto()
    MOVED_ON = auto()
    IN_DOUBT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What became of the runs that were taken.

    `moved_on`: something else had moved them, so they were left alone. `first_failure` says why the
    first of the `failed` did. `in_doubt`: PostgreSQL went away while this run was in hand, so nobody
    knows whether the verb reached it. `may_be_more`: the limit, half a minute or an outage ended it
    before all that were asked for had been taken.
    """

    done: int
    moved_on: int
    failed: int
    first_failure: str | None
    in_doubt: str | None
    may_be_more: bool


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
    endings = list(_endings(services, verb, found[:limit], actor=actor, reason=reason))
    failures = [ending for ending in endings if isinstance(ending, str)]
    return BulkResult(
        done=endings.count(_Ending.DONE),
        moved_on=endings.count(_Ending.MOVED_ON),
        failed=len(failures),
        first_failure=failures[0] if failures else None,
        in_doubt=(found[len(endings) - 1].workflow_id if _Ending.IN_DOUBT in endings else None),
        may_be_more=len(endings) < len(found),
    )


def _endings(
    services: Services, verb: Verb, members: Sequence[Member], *, actor: str, reason: str | None
) -> Iterator[_Ending | str]:
    """Yield what became of each run, a text where the verb failed, until it has to end."""
    last_start = time.monotonic() + _LONGEST_SECONDS
    for member in members:
        ending = _ask(services, verb, member, Request(actor, reason, seen=member.updated_at))
        yield ending
        if ending is _Ending.IN_DOUBT or time.monotonic() > last_start:
            return


def _ask(services: Services, verb: Verb, member: Member, request: Request) -> _Ending | str:
    try:
        _ACTS[verb](services, member.workflow_id, request)
    except (RunMoved, RunNotFound):
        return _Ending.MOVED_ON
    except PgbusError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 (what fails one run, even a bug, must not hide what was done)
        if is_passing(error):
            return _Ending.IN_DOUBT
        _log.exception("%s of run %s failed.", verb, member.workflow_id)
        return f"{type(error).__qualname__}: {error}"
    return _Ending.DONE
