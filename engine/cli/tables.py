"""Answers in columns, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows under a head, each column as wide as its widest cell."""
    return aligned([[title.upper() for title in head], *rows])


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Return rows in columns; a cell is always one line of printable characters."""
    lines = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def shortened(text: str, width: int) -> str:
    """Return the text, cut to the width with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def printable(text: str) -> str:
    """Return the text on one line, without what could act on a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
