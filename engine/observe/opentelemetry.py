"""Metrics as instruments of the application's OpenTelemetry meter provider."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry.metrics import get_meter

from pgbus.engine.observe.metrics import BUCKETS, METRICS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbus.engine.settings import Settings


class OpenTelemetry:
    """A backend; which exporter there is, and none, is the application's to say."""

    def __init__(self) -> None:
        meter = get_meter("pgbus", version("pgbus"))
        names = {kind: [one for one in METRICS if one.kind is kind] for kind in Kind}
        self._counters = {
            metric.name: meter.create_counter(metric.name, description=metric.help)
            for metric in names[Kind.COUNTER]
        }
        self._histograms = {
            metric.name: meter.create_histogram(
                metric.name,
                unit="s",
                description=metric.help,
                explicit_bucket_boundaries_advisory=BUCKETS,
            )
            for metric in names[Kind.HISTOGRAM]
        }
        self._gauges = {
            metric.name: meter.create_gauge(metric.name, description=metric.help)
            for metric in names[Kind.GAUGE]
        }

    def count(self, name: str, labels: Mapping[str, str]) -> None:
        """Add 1 to a counter."""
        self._counters[name].add(1, labels)

    def observe(self, name: str, seconds: float, labels: Mapping[str, str]) -> None:
        """Add a duration to a histogram."""
        self._histograms[name].record(seconds, labels)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Set a gauge."""
        self._gauges[name].set(value, labels)


def backend(_settings: Settings) -> OpenTelemetry:
    """Return a backend on the provider that the application has set, or sets later."""
    return OpenTelemetry()
