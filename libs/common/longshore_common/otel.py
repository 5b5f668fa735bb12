"""`tracing.Tracer` on the OpenTelemetry SDK. Imported only when traces are asked for."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator, Mapping

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


class OtelTracer:
    """Spans with W3C trace context."""

    def __init__(self, service: str, processor: SpanProcessor) -> None:
        named = os.environ.get("OTEL_SERVICE_NAME") or service
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: named}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("longshore")

    @classmethod
    def exporting(cls, service: str) -> OtelTracer:
        """Sends spans to the collector that OTEL_* variables name, in batches, from a thread of its own."""
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        made = cls(service, BatchSpanProcessor(OTLPSpanExporter()))
        atexit.register(made.close)
        return made

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    @contextlib.contextmanager
    def span(self, name: str, attributes: Mapping[str, str], parent: Mapping[str, str] | None) -> Iterator[None]:
        context = None if parent is None else _PROPAGATOR.extract(parent)
        kind = SpanKind.INTERNAL if parent is None else SpanKind.SERVER
        shown = {f"longshore.{key}": value for key, value in attributes.items()}
        with self._tracer.start_as_current_span(name, context=context, kind=kind, attributes=shown):
            yield

    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier

    def trace_id(self) -> str:
        context = trace.get_current_span().get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else ""
