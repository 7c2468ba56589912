"""Counters and histograms in `prometheus_client`'s own registry, one set for all buses of a process.

Gauges are none of a process's business: the dashboard's `/metrics` serves them from the database.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

from pgbus.engine.observe.metrics import BUCKETS, METRICS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbus.engine.settings import Settings


class Prometheus:
    """A backend; a label without a value is told as an empty one, which Prometheus takes for none."""

    def __init__(self) -> None:
        self._counters = {
            metric.name: Counter(metric.name, metric.help, metric.labels)
            for metric in METRICS
            if metric.kind is Kind.COUNTER
        }
        self._histograms = {
            metric.name: Histogram(metric.name, metric.help, metric.labels, buckets=BUCKETS)
            for metric in METRICS
            if metric.kind is Kind.HISTOGRAM
        }
        self._labels = {metric.name: metric.labels for metric in METRICS}

    def count(self, name: str, labels: Mapping[str, str]) -> None:
        """Add 1 to a counter."""
        self._counters[name].labels(*self._values(name, labels)).inc()

    def observe(self, name: str, seconds: float, labels: Mapping[str, str]) -> None:
        """Add a duration to a histogram."""
        self._histograms[name].labels(*self._values(name, labels)).observe(seconds)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Leave it to the dashboard."""

    def _values(self, name: str, labels: Mapping[str, str]) -> list[str]:
        return [labels.get(label, "") for label in self._labels[name]]


@functools.cache
def _of_process() -> Prometheus:
    return Prometheus()


def backend(_settings: Settings) -> Prometheus:
    """Return the process's backend: a registry takes each metric once."""
    return _of_process()
