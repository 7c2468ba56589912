"""What a page is asked for: the query's and the form's values, each read once and told what is wrong."""

from __future__ import annotations

from datetime import MAXYEAR, MINYEAR, datetime
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from pgbus.dashboard.words import _

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum
    from zoneinfo import ZoneInfo

E = TypeVar("E", bound="StrEnum")

_LONGEST = 1000
_A_MOMENT = _("a moment such as 2026-11-29T03:00")


class BadParameter(Exception):
    """A parameter cannot be read; `wanted` is a message that says what it must be."""

    def __init__(self, name: str, value: str, wanted: str) -> None:
        super().__init__(f"{name} is {value!r}")
        self.name = name
        self.value = value[:_LONGEST]
        self.wanted = wanted


class Parameters:
    """The values that came with a request; a blank one counts as not given."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        """Return a text of at most a thousand characters."""
        value = self._values.get(name, "").strip()
        if "\0" in value:
            raise BadParameter(name, value, _("a text without NUL characters"))
        if len(value) > _LONGEST:
            raise BadParameter(name, value, _("a text of at most 1,000 characters"))
        return value or None

    def choice(self, name: str, kind: type[E]) -> E | None:
        """Return the member of the enumeration that has this value."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return kind(value)
        except ValueError:
            raise BadParameter(name, value, ", ".join(kind)) from None

    def uuid(self, name: str) -> str | None:
        """Return an id as PostgreSQL writes it."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return str(UUID(value))
        except ValueError:
            raise BadParameter(
                name, value, _("a whole id such as 01a0ea1f-7a31-7d18-b2c4-e91d07f4aa58")
            ) from None

    def number(self, name: str) -> int | None:
        """Return a whole number that PostgreSQL's bigint holds."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()) or int(value) >= 2**63:
            raise BadParameter(name, value, _("a whole number"))
        return int(value)

    def place(self, name: str) -> int:
        """Return a place in a list, counted from one; the first when none is given."""
        place = self.number(name)
        if place == 0:
            raise BadParameter(name, "0", _("a whole number from 1 on"))
        return place or 1

    def moment(self, name: str, zone: ZoneInfo) -> datetime | None:
        """Return a moment; one without an offset is in the zone of the page."""
        value = self.text(name)
        if value is None:
            return None
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise BadParameter(name, value, _A_MOMENT) from None
        # At the edge of the calendar another zone's clock has no such moment.
        if not MINYEAR < moment.year < MAXYEAR:
            raise BadParameter(name, value, _A_MOMENT)
        return moment.replace(tzinfo=moment.tzinfo or zone)
