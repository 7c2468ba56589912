"""The one way tests wait: for something to become true, never for time to pass."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")


def eventually(predicate: Callable[[], Found], *, within: float = 10.0) -> Found:
    """The first true value of `predicate`; fails with its last value after `within` seconds."""
    deadline = time.monotonic() + within
    while not (found := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{predicate} was still {found!r} after {within} s")
        time.sleep(0.01)  # noqa: TID251 (the one place where tests wait)
    return found
