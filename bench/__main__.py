"""`python -m bench`: the table of figures; exit status 1 when one is missed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from bench.figures import GROUPS
from bench.server import server

if TYPE_CHECKING:
    from bench.figures import Figure

LINE = "{:<46} {:>10} {:>10} {:<20} {:>7} {:>8}  {}"


def line(figure: Figure) -> str:
    """Return the figure as a line of the table."""
    verdict = "" if not figure.target else "ok" if figure.met else "MISSED"
    return LINE.format(
        figure.name,
        f"{figure.pgbus:,.2f}",
        f"{figure.reference:,.2f}",
        figure.against,
        f"{figure.ratio:.2f}",
        figure.target,
        verdict,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="group", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no such group: {', '.join(sorted(unknown))}; choose of {', '.join(GROUPS)}")
    figures = []
    with server() as running:
        print(running.description())
        print(LINE.format("figure", "pgbus", "reference", "of", "ratio", "target", ""))
        for group in options.groups or GROUPS:
            for figure in GROUPS[group](running, options.rounds):
                print(line(figure), flush=True)
                figures.append(figure)
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
