"""A form that was sent and not done comes back: as it was filled in, and with what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbus.dashboard.words import Words
    from pgbus.engine.states import Verb


@dataclass(frozen=True, slots=True)
class Field:
    """What stands in a field of a form, and what is wrong with it; "" for nothing."""

    value: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RefusedForm:
    """A form that was sent and not done: which of its fields is wrong, how, and all that was typed.

    "" as the field: none is, and the form can be sent again as it is.
    """

    verb: Verb
    field: str
    problem: str
    typed: Mapping[str, str]

    def kept(self, name: str) -> Field:
        """Return a field as it was filled in."""
        return Field(self.typed.get(name, ""), self.problem if self.field == name else "")

    def told(self, words: Words) -> str:
        """Return why the form is shown again."""
        if not self.field:
            return self.problem
        return words.gettext("What you typed is kept: mend what is marked and press again.")

    def gone(self, words: Words) -> str:
        """Return what is wrong, of an action that is not possible any more."""
        if self.field:
            return self.problem
        return words.gettext("Nothing was done: that is not possible any more.")
