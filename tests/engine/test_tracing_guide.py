"""The guide's page on tracing, run: a worker of its application exports to a collector."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from contracts.documents import GUIDE, blocks
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.waiting import eventually
from support.workers import Child

APP = """
from pgbus import Workflow, step
from shop.tracing import bus_with_traces

bus = bus_with_traces()


class Shown(Workflow):
    @step
    def one(self): ...

    @step(wait_for="go")
    def two(self): ...
"""

START = """
from opentelemetry import trace
from shop_app import Shown, bus

with trace.get_tracer("shop").start_as_current_span("request"):
    run = Shown.start()
trace.get_tracer_provider().shutdown()
bus.close()
"""


@pytest.fixture
def collector():
    """A collector's address, and the spans that came, by name."""
    spans = {}

    class Collecting(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                spans.update(
                    (span.name, span) for one in resource.scope_spans for span in one.spans
                )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Collecting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", spans
        server.shutdown()
        thread.join()


def test_a_workers_spans_arrive_below_the_web_processs(database, tmp_path, collector):
    address, spans = collector
    [example] = [block for block in blocks(GUIDE / "tracing.md") if block.module]
    (tmp_path / "shop").mkdir()
    (tmp_path / example.module).write_text(example.code)
    (tmp_path / "shop_app.py").write_text(APP)
    (tmp_path / "start.py").write_text(START)
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    starter = Child(database.url, ["start"], {}, variables=variables, path=[tmp_path])
    worker = Child(database.url, ["pgbus.engine.cli", "worker", "--app", "shop_app:bus"], {},
                   variables=variables, path=[tmp_path])  # fmt: skip
    try:
        assert starter.wait() == 0, starter.log
        eventually(lambda: len(spans) == 3, within=20)
        worker.stop()
    finally:
        starter.end()
        worker.end()
    request, one, two = spans["request"], spans["shop_app.Shown.one"], spans["shop_app.Shown.two"]
    assert {span.trace_id for span in (one, two)} == {request.trace_id}
    assert [span.parent_span_id for span in (one, two)] == [request.span_id] * 2
    told = {attribute.key: attribute.value.string_value for attribute in two.attributes}
    assert (told["step"], told["outcome"]) == ("two", "waiting")
