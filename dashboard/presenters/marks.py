"""Small pieces of a page that repeat from row to row, made once each: names, places, icons."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from markupsafe import Markup

from pgbus.dashboard.words import breakable, code

if TYPE_CHECKING:
    from pgbus.engine.insights.runs import StepPlace

#: More squares than this would be a line.
_MOST_SQUARES = 24
#: A commit's hash, of which so many characters tell it from others.
_HASH = re.compile(r"[0-9a-f]{13,}")
_ENOUGH = 12


@functools.lru_cache(maxsize=256)
def icon(name: str, more: str = "") -> Markup:
    """Return an icon of the sprite, hidden from whoever listens: a word stands beside it."""
    classes = f"ico {more}" if more else "ico"
    return Markup('<svg class="%s" aria-hidden="true"><use href="#i-%s"/></svg>') % (classes, name)


@functools.lru_cache(maxsize=1024)
def badge(word: str, tone: str, icon_name: str) -> Markup:
    """Return a state by its translated word, its tone and its icon."""
    return Markup('<span class="badge %s">%s%s</span>') % (tone, icon(icon_name), word)


@functools.lru_cache(maxsize=4096)
def class_name(name: str) -> Markup:
    """Return a class's dotted name, its module standing back."""
    module, dot, own = name.rpartition(".")
    if not dot:
        return Markup("<bdi>%s</bdi>") % breakable(own)
    return Markup('<bdi><span class="mod">%s.</span><wbr>%s</bdi>') % (
        breakable(module),
        breakable(own),
    )


def link(href: str, text: str, label: str | None = None) -> Markup:
    """Return a text as a link; one that is HTML stays so. With a label for whoever hears it alone."""
    if label is None:
        return Markup('<a href="%s">%s</a>') % (href, text)
    return Markup('<a href="%s" aria-label="%s">%s</a>') % (href, label, text)


def short_id(identifier: str) -> Markup:
    """Return the end of an id, by which people tell it from others; all of it on hover."""
    return Markup('<code class="nowrap" title="%s">…%s</code>') % (identifier, identifier[-8:])


def revision(name: str) -> Markup:
    """Return an app revision; of a commit's long hash its beginning, and all of it on hover."""
    if not _HASH.fullmatch(name):
        return code(name)
    return Markup('<code title="%s">%s…</code>') % (name, name[:_ENOUGH])


@functools.lru_cache(maxsize=1024)
def rail(place: StepPlace, tone: str) -> Markup:
    """Return a run's place among its class's steps as squares: done, here, still to come."""
    if place.total > _MOST_SQUARES:
        return Markup()
    squares = Markup().join(_square(number, place.number) for number in range(1, place.total + 1))
    return Markup(
        '<svg class="rail %s" viewBox="0 0 %s 12" width="%s" height="12" aria-hidden="true">%s</svg>'
    ) % (tone, place.total * 9, place.total * 9, squares)


def _square(number: int, here: int) -> Markup:
    left = (number - 1) * 9
    if number < here:
        return Markup('<rect x="%s" y="3.5" width="6" height="5"/>') % (left + 1)
    if number == here:
        return Markup('<rect class="on" x="%s" y="1" width="8" height="10"/>') % left
    return Markup('<rect class="todo" x="%s" y="4" width="5" height="4"/>') % (left + 1.5)
