"""What the forms of a run's actions say: each field read, or told what is wrong with it."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from pgbus.dashboard.parameters import BadParameter, Parameters
from pgbus.dashboard.words import _
from pgbus.engine.definition.options import (
    OptionError,
    aware_moment,
    idempotency_key,
    signal_name,
)
from pgbus.engine.errors import PayloadError, PayloadTooLarge
from pgbus.engine.states import Verb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from pgbus.dashboard.words import Words
    from pgbus.engine.settings import Settings

#: Of a number that cannot be kept, as much is shown.
_LONGEST_NUMBER = 40

#: What is wrong with a JSON text, by how Python's message begins.
_FAULTS = {
    "Expecting ',' delimiter": _(
        "Line %(line)s, column %(column)s: a comma is missing before %(here)s."
    ),
    "Expecting ':' delimiter": _(
        "Line %(line)s, column %(column)s: a colon is missing before %(here)s."
    ),
    "Expecting property name": _(
        "Line %(line)s, column %(column)s: a name in double quotes is missing before %(here)s."
    ),
    "Expecting value": _(
        "Line %(line)s, column %(column)s: %(here)s is not a value. A text stands in double quotes, and "
        "%(constants)s are written in lower case."
    ),
    "Illegal trailing comma": _("Line %(line)s, column %(column)s: there is a comma too many."),
    "Invalid control character": _(
        "Line %(line)s, column %(column)s: a text cannot hold a line break or a tab; write %(newline)s or %(tab)s."
    ),
    "Invalid \\": _(
        "Line %(line)s, column %(column)s: a backslash in a text is written as two: %(escaped)s."
    ),
    "Unterminated string": _(
        "Line %(line)s, column %(column)s: the text that begins here has no closing double quote."
    ),
    "Extra data": _("Line %(line)s, column %(column)s: the object has ended before %(here)s."),
}
_UNREADABLE = _("Line %(line)s, column %(column)s: this cannot be read as JSON.")
_ENDS = _("Line %(line)s, column %(column)s: the text ends before the object does.")
_TRAILING = "Illegal trailing comma"

#: As much of what stands at a fault as tells where it is.
_HERE = re.compile(r'"[^"\n]{0,20}"?|[\w.+-]{1,20}|.', re.DOTALL)


class FormProblem(Exception):
    """A field of a form cannot be used; the message says why, to who typed it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


def reason(form: Mapping[str, str]) -> str:
    """Return why, with plain line ends; the trail itself trims and cuts it."""
    return form.get("reason", "").replace("\r\n", "\n")


def moment_text(moment: datetime, zone: ZoneInfo) -> str:
    """Return a moment as a field for date and time has it: the wall clock of the page's zone."""
    wall = moment.astimezone(zone).replace(tzinfo=None)
    return wall.isoformat(timespec="minutes" if not wall.second else "seconds")


def arguments(
    verb: Verb, form: Mapping[str, str], words: Words, scheduled_at: datetime
) -> dict[str, Any]:
    """Return what the form gives the verb beside its reason; raise `FormProblem`.

    `scheduled_at` is when the run's step is due, with which the form to reschedule it began.
    """
    match verb:
        case Verb.RESUME_AT:
            return {"step": _step(form, words)}
        case Verb.RESCHEDULE:
            return {"at": _moment(form, words, scheduled_at)}
        case Verb.RERUN:
            return {"idempotency_key": _key(form)}
        case Verb.SIGNAL:
            return {
                "name": _signal_name(form, words),
                "payload": payload(form.get("payload", ""), words),
                "idempotency_key": _key(form),
            }
    return {}


def _key(form: Mapping[str, str]) -> str | None:
    """Return the key by which two presses of one form are known as one; raise `BadParameter`."""
    given = form.get("idempotency_key")
    try:
        return idempotency_key(given)
    except OptionError:
        wanted = _("what a page of this console put there")
        raise BadParameter("idempotency_key", given or "", wanted) from None


def _step(form: Mapping[str, str], words: Words) -> str:
    if not (step := form.get("step", "")):
        raise FormProblem("step", words.gettext("Choose the step to go on from."))
    return step


def _moment(form: Mapping[str, str], words: Words, scheduled_at: datetime) -> datetime:
    """Return the moment; the one there is where its wall clock, which may come twice, was left alone."""
    try:
        moment = Parameters(form).moment("at", words.zone)
        if moment is None:
            raise FormProblem("at", words.gettext("Choose a date and a time."))
        if moment.tzinfo is words.zone and moment_text(moment, words.zone) == moment_text(
            scheduled_at, words.zone
        ):
            return scheduled_at
        return aware_moment(moment)
    except (BadParameter, OptionError):
        problem = words.gettext(
            "This is not a moment such as %(example)s.", example="2026-11-29T03:00"
        )
        raise FormProblem("at", problem) from None


def _signal_name(form: Mapping[str, str], words: Words) -> str:
    name = form.get("name", "").strip()
    if not name:
        raise FormProblem("name", words.gettext("Say which signal: its name is missing."))
    try:
        return signal_name(name)
    except OptionError:
        problem = words.gettext(
            "A signal's name has at most 255 characters, and no NUL among them."
        )
        raise FormProblem("name", problem) from None


def payload(text: str, words: Words) -> dict[str, Any]:
    """Return the JSON object that the text is, {} for a blank one; raise `FormProblem`.

    A number that would not be kept as it was typed is refused, and so is a name that stands twice.
    """
    if not text.strip():
        return {}
    reader = _Reader(words)
    try:
        value = json.loads(
            text,
            object_pairs_hook=reader.pairs,
            parse_float=reader.decimal,
            parse_int=reader.integer,
            parse_constant=reader.constant,
        )
    except json.JSONDecodeError as error:
        raise FormProblem("payload", _fault(error, words)) from None
    except RecursionError:
        raise reader.problem(_("This is nested too deeply.")) from None
    if not isinstance(value, dict):
        raise reader.problem(
            _("This is not a JSON object, such as %(example)s."), example='{"amount": 7}'
        )
    return value


class _Reader:
    """Makes Python's values of a JSON text, and of nothing that would lose a part of it."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def problem(self, message: str, **parts: str) -> FormProblem:
        return FormProblem("payload", self._words.gettext(message, **parts))

    def pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise self.problem(
                    _("The name %(name)s stands twice in one object."), name=f'"{name}"'
                )
            found[name] = value
        return found

    def integer(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise self._inexact(text) from None

    def decimal(self, text: str) -> float:
        value = float(text)
        try:
            exact = Decimal(text) == Decimal(repr(value))
        except InvalidOperation:
            exact = False
        if not exact:
            raise self._inexact(text)
        return value

    def constant(self, text: str) -> None:
        raise self.problem(_("JSON has no %(number)s."), number=text)

    def _inexact(self, text: str) -> FormProblem:
        number = text if len(text) <= _LONGEST_NUMBER else f"{text[:_LONGEST_NUMBER]}…"
        message = _("The number %(number)s cannot be kept as it is typed. Put it in double quotes.")
        return self.problem(message, number=number)


def _fault(error: json.JSONDecodeError, words: Words) -> str:
    """Say where the JSON is wrong, and how."""
    text, place = error.doc, error.pos
    message = next(
        (told for begin, told in _FAULTS.items() if error.msg.startswith(begin)), _UNREADABLE
    )
    if text[place:].strip() == "":
        message = _ENDS
    elif text[place] in "]}" and text[:place].rstrip().endswith(","):
        message = _FAULTS[_TRAILING]
    here = _HERE.match(text, place)
    return words.gettext(
        message,
        line=error.lineno,
        column=error.colno,
        here=here.group() if here else "",
        constants="true, false, null",
        newline=r"\n",
        tab=r"\t",
        escaped=r"\\",
    )


def payload_problem(error: PayloadError, settings: Settings, words: Words) -> FormProblem:
    """Return why the engine does not take the payload."""
    if isinstance(error, PayloadTooLarge):
        limit = words.number(settings.workflow_max_payload_size)
        problem = words.gettext(
            "This is too large: a payload may have %(limit)s bytes.", limit=limit
        )
    else:
        problem = words.gettext("The class does not take this. %(problem)s", problem=str(error))
    return FormProblem("payload", problem)
