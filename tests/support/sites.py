"""A host's application with the dashboard in it, and what its pages hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser

from flask import Flask

from pgbus.dashboard import allow_anyone, create_blueprint

#: Tags between which a sentence goes on, and all others.
_INLINE = re.compile(r"</?(?:a|b|bdi|code|i|q|strong|time|wbr)\b[^>]*>")
_BLOCKS = re.compile(r"<[^>]*>")


def site_of(bus, *, secret_key="signs the forms", **settings):
    """Returns a small host application with the dashboard of a bus at /pgbus."""
    site = Flask("host")
    site.secret_key = secret_key
    site.testing = True
    blueprint = create_blueprint(bus, **{"auth": allow_anyone, **settings})
    site.register_blueprint(blueprint, url_prefix="/pgbus")
    return site


def hidden_fields(html):
    """Returns the hidden fields of a page by their names; of several the first."""
    parser = _Hidden()
    parser.feed(html)
    return parser.found


def visible_text(answer):
    """Returns the text of a page as a person reads it, in one line."""
    return _read(answer.text)


@dataclass(frozen=True)
class Dialog:
    """The dialog that is open on a page: where its form goes, what comes with it, what it says."""

    action: str
    fields: dict[str, str]
    text: str


def dialog_of(html):
    """Returns the open dialog of a page, None when there is none."""
    if (found := re.search(r"<dialog .*?</dialog>", html, re.DOTALL)) is None:
        return None
    [action] = re.findall(r'<form method="post" action="([^"]*)"', found[0])
    return Dialog(unescape(action), hidden_fields(found[0]), _read(found[0]))


def toast_of(html):
    """Returns the tone and the text of the only toast of a page."""
    [(tone, text)] = re.findall(r'<div class="toast (\w+)">.*?<p>(.*?)</p>', html, re.DOTALL)
    return tone, unescape(text)


def rows_of(html):
    """Returns the text of each row of the page's tables, by its key."""
    found = re.findall(r'<tr role="row" data-key="([^"]*)">(.*?)</tr>', html, re.DOTALL)
    return {unescape(key): _read(row) for key, row in found}


def asks_of(html):
    """Returns the addresses of the dialogs that a page offers, by the words of their buttons."""
    found = {}
    for href, label in re.findall(r'href="([^"]+)" data-ask>(.*?)</a>', html, re.DOTALL):
        found.setdefault(_read(label), []).append(unescape(href))
    return found


def _read(html):
    return " ".join(unescape(_BLOCKS.sub(" ", _INLINE.sub("", html))).split())


class _Hidden(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = {}

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "input" and given.get("type") == "hidden":
            self.found.setdefault(given["name"], given.get("value", ""))
