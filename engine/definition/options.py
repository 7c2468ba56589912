"""Option values: each check returns the value in its one form or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import MAXYEAR, MINYEAR, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from pgbus.engine.codec import storable
from pgbus.engine.errors import DefinitionError
from pgbus.engine.queues import check_priority, check_queue_name

if TYPE_CHECKING:
    from enum import StrEnum

E = TypeVar("E", bound="StrEnum")

#: Seconds or a `timedelta`.
Duration = float | timedelta

ZERO = timedelta(0)

#: A moment this far ahead is still one that PostgreSQL and `datetime` can hold.
_LONGEST = timedelta(days=36_525)

#: How like an option (as `difflib` measures it) a name must be to be meant for it; two swapped letters
#: of a short one are, `wait_for` is not for `wait`.
_ALIKE = 0.75

#: Characters of a name or key that comes from outside.
_MOST_CHARACTERS = 255


class OptionError(ValueError):
    """What is wrong with an option's value, and the mend; where it stands is added outside."""


@contextmanager
def declared_in(place: str) -> Iterator[None]:
    """Turn an `OptionError` of the block into a `DefinitionError` that names `place`."""
    try:
        yield
    except OptionError as error:
        raise DefinitionError(f"{place}: {error}") from error


def checked(options: object, checks: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return `options`, each in its one form; refuse an unknown one."""
    if not isinstance(options, Mapping):
        raise OptionError(f"{options!r} is no mapping; there are the options {', '.join(checks)}")
    return {option: _checked_value(option, value, checks) for option, value in options.items()}


def _checked_value(option: str, value: object, checks: Mapping[str, Callable[[Any], Any]]) -> Any:
    if option not in checks:
        raise OptionError(f"unknown option {option!r}; {_known(option, checks)}")
    try:
        return checks[option](value)
    except (OptionError, DefinitionError) as error:
        raise OptionError(f"{option}: {error}") from error


def _known(option: str, checks: Iterable[str]) -> str:
    close = get_close_matches(option, checks, n=1, cutoff=_ALIKE)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"there are {', '.join(checks)}{meant}"


def duration(value: object) -> timedelta:
    """Return seconds or a `timedelta`, from 0 to 100 years, as a `timedelta`."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        not isinstance(number, (int, float))
        or isinstance(number, bool)
        or not 0 <= number <= _LONGEST.total_seconds()
    ):
        raise OptionError(
            f"{value!r} is no duration; give seconds or a timedelta, from 0 to 100 years"
        )
    return timedelta(seconds=number)


def positive_duration(value: object) -> timedelta:
    """Return seconds or a `timedelta` above 0 as a `timedelta`."""
    length = duration(value)
    if not length:
        raise OptionError(f"{value!r} is no time at all; give more than 0, or leave it out")
    return length


def aware_moment(value: object) -> datetime:
    """Return a `datetime` that has a time zone, and is one in every other."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise OptionError(f"{value!r} is no moment; give a datetime with a time zone")
    if value.year in {MINYEAR, MAXYEAR}:
        raise OptionError(
            f"{value!r} cannot be read in every time zone; give a moment in the years "
            f"{MINYEAR + 1} to {MAXYEAR - 1}"
        )
    return value


def flag(value: object) -> bool:
    """Return a `bool`."""
    if not isinstance(value, bool):
        raise OptionError(f"{value!r} is no bool; give True or False")
    return value


def signal_name(value: object) -> str:
    """Return the name of a signal."""
    if not isinstance(value, str) or not value.strip() or len(value) > _MOST_CHARACTERS:
        raise OptionError(
            f"{value!r:.200} is no signal's name; give a str of 1 to {_MOST_CHARACTERS} characters "
            "that is not blank"
        )
    if storable(value) != value:
        raise OptionError(f"{value!r} cannot be a signal's name; leave out NUL and lone surrogates")
    return storable(value)


def idempotency_key(value: object) -> str | None:
    """Return a key of a start or a signal, `None` for a blank one."""
    if value is None:
        return None
    if not isinstance(value, str) or storable(value) != value:
        raise OptionError(
            f"idempotency_key is {value!r}; give a str without NUL and lone surrogates"
        )
    if len(value) > _MOST_CHARACTERS and value.strip():
        raise OptionError(
            f"idempotency_key has {len(value)} characters, at most {_MOST_CHARACTERS} fit; "
            "give a digest of it"
        )
    return value if value.strip() else None


def queue(value: str) -> str:
    """Return the logical name of a queue."""
    check_queue_name(value)
    return value


def priority(value: int) -> int:
    """Return 0, 1 or 2."""
    check_priority(value)
    return value


def choice(value: object, kind: type[E]) -> E:
    """Return the member of `kind` that `value` is or spells."""
    try:
        return kind(value)  # type: ignore[arg-type] # what is no str is refused like any other
    except ValueError as error:
        raise OptionError(
            f"{value!r} is unknown; choose from {', '.join(repr(str(one)) for one in kind)}"
        ) from error
