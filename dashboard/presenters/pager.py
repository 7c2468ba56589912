"""The ways from one page of a list to the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Pager:
    """The ways to the next pages; None where there is none."""

    newest: str | None
    newer: str | None
    older: str | None


def pager(
    url: Callable[..., str], *, moved: bool, newer: object | None, older: object | None
) -> Pager:
    """Return the ways from a page, `moved` when it is not the newest; `url` takes the cursor as `before` or `after`."""
    return Pager(
        url() if moved else None,
        url(before=newer) if newer else None,
        url(after=older) if older else None,
    )
