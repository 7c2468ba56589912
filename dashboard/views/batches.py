"""The list of batches, and one batch."""

from __future__ import annotations

import functools
from enum import StrEnum, auto
from typing import TYPE_CHECKING

from flask import request

from pgbus.dashboard.pages import batches
from pgbus.dashboard.parameters import BadParameter, Parameters
from pgbus.dashboard.views.places import refuse_both
from pgbus.dashboard.words import _
from pgbus.engine.insights.batches import BatchFilter
from pgbus.engine.states import MemberStatus

if TYPE_CHECKING:
    from flask import Response

    from pgbus.dashboard.console import Console


class _Extent(StrEnum):
    ALL = auto()


def show(console: Console) -> Response:
    """Return the batches that the address asks for."""
    given = Parameters(request.args)
    after, before = given.uuid("after"), given.uuid("before")
    refuse_both(after, before)
    wanted = given.choice("show", BatchFilter) or BatchFilter.ALL
    return console.show(functools.partial(batches.load, wanted=wanted, after=after, before=before))


def show_one(console: Console, batch_id: str) -> Response:
    """Return one batch with a page of its members."""
    given = Parameters(request.args)
    after, before = _place(given, "after"), _place(given, "before")
    refuse_both(after, before)
    return console.show(
        functools.partial(
            batches.load_one,
            batch_id=batch_id,
            outcome=given.choice("outcome", MemberStatus),
            whole=given.choice("properties", _Extent) is _Extent.ALL,
            after=after,
            before=before,
        )
    )


def _place(given: Parameters, name: str) -> int | None:
    """Return a member's number, which is a PostgreSQL integer."""
    number = given.number(name)
    if number is not None and number >= 2**31:
        raise BadParameter(name, str(number), _("the number of a job of the batch"))
    return number
