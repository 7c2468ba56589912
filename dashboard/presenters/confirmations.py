"""What asks before it acts: the link, and the dialog that it opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Ask:
    """A link to a dialog."""

    label: str
    icon: str
    href: str
    danger: bool


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that an action does, or leaves alone."""

    icon: str
    text: Markup
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What a press will do, to be confirmed; `fields` come with the form.

    With `to_type` somebody has to type that; `problem` says what was wrong with what was `typed`. With
    `further_href` there is nothing to confirm: none was found so far, and this is where to look on.
    """

    question: str
    about: Markup
    effects: tuple[Effect, ...]
    answer: str
    danger: bool
    fields: Mapping[str, str]
    reason: str = ""
    to_type: str = ""
    typed: str = ""
    problem: str = ""
    further_href: str = ""
