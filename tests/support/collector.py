"""A collector of traces, made of the protocol's own descriptors: takes OTLP over gRPC and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from support.processes import wait_until

SERVER, CLIENT, INTERNAL = Sent.SPAN_KIND_SERVER, Sent.SPAN_KIND_CLIENT, Sent.SPAN_KIND_INTERNAL


@dataclass(frozen=True)
class Span:
    """One span, with ids in hex and times in seconds."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    state: str
    start: float
    end: float
    failed: bool
    attributes: dict[str, Any] = field(hash=False)


class Collector(rpc.TraceServiceServicer):
    """Keeps every span that is exported to it."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        rpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: Any, _context: Any) -> Any:
        """The protocol's one call."""
        with self._lock:
            for resource in request.resource_spans:
                name = _values(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self._spans += [_span(name, span) for span in scope.spans]
        return service.ExportTraceServiceResponse()

    def of(self, trace: str) -> list[Span]:
        """What has come of a trace."""
        with self._lock:
            return [span for span in self._spans if span.trace == trace]

    def all(self) -> list[Span]:
        """What has come."""
        with self._lock:
            return list(self._spans)

    def wait_for(self, trace: str, *services: str) -> list[Span]:
        """The spans of a trace, once each of these services has sent its own span of the request."""

        def is_there() -> bool:
            return {span.service for span in self.of(trace) if span.kind == SERVER} >= set(services)

        wait_until(f"{services} have exported trace {trace}", is_there)
        return self.of(trace)

    def stop(self) -> None:
        self._server.stop(None).wait()


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a port of this machine."""
    made = Collector()
    try:
        yield made
    finally:
        made.stop()


def _span(name: str, span: Any) -> Span:
    return Span(
        service=name,
        name=span.name,
        kind=span.kind,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        state=span.trace_state,
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
