"""The events of a bus as metrics, the same names and labels in every backend.

event ─► Recorder ─► Backend: Prometheus, StatsD, OpenTelemetry, or an object of the host's
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from operator import add
from typing import TYPE_CHECKING, Any, Protocol, cast

from pgbus.engine.definition.policy import qualified_name
from pgbus.engine.errors import InvalidSetting, UnknownJob
from pgbus.engine.observe.complaint import Complaint
from pgbus.engine.observe.emission import (
    Gauges,
    JobCompleted,
    JobDeadLettered,
    JobFailed,
    StallDetected,
    StepEnded,
    WaitTimedOut,
    WorkflowCancelled,
    WorkflowFinished,
    WorkflowPaused,
)
from pgbus.engine.queues import parse_physical_name
from pgbus.engine.states import JobOutcome, OnTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pgbus.engine.observe.emission import Payload
    from pgbus.engine.settings import Settings

#: In seconds, from a quick step to one of an hour.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
#: A label's further values are told as `OTHER`, longer ones cut.
MOST_VALUES = 1_000
LONGEST_VALUE = 200
OTHER = "other"

Labels = dict[str, str]
Sample = tuple["Metric", Labels, float]

_UNKNOWN_JOB = qualified_name(UnknownJob)


class Kind(StrEnum):
    """What a metric's values are."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; a duration is in seconds."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_OF_STEP = ("workflow_class", "step", "outcome")
_OF_JOB = ("job", "queue", "outcome")

STEP_DURATION = Metric(
    "pgbus_workflow_step_duration_seconds", Kind.HISTOGRAM, _OF_STEP, "How long bodies of steps ran"
)
STEPS = Metric("pgbus_workflow_steps_total", Kind.COUNTER, _OF_STEP, "Attempts of steps that ended")
FINISHED = Metric(
    "pgbus_workflows_finished_total", Kind.COUNTER, ("workflow_class",), "Runs that finished"
)
CANCELLED = Metric(
    "pgbus_workflows_cancelled_total",
    Kind.COUNTER,
    ("workflow_class",),
    "Runs that were cancelled",
)
PAUSED = Metric(
    "pgbus_workflows_paused_total",
    Kind.COUNTER,
    ("workflow_class", "error_class"),
    "Runs that were paused; without an error_class by a person or the body",
)
STALLS = Metric(
    "pgbus_workflow_stalls_total",
    Kind.COUNTER,
    ("workflow_class", "step", "detection"),
    "Attempts whose worker died or hung",
)
OVERDUE = Metric(
    "pgbus_workflow_wait_overdue_total",
    Kind.COUNTER,
    ("workflow_class", "step"),
    "Late notices of steps that wait on (on_timeout notify)",
)
JOB_DURATION = Metric(
    "pgbus_job_duration_seconds", Kind.HISTOGRAM, _OF_JOB, "How long executions of jobs took"
)
JOBS = Metric("pgbus_jobs_total", Kind.COUNTER, _OF_JOB, "Deliveries of jobs that were settled")
WORKFLOWS = Metric(
    "pgbus_workflows", Kind.GAUGE, ("workflow_class", "status"), "Ongoing runs by status"
)
STUCK = Metric(
    "pgbus_workflows_stuck",
    Kind.GAUGE,
    ("workflow_class", "reason"),
    "Ongoing runs that need a person",
)
DEPTH = Metric("pgbus_queue_depth", Kind.GAUGE, ("queue",), "Messages that are due, up to 10,001")
OLDEST = Metric(
    "pgbus_queue_oldest_age_seconds",
    Kind.GAUGE,
    ("queue",),
    "How long the oldest due message has been due",
)
DEAD_LETTERS = Metric("pgbus_dead_letters", Kind.GAUGE, ("queue",), "Dead letters, up to 10,001")
PROCESSES = Metric("pgbus_processes", Kind.GAUGE, ("kind",), "Processes that beat")

METRICS = (
    STEP_DURATION, STEPS, FINISHED, CANCELLED, PAUSED, STALLS, OVERDUE, JOB_DURATION, JOBS,
    WORKFLOWS, STUCK, DEPTH, OLDEST, DEAD_LETTERS, PROCESSES,
)  # fmt: skip


class Backend(Protocol):
    """Where metrics go; `labels` has no entry for a label without a value."""

    def count(self, name: str, labels: Mapping[str, str]) -> object:
        """Add 1 to a counter."""

    def observe(self, name: str, seconds: float, labels: Mapping[str, str]) -> object:
        """Add a duration to a histogram."""

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> object:
        """Set a gauge."""


class Bounds:
    """Keeps the values of each label few and short, for as long as it is used."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = defaultdict(set)

    def labels(self, values: Mapping[str, str | None]) -> Labels:
        """Return the labels that have a value, each one of not too many."""
        return {label: self._bounded(label, value) for label, value in values.items() if value}

    def _bounded(self, label: str, value: str) -> str:
        value, known = value[:LONGEST_VALUE], self._known[label]
        if value not in known:
            if len(known) >= MOST_VALUES:
                return OTHER
            known.add(value)
        return value


def samples(gauges: Gauges, bounds: Bounds) -> Iterator[Sample]:
    """Return each gauge with its labels and its value: one for all that have the same labels."""
    measured: tuple[tuple[Metric, Mapping[Any, float], Callable[[float, float], float]], ...] = (
        (WORKFLOWS, gauges.by_status, add),
        (STUCK, gauges.stuck, add),
        (DEPTH, gauges.queue_depth, add),
        (OLDEST, gauges.queue_oldest_seconds, max),
        (DEAD_LETTERS, gauges.dead_letters, add),
        (PROCESSES, gauges.processes, add),
    )
    for metric, by_values, together in measured:
        told: dict[tuple[tuple[str, str], ...], float] = {}
        # Sorted: which values are told as `other` is the same each time.
        for values, value in sorted(by_values.items()):
            names = (values,) if isinstance(values, str) else map(str, values)
            labels = bounds.labels(dict(zip(metric.labels, names, strict=True)))
            of = tuple(labels.items())
            told[of] = together(told[of], value) if of in told else value
        for of, value in told.items():
            yield metric, dict(of), value


class Recorder:
    """Tells a backend of each event; one that fails is logged once a minute, and nothing else."""

    def __init__(self, backend: Backend, queue_prefix: str) -> None:
        self._backend = backend
        self._queue_prefix = queue_prefix
        self._bounds = Bounds()
        self._complain = Complaint("The metrics backend failed; what it was told is lost.")

    def __call__(self, event: Payload) -> None:
        """Record the event."""
        for sample in self._samples(event):
            try:
                self._tell(*sample)
            except BaseException:  # noqa: BLE001 (a backend is the host's: whatever it raises, what happened stands)
                self._complain()

    def close(self) -> None:
        """Close the backend, where it has a `close`."""
        try:
            getattr(self._backend, "close", lambda: None)()
        except Exception:  # noqa: BLE001 (a backend may raise anything; the bus closes all the same)
            self._complain()

    def _tell(self, metric: Metric, labels: Labels, value: float) -> None:
        match metric.kind:
            case Kind.COUNTER:
                self._backend.count(metric.name, labels)
            case Kind.HISTOGRAM:
                self._backend.observe(metric.name, value, labels)
            case Kind.GAUGE:
                self._backend.gauge(metric.name, value, labels)

    def _samples(self, event: Payload) -> Iterator[Sample]:
        match event:
            case StepEnded(workflow_class=of, step=step, outcome=outcome, seconds=seconds):
                labels = self._labels(workflow_class=of, step=step, outcome=outcome)
                yield STEPS, labels, 1
                if seconds is not None:
                    yield STEP_DURATION, labels, seconds
            case WorkflowFinished(workflow_class=of):
                yield FINISHED, self._labels(workflow_class=of), 1
            case WorkflowCancelled(workflow_class=of):
                yield CANCELLED, self._labels(workflow_class=of), 1
            case WorkflowPaused(workflow_class=of, error_class=error_class):
                yield PAUSED, self._labels(workflow_class=of, error_class=error_class), 1
            case StallDetected(workflow_class=of, step=step, detection=detection):
                yield STALLS, self._labels(workflow_class=of, step=step, detection=detection), 1
            case WaitTimedOut(workflow_class=of, step=step, action=OnTimeout.NOTIFY):
                yield OVERDUE, self._labels(workflow_class=of, step=step), 1
            case JobCompleted():
                yield from self._of_job(event, event.job, JobOutcome.COMPLETED)
            case JobFailed():
                yield from self._of_job(event, event.job, JobOutcome.FAILED)
            case JobDeadLettered(job=job, error_class=error_class, seconds=seconds):
                # The name of an unknown job is any text that a sender chose.
                unknown = seconds is None and error_class == _UNKNOWN_JOB
                yield from self._of_job(event, None if unknown else job, JobOutcome.DEAD_LETTERED)
            case Gauges():
                yield from samples(event, self._bounds)

    def _of_job(
        self,
        event: JobCompleted | JobFailed | JobDeadLettered,
        job: str | None,
        outcome: JobOutcome,
    ) -> Iterator[Sample]:
        parsed = parse_physical_name(self._queue_prefix, event.queue)
        queue = parsed.logical if parsed else event.queue
        labels = self._labels(job=job, queue=queue, outcome=outcome)
        yield JOBS, labels, 1
        if event.seconds is not None:
            yield JOB_DURATION, labels, event.seconds

    def _labels(self, **values: str | None) -> Labels:
        return self._bounds.labels(values)


_MODULES = {
    name: f"pgbus.engine.observe.{name}" for name in ("prometheus", "statsd", "opentelemetry")
}


def recorder(settings: Settings) -> Recorder | None:
    """Return what records a bus's events, None where metrics are off."""
    chosen = settings.metrics_backend
    if chosen is None or not settings.metrics_enabled:
        return None
    if not isinstance(chosen, str):
        return Recorder(cast("Backend", chosen), settings.queue_prefix)
    try:
        module = import_module(_MODULES[chosen])
    except ModuleNotFoundError as missing:
        raise InvalidSetting(
            "metrics_backend",
            f"{chosen} needs {missing.name}, which is not installed: pip install 'pgbus[{chosen}]'",
        ) from None
    return Recorder(module.backend(settings), settings.queue_prefix)
