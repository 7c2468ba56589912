"""Spans of attempts and jobs, in the application's OpenTelemetry.

The attempts of a stretch, from a start or wake to the next wait, are one trace; a stretch begins a
trace of its own, linked to the one before. What joins them is kept on the rows, as text:

    <traceparent>            the span is a child of this one
    - <traceparent>          the span begins a trace, and is linked to this one
    <traceparent> <another>  a child of the first, linked to the second
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, ProxyTracerProvider, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pgbus.engine.observe.complaint import Complaint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.trace import SpanContext

_NO_PARENT = "-"
_W3C = TraceContextTextMapPropagator()


class Span:
    """The span of one attempt or job."""

    def __init__(self, span: trace.Span, stretch: SpanContext, complain: Complaint) -> None:
        self._span = span
        self._stretch = stretch
        self._complain = complain

    @property
    def within(self) -> str:
        """Return what makes a span another one of the same stretch."""
        return _text(self._stretch)

    @property
    def after(self) -> str:
        """Return what makes a span the first of the next stretch."""
        return f"{_NO_PARENT} {_text(self._span.get_span_context())}"

    def current(self) -> AbstractContextManager[object]:
        """Let spans that begin within the block be children of this one."""
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """End it with what became of the attempt or job."""
        try:
            self._span.set_attribute("outcome", outcome)
            if error is not None:
                self._span.set_status(StatusCode.ERROR, type(error).__qualname__)
                self._span.record_exception(error)
        except Exception:  # noqa: BLE001 (an error's own text may raise; the outcome stands)
            self._complain()
        try:
            self._span.end()
        except Exception:  # noqa: BLE001 (the application's exporter; the outcome stands)
            self._complain()


class Tracer:
    """Begins the spans of one bus."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("pgbus", version("pgbus"))
        self._complain = Complaint("Tracing failed; a span is lost, or a part of it.")

    def begin(
        self, name: str, kept: str | None, attributes: Mapping[str, str | int]
    ) -> Span | None:
        """Begin a span where `kept` says; None as long as the application records no traces.

        A span that is current here, the application's own, is the parent whatever `kept` says.
        """
        if isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
            return None
        joined = [_context(text) for text in (kept or "").split(" ", 1)]
        here = trace.get_current_span().get_span_context()
        parent, *linked = [here, *joined] if here.is_valid else joined
        within = Context()
        if parent is not None:
            within = trace.set_span_in_context(NonRecordingSpan(parent), within)
        links = [Link(one) for one in linked if one is not None]
        try:
            span = self._tracer.start_span(name, within, SpanKind.CONSUMER, attributes, links)
        except Exception:  # noqa: BLE001 (the application's sampler or processor; the work goes on)
            self._complain()
            return None
        return Span(span, parent or span.get_span_context(), self._complain)

    def here(self, *, after: str | None = None) -> str | None:
        """Return where a span belongs that the calling code causes; None: nowhere in particular.

        `after` is what was kept for the stretch that it follows.
        """
        context = trace.get_current_span().get_span_context()
        told = _text(context) if context.is_valid else None
        if after:
            return f"{told or _NO_PARENT} {after.split(' ')[-1]}"
        return told


def _text(context: SpanContext) -> str:
    """Return the context as a W3C traceparent."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context(text: str) -> SpanContext | None:
    """Return what a traceparent says, None for anything else."""
    told = _W3C.extract({"traceparent": text}, Context())
    context = trace.get_current_span(told).get_span_context()
    return context if context.is_valid else None
