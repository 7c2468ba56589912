"""Gauges as text that Prometheus scrapes."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pgbus.engine.observe.metrics import Bounds, samples

if TYPE_CHECKING:
    from pgbus.engine.observe.emission import Gauges

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposed(gauges: Gauges) -> str:
    """Return the gauges in Prometheus's text format."""
    lines: list[str] = []
    for metric, ones in groupby(samples(gauges, Bounds()), key=lambda sample: sample[0]):
        lines += (f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}")
        for _, labels, value in ones:
            told = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{{{told}}} {value}")
    return "\n".join(lines) + "\n"
