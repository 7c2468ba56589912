"""Stored JSON documents as they are shown: a large one is told of, and fetched by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON document as PostgreSQL writes it, its numbers exact; `size` in bytes.

    `encoded` is None for one larger than was asked for.
    """

    encoded: str | None
    size: int

    @classmethod
    def read(cls, encoded: str | None, size: int | None) -> Document | None:
        """Return the document of two columns; None for none."""
        return None if size is None else cls(encoded, size)


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """The newest of a history, or what follows an entry of it, newest first; `more` are older."""

    entries: tuple[T, ...]
    more: bool

    @classmethod
    def cut(cls, found: list[T], limit: int) -> Slice[T]:
        """Return the first `limit` of what was found with one over."""
        return cls(tuple(found[:limit]), len(found) > limit)
