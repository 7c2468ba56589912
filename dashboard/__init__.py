"""The operator's console: a Flask blueprint over the engine's insights.

blueprint    the map of the pages; who is let in, forged forms, headers
host         what the host's application decides
console      how a page is read in one snapshot and rendered; who looks
views        parse, load or act, render; one noun a module
pages        the frozen context of each page, loaded from `pgbus.engine.insights`
presenters   states, sentences, durations, charts; pure
words, languages    one viewer's language, zone and clock; the catalogs
parameters   what the address and the forms say
toasts       what an action answered
assets       stylesheet, scripts, Plotly
command      `pgbus dashboard`
"""

from __future__ import annotations

from pgbus.dashboard.blueprint import create_blueprint
from pgbus.dashboard.host import allow_anyone, logged_in

__all__ = ["allow_anyone", "create_blueprint", "logged_in"]
