"""Subjects: the host's records that runs are about, as (type, id) and back.

SQLAlchemy mapped classes need no adapter; everything else brings `id_of` and `load`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy

from pgbus.engine.errors import DefinitionError, InvalidSetting, UnknownSubject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Mapper


@dataclass(frozen=True, slots=True)
class SubjectReference:
    """A record as it is stored: its registered type name and its id as text."""

    type: str
    id: str


@dataclass(frozen=True, slots=True)
class _Registration:
    cls: type
    type_name: str
    id_of: Callable[[Any], str]
    load: Callable[[str, Any], object | None]


_by_name: dict[str, _Registration] = {}
_by_class: dict[type, _Registration] = {}


def register_subject(
    cls: type,
    *,
    type_name: str | None = None,
    id_of: Callable[[Any], str] | None = None,
    load: Callable[[str, Any], object | None] | None = None,
) -> None:
    """Make instances of `cls` usable as subjects and inside arguments.

    `id_of(record)` gives a record's id as text, `load(id, session)` the record or `None`;
    a SQLAlchemy mapped class needs neither. `type_name` is what is stored, the class's name
    by default. A class registered under a further name is stored under that one from now on
    and still loaded by the earlier; registering it again without options changes nothing.
    """
    if cls in _by_class and (type_name, id_of, load) == (None, None, None):
        return
    if id_of is None or load is None:
        key = _primary_key(cls)
        id_of, load = id_of or key.id_of, load or key.load
    registration = _Registration(cls, type_name or cls.__name__, id_of, load)
    previous = _by_name.get(registration.type_name)
    if previous is not None and previous.cls is not cls:
        _refuse_other_class(previous, cls)
        _by_class.pop(previous.cls, None)
    _by_name[registration.type_name] = registration
    _by_class[cls] = registration


def is_registered(value: object) -> bool:
    """Tell whether `value` is an instance of a registered class or of a subclass of one."""
    return _registration_of(value) is not None


def reference_of(value: object) -> SubjectReference:
    """Return the (type, id) under which `value` is stored.

    Raise `UnknownSubject` when its class is not registered or it has no key yet.
    """
    registration = _registration_of(value)
    if registration is None:
        name = type(value).__qualname__
        raise UnknownSubject(f"{name} is no registered subject; call register_subject({name})")
    identifier = registration.id_of(value)
    if not isinstance(identifier, str):
        raise UnknownSubject(
            f"id_of of {registration.type_name} returned {identifier!r}; return its text"
        )
    return SubjectReference(registration.type_name, identifier)


def load_subject(reference: SubjectReference, session: Any) -> object | None:
    """Return the record, `None` when it is gone.

    Raise `UnknownSubject` when no loaded module registers its type.
    """
    registration = _by_name.get(reference.type)
    if registration is None:
        raise UnknownSubject(
            f"subject type {reference.type!r} is not registered in this process; "
            "import the module that registers it, or call register_subject"
        )
    return registration.load(reference.id, session)


def _registration_of(value: object) -> _Registration | None:
    return next((_by_class[cls] for cls in type(value).__mro__ if cls in _by_class), None)


def _refuse_other_class(previous: _Registration, cls: type) -> None:
    """Let a class replace only its own earlier self, as a reloaded module makes it."""
    before, now = (f"{one.__module__}.{one.__qualname__}" for one in (previous.cls, cls))
    if before != now:
        raise DefinitionError(
            f"subject type {previous.type_name!r} is already {before}; "
            f"give {now} another name with type_name="
        )


#: The Python types of key columns that `str` (or `isoformat`) and this table take there and back.
_FROM_TEXT: dict[type, Callable[[str], object]] = {
    int: int,
    str: str,
    UUID: UUID,
    Decimal: Decimal,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
}


def _primary_key(cls: type) -> _PrimaryKey:
    mapper: Mapper[Any] | None = sqlalchemy.inspect(cls, raiseerr=False)
    if mapper is None:
        raise DefinitionError(
            f"{cls.__qualname__} is no SQLAlchemy mapped class; "
            "give register_subject both id_of= and load="
        )
    return _PrimaryKey(cls, tuple(_python_type(cls, column) for column in mapper.primary_key))


def _python_type(cls: type, column: ColumnElement[Any]) -> type:
    try:
        kind = column.type.python_type
    except NotImplementedError:
        kind = object
    if kind not in _FROM_TEXT:
        raise DefinitionError(
            f"{cls.__qualname__}.{column.name}: a key of type {column.type!r} has no text form "
            "here; give register_subject both id_of= and load="
        )
    return kind


@dataclass(frozen=True, slots=True)
class _PrimaryKey:
    """Text of a mapped record's primary key: plain for one column, a JSON array for several."""

    cls: type
    kinds: tuple[type, ...]

    def id_of(self, record: object) -> str:
        texts = [self._text(value) for value in self._values(record)]
        return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)

    def load(self, identifier: str, session: Any) -> object | None:
        if session is None:
            raise InvalidSetting(
                "session_factory", f"is needed to load {self.cls.__qualname__} subjects"
            )
        found: object | None = session.get(self.cls, self._key(identifier))
        return found

    def _values(self, record: object) -> Sequence[object]:
        state = sqlalchemy.inspect(record)
        # The identity costs no query; attributes of an expired record would.
        values: Sequence[object] = state.identity or state.mapper.primary_key_from_instance(record)
        if None in values:
            raise UnknownSubject(
                f"{self.cls.__qualname__} has no primary key yet; "
                "add it to its session and flush() first"
            )
        for value, kind in zip(values, self.kinds, strict=True):
            if type(value) is not kind:
                raise UnknownSubject(
                    f"{self.cls.__qualname__}: the key {value!r} is not the {kind.__name__} that "
                    "its column declares; give register_subject both id_of= and load="
                )
        return values

    @staticmethod
    def _text(value: object) -> str:
        return value.isoformat() if isinstance(value, date) else str(value)

    def _key(self, identifier: str) -> object:
        try:
            texts = [identifier] if len(self.kinds) == 1 else json.loads(identifier)
            values = tuple(
                _FROM_TEXT[kind](text) for text, kind in zip(texts, self.kinds, strict=True)
            )
        except (ValueError, TypeError, ArithmeticError) as error:
            raise UnknownSubject(
                f"{identifier!r} is no primary key of {self.cls.__qualname__}: {error}"
            ) from error
        return values[0] if len(values) == 1 else values
