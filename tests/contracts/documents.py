"""The documents of the project, and the code that stands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"

#: Pages whose examples users copy.
TAUGHT = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
ALL = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
ALL += sorted((ROOT / "docs").rglob("*.md"))

SHELLS = ("shell", "sh", "bash", "console")

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INCLUDED = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)
_MODULE = re.compile(r"# ((?:\w+/)*\w+\.py)$")


@dataclass(frozen=True)
class Block:
    """A fenced block; `module` is the path that its first line names, when it is a whole module."""

    page: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def module(self) -> str | None:
        named = _MODULE.match(self.code.partition("\n")[0])
        return named[1] if named else None


@cache
def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 2, match[1], _with_files(match[2]))
        for match in _FENCED.finditer(text)
    ]


def _with_files(code: str) -> str:
    return _INCLUDED.sub(lambda match: (ROOT / match[1]).read_text().rstrip(), code)


def blocks_in(pages: list[Path], *languages: str) -> list[Block]:
    return [block for page in pages for block in blocks(page) if block.language in languages]


def table_after(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    _, _, below = page.read_text().partition(f"\n{heading}\n")
    rows = re.search(r"(?:^\|.*\|$\n?)+", below, re.MULTILINE)
    assert rows, f"{page.name} has no table below {heading!r}"
    lines = rows[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
