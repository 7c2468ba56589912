"""Traces: a stretch of a run is one, with the host's spans in it; links join the stretches."""

from __future__ import annotations

import json

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.driving import Driver
from support.sweeps import age, turn

from pgbus import Pgbus, Workflow, fan_out, job, on_exception, step
from pgbus.engine.jobs.execute import execute
from pgbus.engine.storage import messages
from pgbus.engine.sweep.stalls import Stalls


def current(name):
    """A span of the host's own, current in the block."""
    return trace.get_tracer("host").start_as_current_span(name)


def in_guard():
    with current("the host's guard"):
        return False


class Traced(Workflow):
    policies = (on_exception(LookupError, action="reattempt", wait=0, max_reattempts=1),)

    @step
    def first(self):
        with current("the host's query"):
            pass

    @step(skip_if=lambda self: in_guard())
    def second(self):
        if self.arguments.get("fails"):
            raise LookupError("no luck")


class Waits(Workflow):
    @step
    def before(self): ...

    @step(wait_for="paid")
    def after(self): ...


class Sleeps(Workflow):
    @step
    def before(self): ...

    @step(wait=3600)
    def after(self): ...


class Fans(Workflow):
    @fan_out
    def spread(self, batch):
        batch.add(traced_job, 1)

    @step
    def gather(self): ...


@job(max_retries=0)
def traced_job(number):
    with current("in the job"):
        if number == 0:
            raise LookupError("none")


CLASS = f"{__name__}.Traced"
JOB = f"{__name__}.traced_job"


@pytest.fixture
def provider(monkeypatch):
    """An application's provider that keeps its spans."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider):
    """The spans that have ended, oldest first, by name; of several the last."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return lambda: {span.name: span for span in exporter.get_finished_spans()}


@pytest.fixture
def bus_options(provider):
    return {"tracing": True}


@pytest.fixture
def work(bus, driver):
    """Performs steps and jobs until none is due."""

    def work():
        while isinstance(taken := driver.take(), list):
            for delivery in taken:
                execute(bus.services, delivery) if delivery.is_job else driver.perform(delivery)

    return work


def parent(span):
    return span.parent and span.parent.span_id


def own(span):
    return span.context.span_id


def linked(span):
    return [link.context.span_id for link in span.links]


def traces(spans):
    return len({span.context.trace_id for span in spans.values()})


def test_a_stretch_is_one_trace_below_the_span_that_started_the_run(work, spans):
    with current("request"):
        run = Traced.start()
    work()
    told = spans()
    assert traces(told) == 1
    first, second = told[f"{CLASS}.first"], told[f"{CLASS}.second"]
    assert [parent(span) for span in (first, second)] == [own(told["request"])] * 2
    assert parent(told["the host's query"]) == own(first)
    assert parent(told["the host's guard"]) == own(second)
    assert dict(second.attributes) == {
        "workflow_id": run.workflow_id,
        "workflow_class": CLASS,
        "step": "second",
        "attempt": 1,
        "outcome": "completed",
    }
    assert second.kind is trace.SpanKind.CONSUMER
    assert [linked(span) for span in told.values()] == [[]] * 5


def test_without_a_span_at_its_start_the_first_attempt_begins_the_trace(work, spans):
    Traced.start_many([(None, {})])
    work()
    told = spans()
    assert parent(told[f"{CLASS}.first"]) is None
    assert parent(told[f"{CLASS}.second"]) == own(told[f"{CLASS}.first"])


def test_start_many_runs_are_below_the_span_that_started_them(work, spans):
    with current("request"):
        Traced.start_many([(None, {})])
    work()
    assert parent(spans()[f"{CLASS}.first"]) == own(spans()["request"])


def test_an_error_is_recorded_once_and_a_reattempt_at_once_is_of_the_same_trace(work, spans):
    Traced.start(fails=True)
    work()
    failed = spans()[f"{CLASS}.second"]
    assert failed.attributes["attempt"] == 2
    assert failed.attributes["outcome"] == "paused"
    assert failed.status.status_code is trace.StatusCode.ERROR
    [event] = failed.events
    assert event.attributes["exception.message"] == "no luck"
    assert traces(spans()) == 1


def test_a_signal_begins_a_trace_below_its_sender_linked_to_the_stretch_before(work, spans):
    with current("request"):
        run = Waits.start()
    work()
    parked = spans()[f"{__name__}.Waits.after"]
    assert parked.attributes["outcome"] == "waiting"
    assert parent(parked) == own(spans()["request"])
    with current("webhook"):
        run.signal("paid")
    work()
    woken = spans()[f"{__name__}.Waits.after"]
    assert woken.attributes["outcome"] == "completed"
    assert parent(woken) == own(spans()["webhook"])
    assert linked(woken) == [own(parked)]


def test_a_step_that_slept_begins_a_trace_linked_to_the_stretch_before(work, database, spans):
    with current("request"):
        run = Sleeps.start()
    work()
    run.run_now()
    work()
    slept = spans()[f"{__name__}.Sleeps.after"]
    assert parent(slept) is None
    assert linked(slept) == [own(spans()[f"{__name__}.Sleeps.before"])]


def test_a_resumed_run_goes_on_below_the_operators_span(work, spans):
    class Fails(Workflow):
        @step
        def act(self):
            raise LookupError

    run = Fails.start()
    work()
    failed = spans()[f"{run.workflow_class}.act"]
    with current("operator"):
        run.resume()
    work()
    resumed = spans()[f"{run.workflow_class}.act"]
    assert parent(resumed) == own(spans()["operator"])
    assert linked(resumed) == [own(failed)]


def test_a_fan_outs_jobs_are_in_its_trace_and_what_follows_is_linked(work, spans):
    with current("request"):
        Fans.start()
    work()
    told = spans()
    ran = told[JOB]
    assert ran.context.trace_id == told["request"].context.trace_id
    assert parent(told["in the job"]) == own(ran)
    resolved, gather = told[f"{__name__}.Fans.spread"], told[f"{__name__}.Fans.gather"]
    assert linked(resolved) == [parent(ran)]
    assert resolved.attributes["outcome"] == "completed"
    assert parent(gather) == own(resolved)


def test_a_job_is_below_the_span_that_enqueued_it(work, spans):
    with current("request"):
        message_id = traced_job.enqueue(1)
    work()
    ran = spans()[JOB]
    assert parent(ran) == own(spans()["request"])
    assert dict(ran.attributes) == {
        "job": JOB,
        "queue": "pgbus_default",
        "message_id": message_id,
        "read_count": 1,
        "outcome": "completed",
    }


def test_a_job_that_fails_has_its_error_once(work, spans):
    traced_job.enqueue(0)
    work()
    failed = spans()[JOB]
    assert failed.attributes["outcome"] == "dead_lettered"
    assert [event.attributes["exception.message"] for event in failed.events] == ["none"]


@pytest.mark.parametrize(
    "body",
    ["5", '{"job": "gone"}', '{"job": "gone", "trace": 5}', '{"job": "gone", "trace": "00-x"}'],
)
def test_a_message_that_fails_before_any_body_has_a_span_of_its_own(bus, work, spans, body):
    bus.ensure_queues(["pgbus_default"])
    with bus.services.database.autocommit() as connection:
        messages.send(connection, "pgbus_default", body, wait=0, not_before=None)
    work()
    [failed] = spans().values()
    assert failed.name == ("a message that is no job's" if body == "5" else "gone")
    assert (parent(failed), len(failed.events)) == (None, 1)


def test_a_span_that_is_current_where_the_work_is_done_is_the_parent_and_left_open(work, spans):
    with current("request"):
        Traced.start()
        traced_job.enqueue(1)
    with current("the host's own loop") as foreign:
        work()
        assert foreign.is_recording()
    told = spans()
    for name in (f"{CLASS}.first", f"{CLASS}.second", JOB):
        assert parent(told[name]) == own(told["the host's own loop"])
    assert linked(told[f"{CLASS}.first"]) == [own(told["request"])]


def test_an_attempt_whose_worker_died_has_a_span_with_its_stall(bus, database, spans):
    with current("request"):
        Traced.start()
    Driver(bus, name="dead:1").take()
    age(database, "2 hours")
    Stalls().sweep(turn(bus))
    stalled = spans()[f"{CLASS}.first"]
    assert parent(stalled) == own(spans()["request"])
    assert stalled.events[0].attributes["exception.type"] == "pgbus.engine.errors.StepStalled"


def test_what_came_too_late_is_told_as_lost(bus, work, spans):
    class Cancelled(Workflow):
        @step
        def act(self):
            bus.find(self.workflow_id).cancel()

    Cancelled.start()
    work()
    [span] = spans().values()
    assert span.attributes["outcome"] == "lost"


def test_a_job_that_another_delivery_settled_is_told_as_lost(bus, driver, work, spans):
    traced_job.enqueue(0)
    [slow] = driver.take()
    driver.redeliver()
    work()
    execute(bus.services, slow)
    assert spans()[JOB].attributes["outcome"] == "lost"


def test_what_ends_the_process_ends_its_span_as_lost(bus, driver, spans):
    @job
    def leaves():
        raise SystemExit

    class Leaves(Workflow):
        @step
        def leave(self):
            raise SystemExit

    leaves.enqueue()
    Leaves.start()
    for _ in range(2):
        [delivery] = driver.take()
        with pytest.raises(SystemExit):
            execute(bus.services, delivery) if delivery.is_job else driver.perform(delivery)
    assert [span.attributes["outcome"] for span in spans().values()] == ["lost", "lost"]


def test_tracing_that_fails_is_logged_and_the_work_is_done(work, provider, caplog):
    class Broken(SpanProcessor):
        def on_start(self, span, parent_context=None):
            raise OSError("no collector")

    class Unprintable(Exception):
        def __str__(self):
            raise LookupError

    class Failing(Workflow):
        @step(policies=[on_exception(action="skip")])
        def act(self):
            raise Unprintable

    healthy = Failing.start()
    work()
    provider.add_span_processor(Broken())
    runs = [healthy, Failing.start()]
    work()
    assert [run.reload().status for run in runs] == ["finished"] * 2
    assert caplog.text.count("Tracing failed") == 1


def test_without_a_provider_and_without_the_setting_nothing_is_kept(database, monkeypatch):
    for settings in ({"tracing": True}, {}):
        bus = Pgbus(database_url=database.url, **settings)
        with bus.active():
            Traced.start()
            traced_job.enqueue(1)
        bus.close()
    assert database.rows("SELECT DISTINCT trace FROM pgbus.workflow_steps") == [(None,)]
    bodies = database.rows("SELECT message::text FROM pgmq.q_pgbus_default")
    assert ["trace" in json.loads(body) for (body,) in bodies] == [False, False]
