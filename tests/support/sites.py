"""A host's application with the dashboard in it, and what its pages hold."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

from flask import Flask

from pgbus.dashboard import allow_anyone, create_blueprint

#: Tags between which a sentence goes on, and all others.
_INLINE = re.compile(r"</?(?:a|b|bdi|code|i|q|time|wbr)\b[^>]*>")
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
    text = _BLOCKS.sub(" ", _INLINE.sub("", answer.text))
    return " ".join(unescape(text).split())


class _Hidden(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = {}

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "input" and given.get("type") == "hidden":
            self.found.setdefault(given["name"], given.get("value", ""))
