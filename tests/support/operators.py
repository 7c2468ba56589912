"""People at the console: each has a browser, and presses what the page in front of them offers."""

from __future__ import annotations

import re
from html import unescape

from support.sites import hidden_fields

_FORM = re.compile(r'<form\b[^>]*\baction="[^"]*/actions/([a-z_]+)"[^>]*>.*?</form>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_TOAST = re.compile(r'<div class="toast (\w+)">.*?<p>(.*?)</p>', re.DOTALL)


class Operator:
    """Somebody who looks at a run; a site made with `web_actor=by_name` knows who."""

    def __init__(self, site, name="alice"):
        self.browser = site.test_client()
        self.browser.environ_base["HTTP_X_OPERATOR"] = name
        self.html = ""

    def open(self, run):
        """Loads the run's page, and looks at it from here on."""
        self.html = self.browser.get(address(run)).text
        return self

    @property
    def offered(self):
        """The verbs whose forms the page has."""
        return {form.group(1) for form in _FORM.finditer(self.html)}

    def press(self, run, verb, **typed):
        """Sends the page's form of this verb; returns the answer, without going where it leads."""
        return self.post(run, verb, **hidden_fields(self.form(verb)), **typed)

    def post(self, run, verb, **fields):
        """Sends these fields, whether or not the page has a form of this verb."""
        token = hidden_fields(self.html)["csrf_token"]
        return self.browser.post(
            f"{address(run)}/actions/{verb}", data={"csrf_token": token, **fields}
        )

    def form(self, verb):
        """The HTML of the page's form of this verb."""
        return next(found.group(0) for found in _FORM.finditer(self.html) if found.group(1) == verb)

    def said(self, verb):
        """The text of the page's form of this verb, in one line."""
        return " ".join(unescape(_TAG.sub("", self.form(verb))).split())

    def told(self, answer):
        """Goes where the answer leads; returns the tone and the text of its only toast."""
        assert answer.status_code == 303, answer.text
        self.html = self.browser.get(answer.location).text
        ((tone, text),) = _TOAST.findall(self.html)
        return tone, unescape(text)


def by_name(request):
    """Names the operator, as `web_actor`."""
    return request.headers.get("X-Operator")


def address(run):
    """Where the page of a run is."""
    return f"/pgbus/workflows/{run.workflow_id}"
