"""Arguments, outputs and payloads as JSON documents that come back exactly.

A document lives in a jsonb column. Whatever JSON or jsonb would change on the way is written
as an object with one key, `{"$decimal": "1.10"}`; a dict of the host that looks like one gets
a second `$`.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

from pgbus.engine.errors import PayloadError, PayloadTooLarge, UnknownSubject
from pgbus.engine.subjects import SubjectReference, is_registered, reference_of

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DEPTH = 100

#: 616 digits; `sys.set_int_max_str_digits` may forbid from 640 on.
_MAX_PLAIN_BITS = 2048

_quote = json.JSONEncoder(ensure_ascii=False).encode
_decode_plain = json.JSONDecoder().decode


def encode(value: object, *, name: str, limit: int | None = None) -> str:
    """Return `value` as compact JSON text for a jsonb column.

    `decode` gives back the same value with the same types, but a dict in jsonb's own order of
    keys, and a datetime of a foreign `tzinfo` class with its offset alone. Raise `PayloadError`
    with the path below `name` of what cannot be stored exactly, `PayloadTooLarge` when the text
    exceeds `limit` bytes.
    """
    try:
        text = _text(value, _MAX_DEPTH)
    except _Refusal as refusal:
        raise refusal.as_error(name) from None
    if limit is not None:
        size = len(text.encode())
        if size > limit:
            raise PayloadTooLarge(
                name,
                f"{size} bytes encoded, and workflow_max_payload_size allows {limit}; "
                "store the data elsewhere and pass its key, or raise the setting",
            )
    return text


def decode(text: str, *, load: Callable[[SubjectReference], object] | None = None) -> Any:
    """Return the value that `encode` was given.

    Subject references become what `load` returns for them, without it `SubjectReference`.
    Raise `PayloadError` for an enum whose class no loaded module defines: nothing is imported.
    """
    if '"$' not in text:
        return _decode_plain(text)
    try:
        return json.loads(text, object_hook=partial(_revive, load))
    except _Refusal as refusal:
        raise refusal.as_error("document") from refusal.__cause__


def storable(text: str) -> str:
    """Return text without what PostgreSQL refuses: NUL becomes U+2400, lone surrogates escapes."""
    return text.replace("\0", "\u2400").encode("utf-8", "backslashreplace").decode()


class _Refusal(Exception):
    """A value that cannot be stored, and the steps to it, innermost first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.trail: list[tuple[object, str]] = []

    def passing(self, container: object, step: str = "") -> _Refusal:
        self.trail.append((container, step))
        return self

    def as_error(self, name: str) -> PayloadError:
        paths: dict[int, str] = {}
        path = name
        for container, step in reversed(self.trail):
            if id(container) in paths:
                return PayloadError(path, f"contains itself: it is {paths[id(container)]} again")
            paths[id(container)] = path
            path += step
        return PayloadError(path, self.problem)


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if scalar := _SCALARS.get(kind):
        return scalar(value)
    if container := _CONTAINERS.get(kind):
        if not depth:
            raise _Refusal(f"is nested deeper than {_MAX_DEPTH} levels")
        return container(value, depth - 1)
    return _other(value)


def _tag(name: str, text: str) -> str:
    return f'{{"${name}":{text}}}'


def _string(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Refusal("holds a lone surrogate, which PostgreSQL cannot store") from None
    if "\0" in value:
        raise _Refusal("holds a NUL character, which PostgreSQL cannot store")
    return _quote(value)


def _integer(value: int) -> str:
    if value.bit_length() > _MAX_PLAIN_BITS:
        return _tag("int", f'"{value:x}"')
    return str(value)


def _float(value: float) -> str:
    text = repr(value)
    if "n" in text:
        raise _Refusal(f"is {text}, which JSON does not have")
    # jsonb writes numbers out in full (1e+16 would come back as an int) and has no -0.
    return _tag("float", f'"{text}"') if "e" in text or text == "-0.0" else text


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise _Refusal(f"is Decimal {value}; only finite numbers can be stored")
    return _tag("decimal", f'"{value}"')


def _datetime(value: datetime) -> str:
    if value.utcoffset() is None:
        raise _Refusal(f"is a datetime without a time zone ({value}); give it one")
    return _tag("datetime", _clock(value))


def _time(value: time) -> str:
    if value.tzinfo and _zone_key(value) is None and value.utcoffset() is None:
        raise _Refusal(f"is a time in an unnamed zone ({value.tzinfo}); use a ZoneInfo")
    return _tag("time", _clock(value))


def _clock(value: datetime | time) -> str:
    """Return ISO text, with the zone's name and the fold where it would lose them."""
    offset = value.utcoffset()
    if offset and offset.microseconds:
        # Python 3.11 reads an offset below a second as none.
        raise _Refusal(f"has the UTC offset {offset}; only whole seconds can be stored")
    text, zone = _quote(value.isoformat()), _zone_key(value)
    if zone is None and not value.fold:
        return text
    return f"[{text},{_quote(zone)},{value.fold}]"


def _zone_key(value: datetime | time) -> str | None:
    return value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None


def _dict(value: dict[object, object], depth: int) -> str:
    members = []
    for key, item in value.items():
        try:
            quoted = _key(key)
        except _Refusal as refusal:
            raise refusal.passing(value) from None
        try:
            members.append(f"{quoted}:{_text(item, depth)}")
        except _Refusal as refusal:
            raise refusal.passing(value, _key_step(key)) from None
    if len(members) == 1 and members[0].startswith('"$'):
        return f'{{"${members[0][1:]}}}'
    return f"{{{','.join(members)}}}"


def _key(key: object) -> str:
    if type(key) is not str:
        raise _Refusal(f"has a key of type {type(key).__qualname__}; keys must be str")
    try:
        return _string(key)
    except _Refusal as refusal:
        raise _Refusal(f"has the key {key!r}, which {refusal.problem}") from None


def _key_step(key: object) -> str:
    key = str(key)
    return f".{key}" if key.isidentifier() else f"[{_quote(key)}]"


def _list(value: list[object] | tuple[object, ...], depth: int) -> str:
    items = []
    for index, item in enumerate(value):
        try:
            items.append(_text(item, depth))
        except _Refusal as refusal:
            raise refusal.passing(value, f"[{index}]") from None
    return f"[{','.join(items)}]"


def _tuple(value: tuple[object, ...], depth: int) -> str:
    return _tag("tuple", _list(value, depth))


def _set(value: set[object] | frozenset[object], depth: int) -> str:
    try:
        # Sorted, so that equal sets have equal texts.
        items = sorted(_text(item, depth) for item in value)
    except _Refusal as refusal:
        raise refusal.passing(value) from None
    return _tag(type(value).__name__, f"[{','.join(items)}]")


def _other(value: object) -> str:
    if isinstance(value, Enum):
        return _enum(value)
    if is_registered(value):
        try:
            return _subject(reference_of(value))
        except UnknownSubject as error:
            raise _Refusal(f"cannot be referred to: {error}") from None
    kind = type(value)
    raise _Refusal(f"is a {kind.__module__}.{kind.__qualname__}, which {_mend(value)}")


def _mend(value: object) -> str:
    for base in type(value).__mro__:
        if base in _SCALARS or base in _CONTAINERS:
            return f"would come back as {base.__name__}; convert it to one"
    return "has no JSON form; convert it, or register its class with register_subject"


def _subject(reference: SubjectReference) -> str:
    return _tag("subject", f"[{_string(reference.type)},{_string(reference.id)}]")


def _enum(member: Enum) -> str:
    cls = type(member)
    if _loaded_enum(cls.__module__, cls.__qualname__) is not cls:
        raise _Refusal(
            f"is a member of {cls.__module__}.{cls.__qualname__}, which cannot be found under that "
            "name; define the enum at the top of a module"
        )
    # A combination of flags has no name of its own.
    named = member.name in cls.__members__
    which = _string(member.name) if named else _integer(member.value)
    return _tag("enum", f"[{_string(cls.__module__)},{_string(cls.__qualname__)},{which}]")


def _loaded_enum(module: str, qualname: str) -> type[Enum] | None:
    """Return the enum of that name when its module is loaded.

    Look in namespaces only: an attribute access could run the module's own code.
    """
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, Enum) else None


def _member(parts: list[Any]) -> Enum:
    module, qualname, which = parts
    cls = _loaded_enum(module, qualname)
    if cls is None:
        raise _Refusal(
            f"holds a member of the enum {module}.{qualname}, which is not loaded in this "
            "process; import its module where your application is set up"
        )
    return cls[which] if isinstance(which, str) else cls(which)


def _from_clock(kind: Any, body: str | list[Any]) -> Any:
    if isinstance(body, str):
        return kind.fromisoformat(body)
    text, zone, fold = body
    moment = kind.fromisoformat(text).replace(fold=fold)
    return moment if zone is None else moment.replace(tzinfo=ZoneInfo(zone))


def _revive(load: Callable[[SubjectReference], object] | None, document: dict[str, Any]) -> object:
    if len(document) != 1:
        return document
    [(key, body)] = document.items()
    if not key.startswith("$"):
        return document
    if key.startswith("$$"):
        return {key[1:]: body}
    if key == "$subject":
        reference = SubjectReference(*body)
        return load(reference) if load else reference
    try:
        return _REVIVERS[key](body)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _Refusal(f"holds {document!r:.200}, which cannot be read here: {error!r}") from error


_SCALARS: dict[type, Callable[[Any], str]] = {
    str: _string,
    int: _integer,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
    float: _float,
    Decimal: _decimal,
    datetime: _datetime,
    date: lambda value: _tag("date", f'"{value.isoformat()}"'),
    time: _time,
    timedelta: lambda value: _tag(
        "timedelta", f"[{value.days},{value.seconds},{value.microseconds}]"
    ),
    UUID: lambda value: _tag("uuid", f'"{value}"'),
    bytes: lambda value: _tag("bytes", f'"{b64encode(value).decode()}"'),
    SubjectReference: _subject,
}

_CONTAINERS: dict[type, Callable[[Any, int], str]] = {
    dict: _dict,
    list: _list,
    tuple: _tuple,
    set: _set,
    frozenset: _set,
}

_REVIVERS: dict[str, Callable[[Any], object]] = {
    "$int": partial(int, base=16),
    "$float": float,
    "$decimal": Decimal,
    "$datetime": partial(_from_clock, datetime),
    "$date": date.fromisoformat,
    "$time": partial(_from_clock, time),
    "$timedelta": lambda parts: timedelta(*parts),
    "$uuid": UUID,
    "$bytes": partial(b64decode, validate=True),
    "$enum": _member,
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
}
