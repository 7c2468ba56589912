"""Sentences as data: a message's key and its parts, which become HTML only where they are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from markupsafe import Markup

from pgbus.dashboard.presenters import marks
from pgbus.dashboard.words import breakable, code, foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from pgbus.dashboard.words import Words


@dataclass(frozen=True, slots=True)
class Name:
    """A name from code: a step, a class, a signal; `full` is shown on hover."""

    text: str
    full: str | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """Who did something, as the audit trail has it."""

    text: str


@dataclass(frozen=True, slots=True)
class Ago:
    """How far a moment is from now, either way."""

    moment: datetime


@dataclass(frozen=True, slots=True)
class Lasting:
    """How long something has lasted since a moment."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Clock:
    """A moment's time of day."""

    moment: datetime


@dataclass(frozen=True, slots=True)
class BatchLink:
    """A batch by the name of what opened it."""

    text: str
    batch_id: str


@dataclass(frozen=True, slots=True)
class JobsDone:
    """How many of a batch's jobs are done."""

    done: int
    total: int


Part = Name | Person | Ago | Lasting | Clock | BatchLink | JobsDone | int | str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A message of the catalogs and what fills its places."""

    key: str
    parts: Mapping[str, Part] = field(default_factory=dict)

    @property
    def links(self) -> bool:
        """Tell whether a part of it is a link of its own."""
        return any(isinstance(part, BatchLink) for part in self.parts.values())


def rendered(sentence: Sentence, words: Words, url: Callable[..., str]) -> Markup:
    """Return the sentence in the viewer's language, as HTML."""
    parts = {name: _html(part, words, url) for name, part in sentence.parts.items()}
    return words.rich(sentence.key, **parts)


def _html(part: Part, words: Words, url: Callable[..., str]) -> object:
    match part:
        case Name(text, None):
            return code(text)
        case Name(text, full):
            return Markup('<code title="%s">%s</code>') % (full, breakable(text))
        case Person(text):
            return foreign(text)
        case Ago(moment):
            return words.ago(moment)
        case Lasting(since):
            return words.since(since)
        case Clock(moment):
            return words.clock(moment)
        case BatchLink(text, batch_id):
            return marks.link(url("batch", batch_id=batch_id), code(text))
        case JobsDone():
            return jobs_done(part, words)
        case int():
            return words.number(part)
    return part


def jobs_done(jobs: JobsDone, words: Words) -> str:
    """Return how many of a batch's jobs are done, in the language's plural."""
    return words.ngettext(
        "%(done)s of %(num)s job done",
        "%(done)s of %(num)s jobs done",
        jobs.total,
        done=words.number(jobs.done),
    )


def short(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2] or name
