"""Typed payloads: how a document becomes an instance of a class, or where it does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pgbus.engine.definition.options import OptionError
from pgbus.engine.errors import PayloadError

#: Returns what a value at a path comes to, or raises `PayloadError`.
Reader = Callable[[Any, str], Any]


def reader_of(cls: object) -> Reader:
    """Return what makes an instance of a dataclass or pydantic model of a document.

    A dataclass takes a mapping with its fields, no more and no less. Their values are checked,
    never converted, but for nested classes. Raise `OptionError` for a class that cannot be read.
    """
    if not isinstance(cls, type) or not (_is_model(cls) or dataclasses.is_dataclass(cls)):
        raise OptionError(f"{cls!r} is neither a dataclass nor a pydantic model; give such a class")
    return _reader(cls, {})


def _is_model(cls: object) -> bool:
    """Tell a pydantic model by its method; pgbus does not need pydantic."""
    return callable(getattr(cls, "model_validate", None))


def _reader(annotation: Any, known: dict[type, Reader]) -> Reader:
    arguments = get_args(annotation)
    if annotation is Any:
        return lambda value, _path: value
    if _is_model(annotation):
        return partial(_model, annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return known.get(annotation) or _record_reader(annotation, known)
    if get_origin(annotation) in {Union, UnionType}:
        return partial(_either, [_reader(one, known) for one in arguments], annotation)
    if get_origin(annotation) is list:
        return partial(_items, _reader(arguments[0], known))
    if get_origin(annotation) is dict and arguments[0] is str:
        return partial(_values, _reader(arguments[1], known))
    return partial(_plain, _checkable(annotation))


def _record_reader(cls: type[Any], known: dict[type, Reader]) -> Reader:
    fields: dict[str, Reader] = {}
    # Before its fields are read: a class may hold itself.
    known[cls] = partial(_record, cls, fields)
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise OptionError(
            f"{cls.__qualname__}: {error}; its annotations are read here, so define or import "
            "their names at the top of its module"
        ) from error
    for field in dataclasses.fields(cls):
        if field.init:
            try:
                fields[field.name] = _reader(hints[field.name], known)
            except OptionError as error:
                raise OptionError(f"{cls.__qualname__}.{field.name}: {error}") from error
    return known[cls]


def _checkable(annotation: Any) -> type:
    try:
        isinstance(None, annotation)
    except TypeError:
        raise OptionError(
            f"{annotation!r} cannot be checked here; use plain classes, dataclasses, |, list[...] "
            "and dict[str, ...], or a pydantic model"
        ) from None
    plain: type = annotation
    return plain


def _model(cls: Any, value: Any, path: str) -> Any:
    try:
        return cls.model_validate(value)
    except ValueError as error:
        raise PayloadError(path, f"is no {cls.__qualname__}: {error}") from error


def _record(cls: type[Any], fields: Mapping[str, Reader], value: Any, path: str) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise _misfit(value, cls.__qualname__, path)
    for name in value:
        if name not in fields:
            raise PayloadError(
                path, f"has {name!r}, which {cls.__qualname__} has not ({', '.join(fields)})"
            )
    for field in dataclasses.fields(cls):
        if field.name in fields and field.name not in value and _required(field):
            raise PayloadError(path, f"has no {field.name!r}, which {cls.__qualname__} needs")
    arguments = {name: fields[name](one, f"{path}.{name}") for name, one in value.items()}
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise PayloadError(path, f"is no {cls.__qualname__}: {error}") from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _either(readers: list[Reader], annotation: Any, value: Any, path: str) -> Any:
    for read in readers:
        try:
            return read(value, path)
        except PayloadError:
            continue
    raise _misfit(value, str(annotation), path)


def _items(read: Reader, value: Any, path: str) -> list[Any]:
    items = _plain(list, value, path)
    return [read(item, f"{path}[{place}]") for place, item in enumerate(items)]


def _values(read: Reader, value: Any, path: str) -> dict[str, Any]:
    members = _plain(dict, value, path)
    return {key: read(member, f"{path}[{key!r}]") for key, member in members.items()}


def _plain(kind: type, value: Any, path: str) -> Any:
    # As type checkers have it: an int is a float. A bool is neither, whatever Python says.
    kinds = (float, int) if kind is float else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind in {int, float}):
        raise _misfit(value, kind.__qualname__, path)
    return value


def _misfit(value: object, expected: str, path: str) -> PayloadError:
    return PayloadError(path, f"is {value!r:.200}, not {expected}")
