"""Queue names: the logical ones users write, the physical ones PGMQ knows.

A logical queue `orders` under the prefix `pgbus` is four physical ones:
`pgbus_orders_p0` (first), `pgbus_orders` (default), `pgbus_orders_p2` (last) and
`pgbus_orders_dlq` for the dead letters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pgbus.engine.errors import DefinitionError

#: In the order in which a worker reads them.
PRIORITIES = (0, 1, 2)
DEFAULT_PRIORITY = 1

#: PGMQ refuses longer names.
MAX_PHYSICAL_LENGTH = 47

_PRIORITY_SUFFIXES = {0: "_p0", 1: "", 2: "_p2"}
_DEAD_LETTER_SUFFIX = "_dlq"
_RESERVED_SUFFIXES = ("_p0", "_p2", _DEAD_LETTER_SUFFIX)
_LONGEST_SUFFIX = max(map(len, _RESERVED_SUFFIXES))
_LOGICAL = re.compile(r"[a-z0-9][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class PhysicalQueue:
    """What a physical name stands for; a dead-letter queue has the default priority."""

    logical: str
    priority: int
    is_dead_letter: bool


def check_queue_name(logical: object, *, prefix: str | None = None) -> None:
    """Raise `DefinitionError` unless `logical` can name a queue.

    Without a prefix (a class is declared before any bus exists) the shortest one is assumed;
    the bus checks again with its own.
    """
    if not isinstance(logical, str):
        raise DefinitionError(f"queue {logical!r}: a queue's name is a str, not {_kind(logical)}")
    if logical != logical.lower():
        raise DefinitionError(
            f"queue {logical!r}: PGMQ folds names to lower case; write {logical.lower()!r}"
        )
    if not _LOGICAL.fullmatch(logical):
        raise DefinitionError(
            f"queue {logical!r}: use lower-case letters, digits and underscores, "
            "beginning with a letter or digit"
        )
    if logical.endswith(_RESERVED_SUFFIXES):
        raise DefinitionError(
            f"queue {logical!r}: the endings {', '.join(_RESERVED_SUFFIXES)} belong to the queues "
            "behind a logical one; choose another ending (or priority=)"
        )
    if prefix is not None and logical.startswith(f"{prefix}_"):
        raise DefinitionError(
            f"queue {logical!r}: the prefix is added by itself; "
            f"write {logical.removeprefix(f'{prefix}_')!r}"
        )
    room = MAX_PHYSICAL_LENGTH - len(f"{prefix or 'x'}_") - _LONGEST_SUFFIX
    if len(logical) > room:
        beside = f"beside the prefix {prefix!r}" if prefix else "beside the shortest prefix"
        raise DefinitionError(
            f"queue {logical!r}: {len(logical)} characters, and {max(room, 0)} fit {beside} "
            f"and the suffix {_DEAD_LETTER_SUFFIX!r} ({MAX_PHYSICAL_LENGTH} in all); shorten it"
        )


def check_priority(priority: object) -> None:
    """Raise `DefinitionError` unless `priority` is 0, 1 or 2."""
    if type(priority) is not int or priority not in _PRIORITY_SUFFIXES:
        raise DefinitionError(
            f"priority {priority!r}: use 0 (first), 1 (the default) or 2 (last)",
        )


@lru_cache(maxsize=1024)
def physical_name(prefix: str, logical: str, priority: int = DEFAULT_PRIORITY) -> str:
    """Return the PGMQ queue that holds this logical queue's messages of one priority."""
    check_queue_name(logical, prefix=prefix)
    check_priority(priority)
    return f"{prefix}_{logical}{_PRIORITY_SUFFIXES[priority]}"


@lru_cache(maxsize=1024)
def dead_letter_name(prefix: str, logical: str) -> str:
    """Return the PGMQ queue that holds this logical queue's dead letters."""
    check_queue_name(logical, prefix=prefix)
    return f"{prefix}_{logical}{_DEAD_LETTER_SUFFIX}"


def parse_physical_name(prefix: str, physical: str) -> PhysicalQueue | None:
    """Return what a PGMQ queue's name stands for, `None` when it is not one of ours.

    Of two buses whose prefixes are `shop` and `shop_eu`, the first takes the second's queues
    for its own: give buses that share a database prefixes that do not begin alike.
    """
    if not physical.startswith(f"{prefix}_"):
        return None
    rest = physical.removeprefix(f"{prefix}_")
    suffix = next((ending for ending in _RESERVED_SUFFIXES if rest.endswith(ending)), "")
    logical = rest.removesuffix(suffix)
    try:
        check_queue_name(logical, prefix=prefix)
    except DefinitionError:
        return None
    priority = {"_p0": 0, "_p2": 2}.get(suffix, DEFAULT_PRIORITY)
    return PhysicalQueue(logical, priority, suffix == _DEAD_LETTER_SUFFIX)


def _kind(value: object) -> str:
    return type(value).__qualname__
