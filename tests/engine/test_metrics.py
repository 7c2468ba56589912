"""Metrics: what events become, in the same names and labels whatever the backend."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest
from opentelemetry.metrics import _internal as otel_globals
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY
from support.driving import Driver
from support.sweeps import age, turn

from pgbus import Pgbus, Workflow, job, step
from pgbus.engine.jobs.execute import execute
from pgbus.engine.observe import metrics, statsd
from pgbus.engine.observe.emission import (
    Gauges,
    JobDeadLettered,
    JobFailed,
    StallDetected,
    StepEnded,
    WaitTimedOut,
    WorkflowPaused,
)
from pgbus.engine.observe.exposition import exposed
from pgbus.engine.observe.metrics import METRICS, Kind
from pgbus.engine.states import Detection, OnTimeout
from pgbus.engine.sweep import gauge


class Measured(Workflow):
    @step
    def first(self): ...

    @step
    def second(self):
        if self.arguments.get("fails"):
            raise LookupError


@job(queue="mail")
def measured_job():
    pass


CLASS = f"{__name__}.Measured"
JOB = f"{__name__}.measured_job"


class Heard:
    """A host's own backend."""

    def __init__(self):
        self.counted, self.observed, self.gauged = [], [], {}
        self.closed = False

    def count(self, name, labels):
        self.counted.append((name, labels))

    def observe(self, name, seconds, labels):
        self.observed.append((name, labels))
        assert 0 <= seconds < 10

    def gauge(self, name, value, labels):
        self.gauged[name, *labels.values()] = value

    def close(self):
        self.closed = True


@pytest.fixture
def metered(database):
    """Makes a bus with this backend, and a worker for it."""
    buses = []

    def make(backend, **settings):
        bus = Pgbus(database_url=database.url, metrics_backend=backend, **settings)
        buses.append(bus)
        return bus, Driver(bus)

    yield make
    for bus in buses:
        bus.close()


def work(metered, backend, **settings):
    """Runs one workflow to its end, another to its failure, and a job."""
    bus, driver = metered(backend, **settings)
    with bus.active():
        Measured.start()
        Measured.start(fails=True)
        driver.drain()
        measured_job.enqueue()
        [delivery] = driver.take()
        execute(bus.services, delivery)
    return bus


def of_step(step_name, outcome):
    return {"workflow_class": CLASS, "step": step_name, "outcome": outcome}


OF_JOB = {"job": JOB, "queue": "mail", "outcome": "completed"}


def test_an_object_of_the_hosts_hears_every_event_as_metrics(metered):
    heard = Heard()
    work(metered, heard)
    steps = [
        of_step("first", "completed"), of_step("second", "completed"),
        of_step("first", "completed"), of_step("second", "paused"),
    ]  # fmt: skip
    of_class = {"workflow_class": CLASS}
    assert heard.counted == [
        *(("pgbus_workflow_steps_total", labels) for labels in steps[:2]),
        ("pgbus_workflows_finished_total", of_class),
        *(("pgbus_workflow_steps_total", labels) for labels in steps[2:]),
        ("pgbus_workflows_paused_total", of_class | {"error_class": "LookupError"}),
        ("pgbus_jobs_total", OF_JOB),
    ]
    assert heard.observed == [
        *(("pgbus_workflow_step_duration_seconds", labels) for labels in steps),
        ("pgbus_job_duration_seconds", OF_JOB),
    ]


def test_the_backend_is_closed_with_its_bus_and_hears_of_no_other(metered):
    heard, other = Heard(), Heard()
    bus, _ = metered(heard)
    work(metered, other)
    bus.close()
    assert heard.counted == []
    assert (heard.closed, other.closed) == (True, False)


def test_switched_off_nothing_is_recorded(metered):
    heard = Heard()
    work(metered, heard, metrics_enabled=False)
    assert heard.counted == []


@pytest.mark.parametrize(
    ("event", "name", "labels"),
    [
        (
            WorkflowPaused("shop.Order", "id"),
            "pgbus_workflows_paused_total",
            {"workflow_class": "shop.Order"},
        ),
        (
            StallDetected("shop.Order", "id", "pay", Detection.SWEEP),
            "pgbus_workflow_stalls_total",
            {"workflow_class": "shop.Order", "step": "pay", "detection": "sweep"},
        ),
        (
            WaitTimedOut("shop.Order", "id", "pay", OnTimeout.NOTIFY),
            "pgbus_workflow_wait_overdue_total",
            {"workflow_class": "shop.Order", "step": "pay"},
        ),
        (
            JobFailed("shop.mail", "pgbus_mail_p0", 1, 1, "ValueError", 0.5),
            "pgbus_jobs_total",
            {"job": "shop.mail", "queue": "mail", "outcome": "failed"},
        ),
        (
            JobDeadLettered(None, "pgbus_mail", 1, 1, "ValueError", None),
            "pgbus_jobs_total",
            {"queue": "mail", "outcome": "dead_lettered"},
        ),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, (str, dict)) else None,
)
def test_an_event_is_one_count(event, name, labels):
    heard = Heard()
    metrics.Recorder(heard, "pgbus")(event)
    assert heard.counted == [(name, labels)]
    assert len(heard.observed) == (getattr(event, "seconds", None) is not None)


def test_only_a_late_notice_counts_as_overdue_and_an_attempt_without_a_body_has_no_duration():
    heard = Heard()
    record = metrics.Recorder(heard, "pgbus")
    record(WaitTimedOut("shop.Order", "id", "pay", OnTimeout.PAUSE))
    record(StepEnded("shop.Order", "id", "pay", 1, "paused", None))
    assert [name for name, _ in heard.counted] == ["pgbus_workflow_steps_total"]
    assert heard.observed == []


def test_a_labels_values_are_not_too_many_nor_too_long(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_VALUES", 2)
    heard = Heard()
    record = metrics.Recorder(heard, "pgbus")
    for name in ("a", "b" * 500, "c", "a"):
        record(JobDeadLettered(name, "pgbus_mail", 1, 1, "ValueError", None))
    told = [labels["job"] for _, labels in heard.counted]
    assert told == ["a", "b" * 200, "other", "a"]


def test_the_names_of_unknown_jobs_leave_the_label_to_those_there_are(metered, monkeypatch):
    monkeypatch.setattr(metrics, "MOST_VALUES", 1)
    heard = Heard()
    bus, driver = metered(heard)
    with bus.active():
        for number in range(3):
            measured_job.enqueue()
            [delivery] = driver.take()
            body = delivery.body.replace(JOB, f"junk{number}")
            execute(bus.services, replace(delivery, body=body))
        measured_job.enqueue()
        [delivery] = driver.take()
        execute(bus.services, delivery)
    unknown = {"queue": "mail", "outcome": "dead_lettered"}
    assert [labels.get("job") for _, labels in heard.counted] == [None, None, None, JOB]
    assert heard.counted[0] == ("pgbus_jobs_total", unknown)


def test_gauges_beyond_a_labels_bounds_are_told_as_one(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_VALUES", 2)
    heard = Heard()
    queues = ["c", "d", "b", "a" * 201, "a" * 202]
    numbers = dict(zip(queues, range(1, 6), strict=True))
    measured = Gauges({("shop.Order", "ready"): 2}, {}, numbers, numbers, {}, {})
    for _ in range(2):
        metrics.Recorder(heard, "pgbus")(measured)
        assert heard.gauged == {
            ("pgbus_workflows", "shop.Order", "ready"): 2,
            ("pgbus_queue_depth", "a" * 200): 9,
            ("pgbus_queue_depth", "b"): 3,
            ("pgbus_queue_depth", "other"): 3,
            ("pgbus_queue_oldest_age_seconds", "a" * 200): 5,
            ("pgbus_queue_oldest_age_seconds", "b"): 3,
            ("pgbus_queue_oldest_age_seconds", "other"): 2,
        }
    lines = exposed(measured).splitlines()
    assert 'pgbus_queue_depth{queue="other"} 3' in lines


@pytest.mark.parametrize("raised", [OSError, SystemExit])
def test_what_a_backend_fails_at_costs_only_that(raised):
    class Picky(Heard):
        def count(self, name, labels):
            raise raised

        def gauge(self, name, value, labels):
            if "bad" in labels.values():
                raise raised
            super().gauge(name, value, labels)

    heard = Picky()
    record = metrics.Recorder(heard, "pgbus")
    record(StepEnded("shop.Order", "id", "pay", 1, "completed", 0.5))
    record(Gauges({}, {}, {"a": 1, "bad": 2, "c": 3}, {}, {}, {}))
    assert [name for name, _ in heard.observed] == ["pgbus_workflow_step_duration_seconds"]
    assert [queue for _, queue in heard.gauged] == ["a", "c"]


def test_a_backend_that_fails_is_logged_once_and_never_reaches_the_caller(metered, caplog):
    class Broken(Heard):
        def count(self, name, labels):
            raise OSError("no route")

    bus = work(metered, Broken())
    with bus.active():
        assert [run.status for run in map(bus.find, ids(bus))] == ["finished", "paused"]
    assert caplog.text.count("The metrics backend failed") == 1
    assert "no route" in caplog.text


def ids(bus):
    with bus.services.database.autocommit() as connection:
        rows = connection.rows(
            "SELECT workflow_id::text FROM {schema}.workflows ORDER BY created_at"
        )
    return [workflow_id for (workflow_id,) in rows]


def test_a_sweep_sets_all_gauges_with_zeros(metered, database):
    heard = Heard()
    bus = work(metered, heard)
    with bus.active():
        Measured.start()
        age(database, "2 hours")
        database.rows("UPDATE pgmq.q_pgbus_workflows SET vt = now() - interval '1 hour'")
    gauge.measure(turn(bus))
    assert {name for name, *_ in heard.gauged} == {
        metric.name for metric in METRICS if metric.kind is Kind.GAUGE
    }
    assert heard.gauged["pgbus_workflows", CLASS, "paused"] == 1
    assert heard.gauged["pgbus_workflows", CLASS, "performing"] == 0
    assert heard.gauged["pgbus_workflows_stuck", CLASS, "paused_error"] == 1
    assert heard.gauged["pgbus_workflows_stuck", CLASS, "stalled"] == 0
    assert heard.gauged["pgbus_queue_depth", "workflows"] == 1
    assert 3590 < heard.gauged["pgbus_queue_oldest_age_seconds", "workflows"] < 3700
    assert heard.gauged["pgbus_queue_oldest_age_seconds", "mail"] == 0
    assert heard.gauged["pgbus_dead_letters", "mail"] == 0
    assert heard.gauged["pgbus_processes", "dispatcher"] == 0


@pytest.fixture
def statsd_server():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        yield server


def test_statsd_gets_dogstatsds_datagrams(metered, statsd_server):
    bus = work(metered, "statsd", statsd_port=statsd_server.getsockname()[1])
    got = [statsd_server.recv(2000).decode() for _ in range(12)]
    of_first = f"#workflow_class:{CLASS},step:first,outcome:completed"
    assert got[0] == f"pgbus_workflow_steps_total:1|c|{of_first}"
    name, value, kind, tags = got[1].replace(":", "|", 1).split("|")
    assert (name, kind, tags) == ("pgbus_workflow_step_duration_ms", "ms", of_first)
    assert 0 <= float(value) < 10_000
    bus.services.events.emit(Gauges({}, {}, {"mail": 1234567}, {"mail": 1.5}, {}, {"worker": 0}))
    assert [statsd_server.recv(2000).decode() for _ in range(3)] == [
        "pgbus_queue_depth:1234567|g|#queue:mail",
        "pgbus_queue_oldest_age_seconds:1.5|g|#queue:mail",
        "pgbus_processes:0|g|#kind:worker",
    ]


def test_a_hostile_name_breaks_no_datagram(metered, statsd_server):
    bus, _ = metered("statsd", statsd_port=statsd_server.getsockname()[1])
    bus.services.events.emit(JobDeadLettered("a,b|c\nd", "pgbus_mail", 1, 1, "E", None))
    assert statsd_server.recv(2000) == (
        b"pgbus_jobs_total:1|c|#job:a_b_c_d,queue:mail,outcome:dead_lettered"
    )


def test_a_host_that_is_not_found_is_looked_up_by_one_thread_and_not_for_each_sample(monkeypatch):
    looking, answer = threading.Event(), threading.Event()
    looked_up = []

    def getaddrinfo(*address, **_):
        looked_up.append(address)
        looking.set()
        assert answer.wait(5)
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    record = metrics.Recorder(statsd.StatsD("statsd.internal", 8125), "pgbus")
    event = WorkflowPaused("shop.Order", "id")
    first = threading.Thread(target=record, args=[event])
    first.start()
    assert looking.wait(5)
    record(event)
    answer.set()
    first.join()
    record(event)
    assert looked_up == [("statsd.internal", 8125)]
    monkeypatch.setattr(statsd.time, "monotonic", lambda: float("inf"))
    record(event)
    assert len(looked_up) == 2


def test_a_statsd_server_that_comes_back_is_found(metered, monkeypatch):
    monkeypatch.setattr(statsd, "_PAUSE_SECONDS", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reserving:
        reserving.bind(("127.0.0.1", 0))
        address = reserving.getsockname()
    bus, _ = metered("statsd", statsd_port=address[1])
    event = WorkflowPaused("shop.Order", "id")
    for _ in range(3):
        bus.services.events.emit(event)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(address)
        server.settimeout(5)
        bus.services.events.emit(event, event)
        assert server.recv(2000).startswith(b"pgbus_workflows_paused_total:1|c")


def test_prometheus_counts_in_the_processs_registry_for_all_buses(metered):
    def told(name, **labels):
        return REGISTRY.get_sample_value(name, labels) or 0

    before = told("pgbus_workflow_steps_total", **of_step("first", "completed"))
    work(metered, "prometheus")
    metered("prometheus")
    assert told("pgbus_workflow_steps_total", **of_step("first", "completed")) == before + 2
    assert told("pgbus_workflow_step_duration_seconds_count", **of_step("second", "paused")) > 0
    assert told("pgbus_job_duration_seconds_bucket", **OF_JOB, le="3600.0") > 0
    assert told("pgbus_workflows_paused_total", workflow_class=CLASS, error_class="LookupError") > 0


@pytest.fixture
def meter_reader(monkeypatch):
    """An application's meter provider that keeps what it is told."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(otel_globals, "_METER_PROVIDER", provider)
    yield reader
    provider.shutdown()


def test_opentelemetry_gets_the_same_names_and_labels(metered, meter_reader):
    bus = work(metered, "opentelemetry")
    gauge.measure(turn(bus))
    [scope] = meter_reader.get_metrics_data().resource_metrics[0].scope_metrics
    assert scope.scope.name == "pgbus"
    told = {
        (metric.name, *sorted(point.attributes.items())): point
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    first = sorted(of_step("first", "completed").items())
    assert told["pgbus_workflow_steps_total", *first].value == 2
    duration = told["pgbus_workflow_step_duration_seconds", *first]
    assert (duration.count, duration.explicit_bounds) == (2, metrics.BUCKETS)
    assert told["pgbus_queue_depth", ("queue", "mail")].value == 0


@pytest.mark.parametrize("name", ["prometheus", "opentelemetry"])
def test_a_backend_that_is_not_installed_is_named_with_its_extra(database, monkeypatch, name):
    missing = ModuleNotFoundError(name="its_client")

    def import_module(_name):
        raise missing

    monkeypatch.setattr(metrics, "import_module", import_module)
    with pytest.raises(
        Exception, match=rf"metrics_backend: {name} needs its_client.*pgbus\[{name}\]"
    ):
        Pgbus(database_url=database.url, metrics_backend=name)
