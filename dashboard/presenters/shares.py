"""Bars of shares of a whole, in percent of their width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_WIDTH = 100
#: What there is at all can be seen.
_LEAST = 0.6


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a bar, in the colour of its class."""

    colour: str
    x: str
    width: str


def bar(whole: int, parts: Iterable[tuple[str, int]]) -> tuple[Share, ...]:
    """Return the parts side by side, each a colour's class and a number; of none there is no part."""
    shares, x = [], 0.0
    for colour, number in parts:
        if number > 0:
            width = max(_WIDTH * number / whole, _LEAST)
            shares.append(Share(colour, f"{x:.1f}", f"{width:.1f}"))
            x += width
    return tuple(shares)
