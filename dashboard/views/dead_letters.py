"""The list of dead letters, one of them, and what can be done with them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from flask import request

from pgbus.dashboard.pages import dead_letters
from pgbus.dashboard.parameters import Parameters
from pgbus.dashboard.views import presses
from pgbus.dashboard.views.places import narrowed, place
from pgbus.engine.insights.jobs import JobFilter

if TYPE_CHECKING:
    from flask import Response
    from werkzeug.wrappers import Response as Redirect

    from pgbus.dashboard.console import Console


def show(console: Console) -> Response:
    """Return the dead letters that the address asks for, with its dialog; it changes nothing."""
    given = Parameters(request.args)
    wanted = presses.wanted_of(given)
    after, before = place(given)
    load = functools.partial(
        dead_letters.load,
        wanted=wanted,
        press=presses.asked(console, given, wanted, of_letters=True),
        after=after,
        before=before,
    )
    return narrowed(console, load, wanted.queue)


def act(console: Console) -> Redirect:
    """Do what the form says to a dead letter, or to all that match, and go back to the list."""
    wanted = presses.wanted_of(Parameters(request.args))
    return presses.act(console, console.here(), wanted, of_letters=True)


def show_one(console: Console, queue: str, number: str) -> Response | None:
    """Return the page of a dead letter."""
    if (message_id := presses.number_of(number)) is None:
        return None
    press = presses.asked_of_one(Parameters(request.args), of_letters=True)
    load = functools.partial(dead_letters.load_one, queue=queue, message_id=message_id, press=press)
    return console.show(load)


def act_one(console: Console, queue: str, number: str) -> Redirect:  # noqa: ARG001 (the address has it)
    """Do what the form says to the dead letter, which is over then, and go to those that are left."""
    return presses.act(console, console.url("dead_letters"), JobFilter(), of_letters=True)
