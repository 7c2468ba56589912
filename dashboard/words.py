"""One viewer's language and clock: every word, number and moment that a page shows goes through it."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from babel.dates import format_skeleton
from babel.numbers import format_decimal, format_percent
from markupsafe import Markup, escape

if TYPE_CHECKING:
    from datetime import date, datetime
    from zoneinfo import ZoneInfo

    from babel.core import Locale
    from babel.support import NullTranslations

#: Counts stop here: what counts to the end reads every row.
COUNT_CAP = 10_000
#: Where a name from code may go on in the next line.
_JOINT = re.compile(r"(?<=[._:/-])(?=\w)|(?<=[a-z])(?=[A-Z])")


#: What a short message is used for, where another use of the same English is worded otherwise elsewhere.
Context = Literal[
    # Badges: how one of these stands.
    "run status",
    "attempt status",
    "batch status",
    "job status",
    "message status",
    "queue status",
    "process status",
    "revision status",
    "signal status",
    # Tabs and the titles of their lists: those of the many that stand so.
    "tab: runs",
    "tab: batches",
    "tab: jobs",
    "tab: dead letters",
    # Heads of columns, cards and facts: what the value below or beside it is.
    "column: moment",
    "column: duration",
    "column: share",
    "column: runs",
    "column: messages",
    # In the list of a run's steps: what became of the step.
    "step",
    # Beside a colour: what the bars of a timeline are, and the runs that a bar counts.
    "legend: time",
    "legend: runs",
    # What a list is filtered by, and the values to choose from.
    "filter",
    # A button's verb.
    "button",
    # The pages of a list.
    "pager",
    # What a message or a process is.
    "kind",
    # An entry of the audit trail that is no more than a word.
    "trail",
]
#: What parts a context from its message, in a catalog's compiled form too.
_CONTEXT_END = "\4"


def _(message: str) -> str:
    """Mark a message for the catalogs; it is translated where it is shown."""
    return message


def pgettext(context: Context, message: str) -> str:
    """Mark a message that is translated for what it is used for; `gettext` and `rich` take it as any other."""
    return f"{context}{_CONTEXT_END}{message}"


_MINUTE = 60
_SECONDS = _("%(number)s s")
#: The two largest units that are needed are enough to compare by.
_UNITS = (
    (_("%(number)s d"), 86_400),
    (_("%(number)s h"), 3600),
    (_("%(number)s min"), _MINUTE),
    (_SECONDS, 1),
)
#: From here on digits are parted.
_SEPARATED = 1000
#: Below so many seconds a tenth matters.
_SHORT = 10


@dataclass(frozen=True, slots=True)
class Words:
    """A language, a time zone, and the database's moment at which the page was read."""

    translations: NullTranslations
    locale: Locale
    zone: ZoneInfo
    now: datetime

    @property
    def tag(self) -> str:
        """The language as HTML, HTTP and scripts call it: a BCP 47 tag."""
        return str(self.locale).replace("_", "-")

    def gettext(self, message: str, **parts: object) -> str:
        """Return the message in the viewer's language, its `%(name)s` filled in."""
        text = self._translated(message)
        return text % parts if parts else text

    def pgettext(self, context: Context, message: str, **parts: object) -> str:
        """Return the message as it is worded for what it is used for."""
        return self.gettext(pgettext(context, message), **parts)

    def ngettext(self, singular: str, plural: str, num: int, **parts: object) -> str:
        """Return the form that fits the number, `%(num)s` its localized digits."""
        text = self.translations.ngettext(singular, plural, num)
        return text % {"num": self.number(num), **parts}

    def rich(self, message: str, **parts: object) -> Markup:
        """Return the message as HTML; its parts are escaped unless they are HTML themselves."""
        return Markup(self._translated(message)) % parts  # noqa: S704 (our own catalogs)

    def nrich(self, singular: str, plural: str, num: int, **parts: object) -> Markup:
        """Return the form that fits the number as HTML."""
        text = self.translations.ngettext(singular, plural, num)
        return Markup(text) % {"num": self.number(num), **parts}  # noqa: S704 (our own catalogs)

    def number(self, number: float) -> str:
        """Return a number with the language's separators."""
        if isinstance(number, int) and 0 <= number < _SEPARATED:
            return str(number)
        return format_decimal(number, locale=self.locale)

    def percent(self, share: float) -> str:
        """Return a share of one as a percentage, to a tenth."""
        return format_percent(round(share, 3), locale=self.locale, decimal_quantization=False)

    def count(self, number: int, *, at_least: bool = False) -> str:
        """Return a count that stopped at the cap as "10,000+", one that is `at_least` so great likewise."""
        more = "+" if at_least or number > COUNT_CAP else ""
        return f"{self.number(min(number, COUNT_CAP))}{more}"

    def ago(self, moment: datetime) -> Markup:
        """Return how long ago, or ahead, a moment is; exactly on hover."""
        return self._time(moment, self._distance(moment))

    def since(self, moment: datetime) -> Markup:
        """Return how long a moment has been over, as a length; exactly on hover."""
        return self._time(moment, self.duration((self.now - moment).total_seconds()))

    def clock(self, moment: datetime) -> Markup:
        """Return a moment's time of day, with the date unless it is today's; exactly on hover."""
        local, today = moment.astimezone(self.zone), self.now.astimezone(self.zone)
        time = local.strftime("%H:%M")
        if local.date() == today.date():
            return self._time(moment, time)
        skeleton = "MMMd" if local.year == today.year else "yMMMd"
        return self._time(moment, f"{_day(local.date(), skeleton, self.locale)} {time}")

    def day(self, moment: datetime) -> str:
        """Return the day that a moment is on."""
        return _day(moment.astimezone(self.zone).date(), "MMMd", self.locale)

    def read_at(self) -> Markup:
        """Return the time of day at which the page was read."""
        return self._time(self.now, self.now.astimezone(self.zone).strftime("%H:%M:%S"))

    def exact(self, moment: datetime) -> str:
        """Return a moment to the second, with its zone's offset."""
        local = moment.astimezone(self.zone)
        day = _day(local.date(), "yMMMEd", self.locale)
        time = local.isoformat(timespec="seconds")
        return f"{day} {time[11:19]} {time[19:]}"

    def duration(self, seconds: float | None) -> str:
        """Return a length in its two largest units, below ten seconds with a tenth; "—" for None.

        One below zero, by clocks that do not agree, is told as none.
        """
        if seconds is None:
            return "—"
        seconds = max(seconds, 0)
        if 0 < seconds < 1:
            return self.gettext("%(number)s ms", number=self.number(round(seconds * 1000)))
        if seconds < _SHORT:
            return self.gettext(_SECONDS, number=self.number(round(seconds, 1)))
        return self._length(seconds)

    def _translated(self, message: str) -> str:
        """Return the message, with its context if it is marked with one, as the catalog has it."""
        context, marked, plain = message.rpartition(_CONTEXT_END)
        if marked:
            return str(self.translations.pgettext(context, plain))
        # To a catalog the empty message is its own header.
        return self.translations.gettext(message) if message else ""

    def _distance(self, moment: datetime) -> str:
        """Return how long ago a moment was, in its largest unit, or in how long it comes, in two."""
        seconds = (moment - self.now).total_seconds()
        if 0 <= seconds < 1:
            return self.gettext("in a moment")
        if seconds >= 1:
            return self.gettext("in %(time)s", time=self._length(_rounded(seconds)))
        if seconds > -1:
            return self.gettext("just now")
        # Of the past a second unit would only flicker.
        return self.gettext("%(time)s ago", time=self._in_units(-seconds)[0])

    def _length(self, seconds: float) -> str:
        larger, *smaller = self._in_units(seconds)
        if not smaller:
            return larger
        return self.gettext("%(larger)s %(smaller)s", larger=larger, smaller=smaller[0])

    def _in_units(self, seconds: float) -> list[str]:
        """Return a length of at least half a second in its two largest units, without one of zero."""
        left, parts = round(seconds), list[tuple[str, int]]()
        for unit, length in _UNITS:
            number, left = divmod(left, length)
            if number or parts:
                parts.append((unit, number))
        # The second part of "2 h 0 min" says nothing, and seconds behind hours say too much.
        return [
            self.gettext(unit, number=self.number(number)) for unit, number in parts[:2] if number
        ]

    def _time(self, moment: datetime, words: str) -> Markup:
        title, text = escape(self.exact(moment)), escape(words)
        return Markup(f'<time datetime="{moment.isoformat()}" title="{title}">{text}</time>')  # noqa: S704 (escaped)


def _rounded(seconds: float) -> float:
    """Return a length of which the smaller unit that is told is whole: what comes in two days, says so."""
    for (_unit, length), (_smaller, step) in itertools.pairwise(_UNITS):
        if seconds > length - step / 2:
            return round(seconds / step) * step
    return seconds


@functools.lru_cache(maxsize=1024)
def _day(day: date, skeleton: str, locale: Locale) -> str:
    """Return a day in words: the slow half of a moment, and the half that most of a page share."""
    return format_skeleton(skeleton, day, locale=locale)


@functools.lru_cache(maxsize=4096)
def code(text: str) -> Markup:
    """Return a name from code, marked up."""
    return Markup("<code>%s</code>") % breakable(text)


@functools.lru_cache(maxsize=4096)
def breakable(name: str) -> Markup:
    """Return a long name that may break where its words meet."""
    return Markup("<wbr>").join(_JOINT.split(name))


def foreign(text: object) -> Markup:
    """Return a person's text, whichever way it is written, marked up."""
    return Markup("<bdi>%s</bdi>") % text


def quoted(text: object) -> Markup:
    """Return a person's reason as a quotation."""
    return Markup("<q><bdi>%s</bdi></q>") % escape(text)
